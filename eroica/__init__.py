"""eroica troubleshoots distributed PyTorch training.

Imported in a training script (where RANK is set) it attaches the hook and nothing else; it loads
only the standard library, and torch is patched when the job itself imports it. Kept to the syntax
of Python 3.9, because it runs in the job's own Python.
"""

import os
import sys

__version__ = "0.1.0"
__all__ = ["__version__", "step"]


def step() -> None:
    """Mark the end of a training step, for loops with neither a DataLoader nor an optimizer."""
    import eroica.collect.hook as hook

    hook.step()


def _is_own_command() -> bool:
    """Whether this process is eroica's: the command, ``-m eroica``, a worker of either.

    A shell in a job's container has the job's RANK; looking at the job from there must not make
    a rank of the one who looks.
    """
    program = getattr(sys, "argv", [""])[0]
    if program == "-m":  # the module is still being looked for
        words = getattr(sys, "orig_argv", [])
        module = words[-len(sys.argv)] if len(words) >= len(sys.argv) else ""
        module = module[2:] if module.startswith("-m") else module
        return module.split(".")[0] == "eroica"
    if os.path.basename(program) in ("eroica", "eroica.exe", "eroica-script.py"):
        return True
    own = os.path.dirname(os.path.abspath(__file__))
    path = os.path.abspath(program)
    return path.startswith(own + os.sep) and not path.startswith(os.path.join(own, "examples"))


if os.environ.get("RANK") is not None and os.environ.get("EROICA") != "0" and not _is_own_command():
    import eroica.collect.hook as _hook

    _hook.attach()
