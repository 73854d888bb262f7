"""The one place where the hook's own faults end: said once, then quiet."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

_told: set[str] = set()


@contextlib.contextmanager
def quietly(what: str) -> Any:
    """Run a part of the hook; its exception is told once on stderr and goes no further."""
    try:
        yield
    except Exception as error:
        tell(what, error)


def tell(what: str, error: BaseException) -> None:
    """Say once what no longer works, with the rank; the training goes on without it."""
    if what in _told:
        return
    _told.add(what)
    import os

    rank = os.environ.get("RANK", "?")
    problem = f"{type(error).__name__}: {error}"
    message = f"eroica: rank {rank}: {what} is off ({problem}); the training goes on\n"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(message)
