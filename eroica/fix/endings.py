"""Did ranks end their work before they were aborted?

A C++ thread that is still there when the interpreter is taken down ends the process by
``std::terminate``: "terminate called without an active exception" and SIGABRT, or exit code 1 of
the launcher, after all work was done. torch does so now and then. Such a run has not failed. Each
rank of a rehearsal notes that it began, and, from the interpreter's own way out, that it ended
without an uncaught error.
"""

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

FOLDER = "EROICA_REHEARSAL_ENDINGS"
ABORTED = "terminate called without an active exception"
_EXIT_CODE = re.compile(r"\bexitcode\s*:\s*(-?\d+)")
_SITE = '''\
"""Notes how a rank of a rehearsal ends, then runs the sitecustomize that this one hides."""
import atexit, importlib.machinery, importlib.util, os, sys

def _note(name):
    try:
        with open(os.path.join(os.environ["EROICA_REHEARSAL_ENDINGS"], name), "x") as file:
            file.write(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return True
    except (OSError, KeyError):
        return False

def _end(name):
    if getattr(sys, "last_value", None) is None:
        _note(name)

_rank = os.environ.get("RANK", "main")
if _note(_rank + ".began"):
    atexit.register(_end, _rank + ".ended")
_here = os.path.dirname(os.path.abspath(__file__))
_spec = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [p for p in sys.path if os.path.abspath(p or ".") != _here]
)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
'''


def noted_in(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return what to add to an environment so that ranks note their ends in a new folder."""
    notes = folder / "notes"
    notes.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(_SITE)
    paths = [str(folder), environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH", "")]
    return {FOLDER: str(notes), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def was_aborted_at_its_end(folder: Path, status: int | None, lines: Sequence[str]) -> bool:
    """Say whether a run that failed was aborted when all of its ranks had ended their work."""
    return _is_abort(status, lines) and _have_ended(folder / "notes")


def _is_abort(status: int | None, lines: Sequence[str]) -> bool:
    """By the signal itself, or by what the launcher of ranks reports of theirs."""
    if status in (-signal.SIGABRT, 128 + signal.SIGABRT):
        return True
    codes = {int(code) for line in lines for code in _EXIT_CODE.findall(line)}
    is_said = any(ABORTED in line for line in lines)
    ended = {-signal.SIGABRT, -signal.SIGTERM}  # the launcher ends the others
    return status == 1 and is_said and -signal.SIGABRT in codes and codes <= ended


def _have_ended(notes: Path) -> bool:
    began = {file.stem: file for file in notes.glob("*.began")}
    ranks = began.keys() - {"main"}
    if ranks:  # else a program without a launcher
        count = max(int(began[rank].read_text() or 1) for rank in ranks)
        if len(ranks) < count:
            return False
    return all((notes / f"{rank}.ended").exists() for rank in ranks or began) and bool(began)
