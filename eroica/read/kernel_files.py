"""Where compiled kernels are kept: beside the package, else in the user's cache, else apart.

Each is one file that never changes, written whole under its final name, with its own checksum in
front: what a crash or a full disk has left of one is no kernel and is made anew. Any number of
processes may read and write at once.
"""

import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_CHECKSUM_BYTES = 32
_SUFFIX = ".kernel"


def read(name: str) -> bytes | None:
    """Return what was kept under a name; None if there is nothing whole."""
    for folder in _folders(is_to_write=False):
        try:
            data = (folder / f"{name}{_SUFFIX}").read_bytes()
        except OSError:
            continue
        kernel = data[_CHECKSUM_BYTES:]
        if hashlib.sha256(kernel).digest() == data[:_CHECKSUM_BYTES]:
            return kernel
        logger.info("the compiled code in %s is damaged and is made anew", folder / name)
    return None


def is_any_kept() -> bool:
    """Whether something was compiled here before; else the first reading takes longer."""
    for folder in _folders(is_to_write=False):
        if next(folder.glob(f"*{_SUFFIX}"), None) is not None:
            return True
    return False


def write(name: str, kernel: bytes) -> None:
    """Keep a kernel in the first folder that takes it; where none does, it is for this process."""
    for folder in _folders(is_to_write=True):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(dir=folder, prefix=f".{name}", suffix=".part")
        except OSError:
            continue
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(kernel).digest() + kernel)
            Path(scratch).replace(folder / f"{name}{_SUFFIX}")
            return
        except OSError as error:
            logger.info("compiled code cannot be kept in %s: %s", folder, error)
            Path(scratch).unlink(missing_ok=True)
    logger.info("no place for compiled code, compiling anew each time")


def _folders(*, is_to_write: bool) -> Iterator[Path]:
    yield Path(__file__).parent / "__pycache__"  # as trusted as the source there
    folders = [Path(tempfile.gettempdir()) / f"eroica-kernels-{os.getuid()}"]
    with suppress(RuntimeError):  # no home at all
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folders.insert(0, Path(home) / "eroica")
    yield from (folder for folder in folders if _is_private(folder, is_to_write=is_to_write))


def _is_private(folder: Path, *, is_to_write: bool) -> bool:
    """Return whether only this user can write the folder: others' code must not be run.

    A home or a cache may be shared as well (HOME=/tmp in a container, a group's scratch disk).
    """
    try:
        if is_to_write:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    is_closed = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o022 == 0
    return is_closed and found.st_uid == os.getuid()
