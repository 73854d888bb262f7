"""eroica troubleshoots distributed PyTorch training.

Imported in a training script (where RANK is set) it attaches the hook and nothing else; it loads
only the standard library, and torch is patched when the job itself imports it. Kept to the syntax
of Python 3.9, because it runs in the job's own Python.
"""

import os

__version__ = "0.1.0"
__all__ = ["__version__", "step"]


def step() -> None:
    """Mark the end of a training step, for loops with neither a DataLoader nor an optimizer."""
    import eroica.collect.hook as hook

    hook.step()


if os.environ.get("RANK") is not None and os.environ.get("EROICA") != "0":
    import eroica.collect.hook as _hook

    _hook.attach()
