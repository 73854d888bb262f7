"""How a rank ends: the exception, the clean exit, and no exit in the middle of a window."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from typing import Any

from . import dumps, facts, guard, server
from . import folder as folders
from .layout import W_EXITING, W_RANK
from .places import places_of_traceback

_MAX_THREAD_ERRORS = 20


def install(ring: Any, folder: str, windows: Any, samples: Any) -> None:
    rank = ring.words[W_RANK]
    base = os.path.join(folder, f"rank-{rank:05d}")
    story: dict[str, Any] = {"pid": os.getpid(), "clean": False, "thread_errors": []}

    def save() -> None:
        if ring.is_detached:
            return
        with guard.quietly("telling how the rank ended"):
            story["time_ns"] = time.time_ns()
            with open(base + ".exit.json.new", "w") as stream:
                json.dump(story, stream)
            os.rename(base + ".exit.json.new", base + ".exit.json")

    _watch_main(story, save)
    _watch_threads(story, save)

    def at_exit() -> None:
        if ring.is_detached:
            return
        ring.words[W_EXITING] = 1
        story["clean"] = "error_type" not in story
        save()
        with guard.quietly("the last facts"):
            facts.write(base + ".facts.json")
        if "torch._C._distributed_c10d" in sys.modules:
            with guard.quietly("the last Flight Recorder"):
                dumps.write_flight(base + ".flight")
        with guard.quietly("ending a sampling profile"):
            samples.stop(1.0)
        # The interpreter must not end while C++ holds a running profiler.
        with guard.quietly("ending a window"):
            windows.finish()
        with guard.quietly("ending torch's worker server"):
            server.stop(ring)
        if not folders.is_shared():
            with guard.quietly("leaving"):
                folders.leave(folder, rank)

    atexit.register(at_exit)


def _describe(kind: type[Any], error: Any, traceback: Any) -> dict[str, Any]:
    return {
        "error_type": getattr(kind, "__name__", str(kind)),
        "message": _text(error)[:4000],
        "frames": places_of_traceback(traceback),
    }


def _text(error: Any) -> str:
    """What an exception says of itself; that it may fail to is no reason to call the end clean."""
    try:
        return str(error)
    except Exception as second:
        return f"(its text cannot be had: {type(second).__name__})"


def _watch_main(story: dict[str, Any], save: Any) -> None:
    previous = sys.excepthook

    def excepthook(kind: type[Any], error: Any, traceback: Any) -> None:
        with guard.quietly("reading the exception"):
            story.update(_describe(kind, error, traceback))
            save()
        previous(kind, error, traceback)

    sys.excepthook = excepthook


def _watch_threads(story: dict[str, Any], save: Any) -> None:
    previous = threading.excepthook

    def thread_hook(arguments: Any) -> None:
        with guard.quietly("reading a thread's exception"):
            errors = story["thread_errors"]
            if len(errors) < _MAX_THREAD_ERRORS:
                one = _describe(
                    arguments.exc_type,
                    arguments.exc_value,
                    arguments.exc_traceback,
                )
                one["thread"] = getattr(arguments.thread, "name", "")
                one["time_ns"] = time.time_ns()
                errors.append(one)
                save()
        previous(arguments)

    threading.excepthook = thread_hook
