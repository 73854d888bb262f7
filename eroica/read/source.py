"""Small files whole, large ones by their head: unpacked, and never more than asked for."""

from pathlib import Path

from eroica import units
from eroica.errors import InputError
from eroica.read.opening import ByteStream
from eroica.records import Warning

LFS = b"version https://git-lfs.github.com/spec"


def read_head(path: Path, size: int) -> bytes:
    """Up to ``size`` unpacked bytes from the front; InputError when it cannot be opened."""
    with ByteStream(path) as stream:
        return stream.read(size)


def read_bytes(path: Path, limit: int) -> tuple[bytes, tuple[str, ...]]:
    """The whole unpacked content and the defects of its packing.

    InputError above ``limit`` bytes, for an LFS pointer and when nothing can be read.
    """
    parts, total = [], 0
    with ByteStream(path) as stream:
        while part := stream.read(1 << 20):
            parts.append(part)
            total += len(part)
            if total > limit:
                raise InputError(
                    f"{path} is too large",
                    f"more than {units.size(limit)}; files of this kind are far smaller",
                    next_step="name the files that belong to the job",
                )
        defects = (stream.defect,) if stream.defect else ()
    data = b"".join(parts)
    if data.startswith(LFS):
        raise InputError(f"{path} is a Git LFS pointer, not the data itself", "", "git lfs pull")
    if defects and not data:
        raise InputError(f"{path} cannot be unpacked", defects[0], next_step="copy the file again")
    return data, defects


def warning_of(error: InputError, path: Path) -> Warning:
    """An error about a file as a warning of one line, without saying the path twice."""
    parts = [part for part in (error.what, error.found) if part]
    text = "; ".join(parts).replace("\n", "; ")
    return Warning(file=str(path), what=text.removeprefix(f"{path} "))
