"""Files of others, read as data: plain ones, inside the folder they belong to, of bounded size.

A source tree or an evidence folder may hold pipes (opening one waits for ever), devices (reading
one never ends) and links that lead elsewhere (to a key, say, that would then stand in a prompt).
"""

import os
import stat
from pathlib import Path

MAX_SOURCE_BYTES = 1_000_000
"""A larger source file is generated: nobody reads it, or wants a patch for it."""


def is_inside(path: Path, root: Path) -> bool:
    """Whether a file, links followed, lies below a folder and is a plain one."""
    try:
        real = Path(os.path.realpath(path))  # resolve() raises on a loop of links
        return real.is_relative_to(os.path.realpath(root)) and real.is_file()
    except (OSError, ValueError):  # too long a name, a NUL in it
        return False


def read_plain(path: Path, limit: int = MAX_SOURCE_BYTES) -> bytes:
    """Return a file's bytes; OSError where it is no plain file or holds more than ``limit``."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no plain file")
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{path} holds more than {limit} bytes")
    return data
