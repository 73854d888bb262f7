"""Put on PYTHONPATH by ``eroica run``: brings the hook into each rank, then steps aside.

It loads the hook by its place on disk, so that eroica need not be installed in the job's Python,
and runs the sitecustomize that would have been found without it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name: str, path: str, folder: Any = None) -> Any:
    spec = importlib.util.spec_from_file_location(
        name,
        path,
        submodule_search_locations=[folder] if folder else None,
    )
    if spec is None or spec.loader is None:
        raise ImportError("no hook at " + path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _run_the_other() -> None:
    """Run the sitecustomize that this one hides, as Python would have."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _is_launcher() -> bool:
    """Whether this process starts ranks: a training operator gives its pod a RANK of its own."""
    if os.environ.get("LOCAL_RANK") is not None:
        return False
    with open("/proc/self/cmdline", "rb") as stream:
        words = stream.read().decode(errors="replace").split("\0")[:6]
    names = ("torchrun", "accelerate", "deepspeed")
    modules = ("torch.distributed.run", "torch.distributed.launch")
    return any(os.path.basename(word) in names or word in modules for word in words)


def _attach() -> None:
    if os.environ.get("EROICA") == "0" or not os.environ.get("EROICA_RUN"):
        return
    folder = os.path.join(os.path.dirname(_HERE), "hook")
    try:
        hook = _load("eroica_hook", os.path.join(folder, "__init__.py"), folder)
        if os.environ.get("RANK") is not None and not _is_launcher():
            hook.attach()
        else:
            hook.attach_later()
    except Exception as error:
        sys.stderr.write(f"eroica: not watching this process ({error!r})\n")


_attach()
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
_run_the_other()
