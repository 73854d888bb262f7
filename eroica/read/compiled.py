"""One decorator for every function that numba compiles, with the result kept on disk.

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
from typing import TypeVar, cast

import numba
import numba.core.config

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile ``function`` on its first call, without the GIL; load it from the cache later."""
    try:
        return _compile(function, cache=True)
    except RuntimeError:  # numba: "cannot cache function ...: no locator available for file ..."
        folder = _private_cache_folder()
    if folder is None:
        return _compile(function, cache=False)
    # Read by numba at decoration; set only here, where its own choices have failed.
    numba.core.config.CACHE_DIR = str(folder)
    try:
        return _compile(function, cache=True)
    except RuntimeError:
        return _compile(function, cache=False)


def _compile(function: Function, *, cache: bool) -> Function:
    return cast(Function, numba.njit(cache=cache, nogil=True)(function))


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
