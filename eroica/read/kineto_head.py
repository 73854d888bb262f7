"""Telling a trace from its first bytes, and its rank, without reading it.

Since 2025 all metadata stand before the events; before, some stand behind them, so the end is
looked at too where the front does not tell.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eroica.read.kineto_info import whole_number
from eroica.read.kineto_repair import salvage_metadata
from eroica.read.names import rank_of
from eroica.read.opening import ByteStream, foreign_format

HEAD_BYTES = 1 << 18
_LARGEST_UNPACKED_TO_END = 1 << 26
_OBJECT = re.compile(
    rb'"traceEvents"\s*:\s*\[|\A\s*\{\s*"schemaVersion"\s*:|"distributedInfo"\s*:\s*\{'
)
_LIST = re.compile(rb"\A\s*\[\s*\{")
_PHASE, _TIME = re.compile(rb'"ph"\s*:\s*"[A-Za-z]"'), re.compile(rb'"ts"\s*:')
_INFO = b'"distributedInfo"'
_BOM = b"\xef\xbb\xbf"
_WHERE = re.compile(rb'"host_name"\s*:\s*"([^"\\]{1,256})"')


@dataclass(frozen=True)
class TraceHead:
    """What a glance at a trace tells. A bare list of events has no metadata at all."""

    path: str
    rank: int | None
    world_size: int | None
    backend: str = ""
    host: str = ""
    is_list: bool = False


def sniff(path: str | Path) -> TraceHead | None:
    """Return what the front (and, if need be, the end) tells; None if it is no trace.

    Reads at most 256 kB from the front, and as much from the end where the rank is not told
    before it (compressed files: only up to 64 MB). InputError if the file cannot be opened.
    """
    with ByteStream(path) as stream:
        if foreign_format(stream.head):
            return None
        head = stream.read(HEAD_BYTES).removeprefix(_BOM)
        is_list = bool(_LIST.match(head) and _PHASE.search(head) and _TIME.search(head))
        is_object = head.lstrip()[:1] == b"{" and _OBJECT.search(head) is not None
        if not (is_list or is_object):
            return None
        found = _told_info(head)
        if "rank" not in found and is_object:
            found = _told_info(_tail(stream)) | found
    rank = whole_number(found["rank"]) if "rank" in found else rank_of(Path(path))
    host = _WHERE.search(head)
    return TraceHead(
        path=str(path),
        rank=rank,
        world_size=whole_number(found.get("world_size")) or None,
        backend=found.get("backend", ""),
        host=host[1].decode("utf-8", "replace") if host else "",
        is_list=is_list,
    )


def _told_info(text: bytes) -> dict[str, Any]:
    start = text.find(_INFO)
    info: dict[str, Any] = {}
    if start >= 0:
        info = salvage_metadata(text[start:]).get("distributedInfo", {})
    return info


def _tail(stream: ByteStream) -> bytes:
    """Return the last bytes of the file, empty where they are too far to unpack."""
    if stream.kind == "plain":
        return stream.read_end(HEAD_BYTES)
    tail = b""
    while stream.num_bytes < _LARGEST_UNPACKED_TO_END:
        piece = stream.read(4 * HEAD_BYTES)
        if not piece:
            return tail
        tail = (tail + piece)[-HEAD_BYTES:]
    return b""
