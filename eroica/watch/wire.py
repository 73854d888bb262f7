"""What the agents of a job's hosts tell each other, and how it is proved to be theirs.

Messages are JSON or msgpack of typed records, checked on arrival; nothing is ever unpickled.
Every message carries an HMAC-SHA256 under the job's key (``job_secret``), over a nonce of the
asker's; the key itself is never sent.
"""

import hashlib
import hmac
import os
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from eroica.columns import RankPatterns
from eroica.errors import InputError
from eroica.records import JobEvidence

MAX_STATUS_BYTES = 1 << 20
MAX_REPORT_BYTES = 32 << 20
"""One host's report as sent; a host of 8 ranks takes some 100 KB."""
_MAX_UNPACKED_BYTES = 512 << 20


class WindowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that are to be profiled on all hosts."""

    number: int
    start: int
    """Count of borders at which ranks in step begin."""
    num_steps: int
    is_baseline: bool = False
    """Of the job's healthy time."""


class VerdictPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an incident of the whole job lies."""

    host: str
    id: str
    path: str = ""
    symptom: str = ""
    headline: str = ""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of rank 0's host wants of the others."""

    sequence: int = 1
    """Grows with each change; who has none yet asks for what is after 0."""
    phase: str = "watch"
    """``watch``; ``collect``: gather for ``incident``; ``end``: all have gathered."""
    incident: int = 0
    hint: str = ""
    window: WindowPlan | None = None
    verdict: VerdictPlace | None = None
    verdict_of: int = 0
    """The incident that ``verdict`` is of."""
    host: str = ""
    hold_s: float = 4.0
    """How long an answer may be held back while nothing is new."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What one host sees."""

    first_rank: int
    host: str
    serial: int = 0
    ranks: tuple[int, ...] = ()
    hint: str = ""
    """What its own rules say: "" (nothing yet), stuck, failed, healthy, unknown."""
    is_ended: bool = False
    """Its command has ended."""
    gathered: int = 0
    """The last incident it has gathered for."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One host's evidence for an incident; patterns are packed, a rank each."""

    first_rank: int
    host: str
    incident: int
    evidence: JobEvidence
    hint: str = ""
    window: int | None = None
    """Number of the window the patterns are from."""
    patterns: tuple[bytes, ...] = ()
    baseline: tuple[bytes, ...] = ()

    def unpacked(self) -> tuple[list[RankPatterns], list[RankPatterns]]:
        """Return patterns and baseline; InputError where they are none."""
        from eroica.summarize import unpack

        return [unpack(one) for one in self.patterns], [unpack(one) for one in self.baseline]


def packed(patterns: Sequence[RankPatterns]) -> tuple[bytes, ...]:
    from eroica.summarize import pack

    return tuple(pack(one) for one in patterns)


def encode_report(report: Report) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(report), 1)


def decode_report(data: bytes) -> Report:
    """Read a report; InputError for bytes that are none, or that unpack to too much."""
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(data, _MAX_UNPACKED_BYTES)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError(f"more than {_MAX_UNPACKED_BYTES} bytes, or cut off")
        return msgspec.msgpack.decode(raw, type=Report)
    except (zlib.error, ValueError) as error:  # msgspec's errors are ValueErrors
        raise InputError(
            "a host's report cannot be read",
            f"{len(data)} bytes: {error}",
            "is eroica of one version on all hosts? eroica --version",
        ) from None


def job_secret(job_key: str) -> bytes:
    """Return the key of a job's messages: from EROICA_TOKEN or the file EROICA_TOKEN_FILE names.

    Without either it is made of the job's run id and meeting place alone: that keeps jobs apart,
    and strangers out who do not know them. InputError for a token file that others can read.
    """
    token = os.environ.get("EROICA_TOKEN", "").encode()
    name = os.environ.get("EROICA_TOKEN_FILE")
    if not token and name:
        token = _read_token(Path(name))
    return hmac.digest(token, b"eroica hosts 1|" + job_key.encode(), "sha256")


def _read_token(path: Path) -> bytes:
    try:
        status = path.stat()
        token = path.read_bytes()[:4096].strip()
    except OSError as error:
        raise InputError(
            f"EROICA_TOKEN_FILE={path} cannot be read",
            str(error),
            "name a file of yours with mode 600, or unset EROICA_TOKEN_FILE",
        ) from None
    if status.st_uid not in (os.getuid(), 0) or stat.S_IMODE(status.st_mode) & 0o077:
        raise InputError(
            f"EROICA_TOKEN_FILE={path} can be read by others",
            f"mode {stat.S_IMODE(status.st_mode):o}, owner {status.st_uid}",
            f"chmod 600 {path}",
        )
    if not token:
        raise InputError(
            f"EROICA_TOKEN_FILE={path} is empty",
            "expected a secret, the same on all hosts",
            f"openssl rand -hex 32 > {path}",
        )
    return token


def sign(key: bytes, *parts: str | int) -> str:
    """Return the proof that a message with these parts comes from who knows the key."""
    return hmac.new(key, "|".join(map(str, parts)).encode(), "sha256").hexdigest()


def is_signed(key: bytes, proof: str, *parts: str | int) -> bool:
    return hmac.compare_digest(sign(key, *parts).encode(), proof.encode())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
