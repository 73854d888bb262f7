"""The one place where the hook's own faults end: said once, then quiet."""

import contextlib
import sys

_told = set()  # type: set[str]


@contextlib.contextmanager
def quietly(what):
    # type: (str) -> object
    """Run a part of the hook; its exception is told once on stderr and goes no further."""
    try:
        yield
    except Exception as error:
        tell(what, error)


def tell(what, error):
    # type: (str, BaseException) -> None
    """Say once what no longer works, with the rank; the training goes on without it."""
    if what in _told:
        return
    _told.add(what)
    import os

    rank = os.environ.get("RANK", "?")
    message = "eroica: rank {}: {} is off ({}: {}); the training goes on\n".format(
        rank, what, type(error).__name__, error
    )
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(message)
