"""Opening a file by what it holds, not by its name: plain, gzip or zstd, always as a byte stream.

A stream that breaks off (killed writer, full disk, bad checksum) ends like a file that ends, and
says so in ``defect``: the reader keeps what came before.
"""

import io
import zlib
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import zstandard
from isal.igzip_lib import DECOMP_GZIP, IgzipDecompressor, IsalError

from eroica.errors import InputError

_PACKED_BYTES = 1 << 18
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_NOT_READ = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"SQLite format 3": "an SQLite database",
    b"\x80\x02": "a pickle",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
_ISAL_ERROR: type[Exception] = IsalError  # type: ignore[assignment]  # wrongly typed in isal
_BROKEN_STREAM = (EOFError, OSError, ValueError, zlib.error, zstandard.ZstdError, _ISAL_ERROR)
_LFS = b"version https://git-lfs"


class _Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...

    def close(self) -> None: ...


class _GzipReader:
    """Unpacks gzip piece by piece, so that nothing before a defect is lost (GzipFile loses it)."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._member = IgzipDecompressor(flag=DECOMP_GZIP)
        self._packed = b""

    def readinto(self, buffer: memoryview, /) -> int:
        """Unpack into ``buffer``; 0 at the end, EOFError where the file ends within a member."""
        while True:
            if self._member.eof:
                self._packed = (self._member.unused_data or self._raw.read(_PACKED_BYTES)) or b""
                if not self._packed.strip(b"\0"):
                    return 0  # nothing, or padding
                if not self._packed.startswith(GZIP):
                    raise ValueError("bytes that are no gzip follow")
                self._member = IgzipDecompressor(flag=DECOMP_GZIP)
            elif self._member.needs_input:
                self._packed = self._raw.read(_PACKED_BYTES) or b""
                if not self._packed:
                    raise EOFError("the file ends within the compressed data")
            piece = self._member.decompress(self._packed, len(buffer))
            self._packed = b""
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)

    def close(self) -> None:
        self._packed = b""


class ByteStream:
    """The uncompressed bytes of a file. ``defect`` is what cut them short, empty if nothing did."""

    def __init__(self, path: str | Path) -> None:
        self.path = readable(path)
        self.defect = ""
        self.num_bytes = 0
        try:
            self._raw = io.FileIO(path)
            head = self._raw.read(64) or b""
            self._raw.seek(0)
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be opened",
                f"{error.strerror or error}",
                "check the path and its permissions",
            ) from error
        self.kind = "gzip" if head[:2] == GZIP else "zstd" if head[:4] == ZSTD else "plain"
        self._stream: _Readable = self._raw
        if self.kind == "gzip":
            self._stream = _GzipReader(self._raw)
        elif self.kind == "zstd":
            self._stream = zstandard.ZstdDecompressor().stream_reader(
                self._raw, read_across_frames=True
            )
        self.head = head

    def readinto(self, buffer: memoryview) -> int:
        """Fill ``buffer`` as far as one read goes; 0 at the end or where the stream breaks."""
        if self.defect:
            return 0
        try:
            count = self._stream.readinto(buffer) or 0
        except _BROKEN_STREAM as error:
            self.defect = f"{self.kind} stream breaks off ({error})"
            return 0
        self.num_bytes += count
        return count

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, fewer only at the end."""
        buffer = bytearray(size)
        filled = 0
        with memoryview(buffer) as view:
            while filled < size and (count := self.readinto(view[filled:])):
                filled += count
        return bytes(buffer[:filled])

    def read_end(self, size: int) -> bytes:
        """Return the last ``size`` bytes of a plain file; nothing can be read afterwards."""
        try:
            self._raw.seek(0, io.SEEK_END)
            self._raw.seek(max(0, self._raw.tell() - size))
            return self._raw.read(size) or b""
        except OSError as error:
            self.defect = f"{self.kind} stream breaks off ({error})"
            return b""

    def close(self) -> None:
        self._stream.close()
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def readable(path: str | Path) -> str:
    """Return a path for warnings and records, which are UTF-8; bytes that are not are spelled."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def foreign_format(head: bytes) -> str:
    """Name the format of a file that is certainly no trace, by its first bytes; else empty."""
    if head.startswith(_LFS):
        return "a Git LFS pointer, the data itself was never downloaded"
    for magic, name in _NOT_READ.items():
        if head.startswith(magic):
            return name
    return ""
