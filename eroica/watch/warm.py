"""Compiles the readers' fast parts beside a job's start, the first time on a machine.

Compiling takes some seconds of CPU once; without this a user waits for it at the end of the very
first watch. A child of low priority does it and is ended with the watch.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import eroica

logger = logging.getLogger(__name__)


def stamp_path() -> Path:
    """A file that exists once this version's readers were compiled for this user."""
    root = Path(eroica.__file__).parent
    sources = sorted([*(root / "read").glob("*.py"), *(root / "summarize").glob("*.py")])
    state = "|".join(f"{path.name} {path.stat().st_mtime_ns}" for path in sources)
    digest = hashlib.sha256(f"{sys.version}|{state}".encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "eroica" / f"compiled-{digest}"


def start() -> "subprocess.Popen[bytes] | None":
    """Start the child, unless it has been done; None then, or where it cannot be started."""
    try:
        if stamp_path().exists():
            return None
    except (OSError, RuntimeError) as error:  # this user has no home, or may not look into it
        logger.debug("nothing is compiled beforehand: %s", error)
        return None
    code = "from eroica.watch.warm import compile_readers; compile_readers()"
    try:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        logger.debug("cannot compile beforehand: %s", error)
        return None


_NEEDED = (
    "eroica.localize.stuck",
    "eroica.localize.stuck_divergence",
    "eroica.read.flight",
    "eroica.read.stacks",
    "eroica.pipeline",
    "eroica.explain",
    "eroica.explain.rules",
    "eroica.explain.knowledge_stuck",
    "eroica.explain.privacy",
)
"""What a stuck job's verdict takes; importing it then would be a tenth of the wait."""


def preload() -> threading.Thread:
    """Import in the background what a verdict takes, while the job trains."""
    thread = threading.Thread(target=_preload, name="eroica-preload", daemon=True)
    thread.start()
    return thread


def _preload() -> None:
    for name in _NEEDED:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def stop(child: "subprocess.Popen[bytes] | None") -> None:
    """End the child where it still works; what it compiled so far stays."""
    if child is not None:
        if child.poll() is None:
            child.kill()
        child.wait()


def compile_readers() -> None:
    """Read and summarize a trace of a few events, which compiles all that a real one needs."""
    from eroica.read.kineto import read_timeline
    from eroica.summarize import summarize

    os.nice(15)
    with tempfile.TemporaryDirectory(prefix="eroica-") as folder:
        path = Path(folder) / "rank0.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": _events()}, indent=1))
        summarize(read_timeline(path, rank=0))
    with contextlib.suppress(OSError):
        stamp_path().parent.mkdir(parents=True, exist_ok=True)
        stamp_path().touch()


def _events() -> list[dict[str, object]]:
    def event(name: str, category: str, start: float, length: float, **args: object) -> object:
        place = {"pid": 1, "tid": 1, "ts": start, "dur": length}
        return {"ph": "X", "cat": category, "name": name, **place, "args": args}

    python = [
        event(f"train.py({i}): f{i}", "python_function", i, 100 - 2 * i, **{"Python id": i + 1})
        for i in range(4)
    ]
    ops = [event("aten::mm", "cpu_op", 10 + i, 0.5) for i in range(8)]
    collectives = [event("gloo:all_reduce", "user_annotation", 40 + 5 * i, 3) for i in range(4)]
    steps = [event(f"ProfilerStep#{i}", "user_annotation", 10 + 40 * i, 40) for i in range(2)]
    return [*python, *ops, *collectives, *steps]  # type: ignore[list-item]
