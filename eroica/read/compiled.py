"""Decorators for the functions that numba compiles, with the result kept on disk.

Compiling the trace scanner takes seconds, loading it from the cache a fifth of one. numba keeps
its cache beside the source, else in the user's cache folder. Where neither can be written (a
package installed by root, a container without a home) it refuses to compile at all; here the
cache then goes to a private folder under the temporary directory, or is done without.
"""

import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.core.config

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile ``function`` on its first call, to run without the GIL; later load it from disk."""
    return _cached(function, nogil=True)


def compiled_lean(function: Function) -> Function:
    """Compile without numba's memory runtime: for inner loops of many small functions.

    No array is counted in and out of a function then (two atomic operations each, half the time
    of the scanner); nor can one be made inside, so callers bring scratch arrays.
    """
    return _cached(function, nogil=True, _nrt=False)


def inlined_lean(function: Function) -> Function:
    """Likewise, copied into its caller: saves passing arrays, seven words each, on the stack."""
    return cast(Function, numba.njit(nogil=True, _nrt=False, inline="always")(function))


def _cached(function: Function, **options: object) -> Function:
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # numba: "cannot cache function ...: no locator available for file ..."
        folder = _private_cache_folder()
    if folder is not None:
        # Read by numba at decoration; set only here, where its own choices have failed.
        numba.core.config.CACHE_DIR = str(folder)
        try:
            return cast(Function, numba.njit(cache=True, **options)(function))
        except RuntimeError as error:
            logger.info("compiled code cannot be kept in %s: %s", folder, error)
    return cast(Function, numba.njit(**options)(function))


def _private_cache_folder() -> Path | None:
    """Return a folder that only this user can write; None where there cannot be one.

    numba's index files are pickles: a folder that somebody else could have filled must not be
    used.
    """
    folder = Path(tempfile.gettempdir()) / f"eroica-numba-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        logger.info("no place for compiled code, compiling anew each time: %s", error)
        return None
    is_private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077 == 0
    return folder if is_private and found.st_uid == os.getuid() else None
