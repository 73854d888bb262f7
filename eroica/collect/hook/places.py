"""Which frames are the user's: not the standard library, site-packages, torch or eroica."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any

_MAX_PLACES = 8


def _foreign() -> tuple[Any, ...]:
    paths = sysconfig.get_paths()
    roots = {paths.get(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots.add(os.path.dirname(os.path.abspath(__file__)))
    roots.add(os.path.dirname(os.__file__))
    return tuple(os.path.join(os.path.realpath(root), "") for root in roots if root)


_ROOTS = _foreign()
_known: dict[str, bool] = {}


def is_users(path: str) -> bool:
    """Whether a code object's file is the user's own code."""
    answer = _known.get(path)
    if answer is None:
        real = os.path.realpath(path)
        answer = not (
            path.startswith("<")
            or real.startswith(_ROOTS)
            or "site-packages" in real
            or "dist-packages" in real
        )
        if len(_known) < 10000:
            _known[path] = answer
    return answer


def user_places(skip: int = 1) -> list[Any]:
    """The caller's user frames, innermost first: ``{"name", "file", "line"}`` each."""
    found: list[Any] = []
    frame: Any = sys._getframe(skip)
    while frame is not None and len(found) < _MAX_PLACES:
        if is_users(frame.f_code.co_filename):
            found.append(_place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return found


def places_of_traceback(traceback: Any) -> list[Any]:
    """All frames of a traceback, innermost first, at most 50."""
    found = []
    while traceback is not None:
        found.append(_place(traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found[::-1][:50]


def _place(code: Any, line: int) -> dict[str, Any]:
    name = getattr(code, "co_qualname", None) or code.co_name
    return {"name": name, "file": code.co_filename, "line": line}
