"""Bytes of a file on disk: whatever packing it is in, and never more than asked for."""

import gzip
import zlib
from pathlib import Path
from typing import IO

from eroica import units
from eroica.errors import InputError

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
LFS = b"version https://git-lfs.github.com/spec"


def read_head(path: Path, size: int) -> bytes:
    """Up to ``size`` unpacked bytes from the front; fewer when the packing is damaged.

    OSError is turned into InputError.
    """
    return _read(path, size)[0]


def read_bytes(path: Path, limit: int) -> bytes:
    """The whole unpacked content; InputError above ``limit`` bytes or when unreadable."""
    data, error = _read(path, limit + 1)
    if len(data) > limit:
        raise InputError(
            f"{path} is too large", f"more than {units.size(limit)}; such files are far smaller"
        )
    if data.startswith(LFS):
        raise lfs_error(path)
    if error and not data:
        raise InputError(f"{path} cannot be unpacked", error)
    return data


def lfs_error(path: Path) -> InputError:
    return InputError(f"{path} is a Git LFS pointer, not the data itself", "", "git lfs pull")


def _read(path: Path, size: int) -> tuple[bytes, str]:
    try:
        with path.open("rb") as stream:
            magic = stream.read(4)
            stream.seek(0)
            if magic.startswith(GZIP):
                return _unpack(gzip.GzipFile(fileobj=stream), size)
            if magic == ZSTD:
                import zstandard

                reader = zstandard.ZstdDecompressor().stream_reader(stream)
                return _unpack(reader, size)
            return stream.read(size), ""
    except OSError as error:
        raise InputError(f"{path} cannot be read", error.strerror or str(error)) from error


def _unpack(stream: IO[bytes], size: int) -> tuple[bytes, str]:
    """Read piece by piece, so that what comes before a defect is kept."""
    import zstandard

    parts: list[bytes] = []
    left = size
    try:
        while left > 0:
            part = stream.read(min(left, 1 << 16))
            if not part:
                break
            parts.append(part)
            left -= len(part)
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        return b"".join(parts), str(error)
    return b"".join(parts), ""
