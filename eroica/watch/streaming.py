"""A folder of evidence as lines of text, through whatever stands between two hosts, and back.

ssh, srun and kubectl exec pass lines on, and srun mixes those of many tasks (whole, up to 1024
bytes), so a tar goes as short numbered lines of base64 that carry their sender:

    eroica1:<sender>:<number>:<base64>     a piece
    eroica1:<sender>:end:<sha256>          all pieces were sent
    eroica1:<sender>:no:<base64>           a sentence: why there is nothing

Other lines (a login's greeting, a label before ours) are left alone. What arrives is data of a
stranger: only plain files with plain names are unpacked, up to a size.
"""

import base64
import binascii
import hashlib
import io
import os
import re
import secrets
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eroica.errors import InputError

_PIECE_BYTES = 600
MAX_TAR_BYTES = 256 << 20
"""One host's evidence as sent."""
_MAX_FILES_BYTES = 2 << 30
_MAX_FILES = 20_000
_MAX_SENDERS = 100_000
_LINE = re.compile(rb"eroica1:([A-Za-z0-9._-]{1,120}):(\d{1,9}|end|no):([A-Za-z0-9+/=]*)")
_HOST = re.compile(r"host-[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


def sender_name(host: str) -> str:
    """Return a name for one sending process: hosts may send twice."""
    return f"{plain(host)[:80]}-{secrets.token_hex(4)}"


def plain(host: str) -> str:
    """Return a host's name with nothing in it that means something in a path."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", host).lstrip("._-") or "unknown"


def lines_of(folder: Path, sender: str) -> Iterator[bytes]:
    """Return the lines that carry a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        archive.add(folder, arcname=folder.name)
    data = buffer.getvalue()
    head = f"eroica1:{sender}:".encode()
    for number, start in enumerate(range(0, len(data), _PIECE_BYTES)):
        piece = base64.b64encode(data[start : start + _PIECE_BYTES])
        yield head + f"{number}:".encode() + piece + b"\n"
    yield head + f"end:{hashlib.sha256(data).hexdigest()}".encode() + b"\n"


def refusal_line(reason: str, sender: str) -> bytes:
    text = base64.b64encode(reason.encode()[:_PIECE_BYTES])
    return f"eroica1:{sender}:no:".encode() + text + b"\n"


@dataclass
class _Sender:
    pieces: dict[int, bytes] = field(default_factory=dict)
    num_bytes: int = 0
    digest: str | None = None
    refusal: str | None = None


@dataclass
class Receiver:
    """Puts together what lines bring, of any number of senders, in any order."""

    problems: list[str] = field(default_factory=list)
    _senders: dict[str, _Sender] = field(default_factory=dict)

    def take(self, line: bytes) -> bool:
        """Take a line; False where it is none of ours."""
        match = _LINE.search(line)
        if match is None or len(self._senders) >= _MAX_SENDERS:
            return False
        name, what, text = match[1].decode(), match[2], match[3]
        sender = self._senders.setdefault(name, _Sender())
        try:
            if what == b"end":
                sender.digest = text.decode()
            elif what == b"no":
                sender.refusal = base64.b64decode(text, validate=True).decode(errors="replace")
            elif sender.num_bytes + len(text) <= MAX_TAR_BYTES:
                piece = base64.b64decode(text, validate=True)
                sender.num_bytes += len(piece)
                sender.pieces[int(what)] = piece
        except binascii.Error:
            return False  # torn: its digest will not fit
        return True

    def unpack(self, out: Path) -> list[str]:
        """Unpack what came whole below ``out``; return the hosts' folders."""
        found = []
        for name, sender in sorted(self._senders.items()):
            host = name.rpartition("-")[0]
            if sender.refusal is not None:
                self.problems.append(f"{host}: {sender.refusal}")
                continue
            data = b"".join(sender.pieces[number] for number in sorted(sender.pieces))
            if hashlib.sha256(data).hexdigest() != sender.digest:
                self.problems.append(f"{host}: its evidence came torn ({len(data)} bytes)")
                continue
            try:
                found.append(unpack(data, out))
            except InputError as error:
                self.problems.append(f"{host}: {error}".replace("\n", "; "))
        return found


def unpack(data: bytes, out: Path) -> str:
    """Unpack one host's tar below ``out``; return its folder's name.

    InputError where it holds anything but plain files with plain names in one ``host-NAME``
    folder, or more than a host's evidence can be. Files of an earlier time are replaced.
    """
    folders: set[str] = set()
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r|gz") as archive:
            for number, member in enumerate(archive):
                total += member.size
                parts = _checked(member, number, total)
                folders.add(parts[0])
                if len(folders) > 1:
                    raise _refused(member.name, "a host sends one folder")
                if member.isreg():
                    stream = archive.extractfile(member)
                    assert stream is not None
                    _write(out.joinpath(*parts), stream.read(member.size))
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InputError(
            "a host's evidence cannot be unpacked", str(error), "eroica collect on that host alone"
        ) from error
    if not folders:
        raise InputError(
            "a host's evidence cannot be unpacked",
            "it is empty",
            "eroica collect on that host alone",
        )
    return folders.pop()


def _checked(member: tarfile.TarInfo, number: int, total: int) -> list[str]:
    parts = member.name.split("/")
    if not member.isreg() and not member.isdir():
        raise _refused(member.name, "only plain files are taken")
    if not _HOST.fullmatch(parts[0]) or len(parts) > 4 or (member.isreg() and len(parts) < 2):
        raise _refused(member.name, "expected host-NAME/FILE")
    if not all(_NAME.fullmatch(part) for part in parts):
        raise _refused(member.name, "its name is not plain")
    if number >= _MAX_FILES or total > _MAX_FILES_BYTES or member.size < 0:
        raise _refused(member.name, "too many files or bytes")
    return parts


def _refused(name: str, why: str) -> InputError:
    return InputError(
        "a host's evidence is refused",
        f"{name[:200]!r}: {why}",
        "is eroica of one version on all hosts? eroica --version",
    )


def _write(path: Path, data: bytes) -> None:
    """Write a file for its owner only; never through a link that lies in its place."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
