"""How a rank ends: the exception, the clean exit, and no exit in the middle of a window."""

import atexit
import json
import os
import sys
import threading
import time

from . import facts, guard
from .layout import W_EXITING, W_RANK
from .places import places_of_traceback

_MAX_THREAD_ERRORS = 20


def install(ring, folder, windows):
    # type: (object, str, object) -> None
    rank = ring.words[W_RANK]  # type: ignore[attr-defined]
    base = os.path.join(folder, "rank-{:05d}".format(rank))
    story = {"pid": os.getpid(), "clean": False, "thread_errors": []}  # type: dict

    def save():
        # type: () -> None
        if ring.is_detached:  # type: ignore[attr-defined]
            return
        with guard.quietly("telling how the rank ended"):
            story["time_ns"] = time.time_ns()
            with open(base + ".exit.json.new", "w") as stream:
                json.dump(story, stream)
            os.rename(base + ".exit.json.new", base + ".exit.json")

    _watch_main(story, save)
    _watch_threads(story, save)

    def at_exit():
        # type: () -> None
        if ring.is_detached:  # type: ignore[attr-defined]
            return
        ring.words[W_EXITING] = 1  # type: ignore[attr-defined]
        story["clean"] = "error_type" not in story
        save()
        with guard.quietly("the last facts"):
            facts.write(base + ".facts.json")
        # The interpreter must not end while C++ holds a running profiler.
        with guard.quietly("ending a window"):
            windows.finish()  # type: ignore[attr-defined]

    atexit.register(at_exit)


def _describe(kind, error, traceback):
    # type: (type, object, object) -> dict
    return {
        "error_type": getattr(kind, "__name__", str(kind)),
        "message": str(error)[:4000],
        "frames": places_of_traceback(traceback),
    }


def _watch_main(story, save):
    # type: (dict, object) -> None
    previous = sys.excepthook

    def excepthook(kind, error, traceback):
        # type: (type, object, object) -> None
        with guard.quietly("reading the exception"):
            story.update(_describe(kind, error, traceback))
            save()  # type: ignore[operator]
        previous(kind, error, traceback)  # type: ignore[arg-type]

    sys.excepthook = excepthook  # type: ignore[assignment]


def _watch_threads(story, save):
    # type: (dict, object) -> None
    previous = threading.excepthook

    def thread_hook(arguments):
        # type: (object) -> None
        with guard.quietly("reading a thread's exception"):
            errors = story["thread_errors"]
            if len(errors) < _MAX_THREAD_ERRORS:
                one = _describe(
                    arguments.exc_type,  # type: ignore[attr-defined]
                    arguments.exc_value,  # type: ignore[attr-defined]
                    arguments.exc_traceback,  # type: ignore[attr-defined]
                )
                one["thread"] = getattr(arguments.thread, "name", "")  # type: ignore[attr-defined]
                one["time_ns"] = time.time_ns()
                errors.append(one)
                save()  # type: ignore[operator]
        previous(arguments)  # type: ignore[arg-type]

    threading.excepthook = thread_hook  # type: ignore[assignment]
