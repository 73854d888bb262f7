"""Getting at what is left of a damaged event or header by its known fields.

The commonest damage is a quote, a backslash or a control byte that the profiler did not escape
(pytorch#146900, kineto#336): the values around it are whole and their keys are known.
"""

import json
import re
from typing import Any

from eroica.read.json_strings import decode_string

# An event's end and the next one's start, or a start alone: Kineto writes ph first.
_NEXT = re.compile(rb'\}\s*,\s*(?=\{\s*")|(?=\{\s*"ph"\s*:)|\}\s*(?=\]\s*(?:\}|,\s*"\w+"\s*:))')
_LAST = re.compile(rb"\}\s{0,64},?\s{0,64}\]\s{0,64}\}?\s{0,64}\Z")
_KEY = rb'"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)"\s*:'
_TEXT = {key: re.compile(rb'"%s"\s*:\s*(?=")' % key.encode()) for key in ("name", "cat")}
# Bounded: unbounded spaces would be tried in every split.
_STRING = re.compile(
    rb'"(.*?)"\s{0,64}(?:,\s{0,64}(?=%s)|\}\s{0,64},?\s{0,64}\Z)' % _KEY, re.DOTALL
)
_SCALAR = {
    key: re.compile(rb'"%s"\s*:\s*("[^"\\]*"|-?[0-9][0-9.eE+-]*)' % key.encode())
    for key in ("ph", "pid", "tid", "ts", "dur")
}
_COUNT = {
    key: re.compile(rb'"%s"\s*:\s*([0-9]+)' % key.encode())
    for key in ("correlation", "Python id", "Python parent id")
}
_INFO = {
    "rank": re.compile(rb'"rank"\s*:\s*"?([0-9]{1,7})\b'),
    "world_size": re.compile(rb'"world_size"\s*:\s*"?([0-9]{1,7})\b'),
    "backend": re.compile(rb'"backend"\s*:\s*"([a-z0-9:,]*)"'),
}
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?([0-9]{1,19})')


def next_event(buffer: bytearray, start: int, end: int) -> int | None:
    """Return where the event after the damaged one at ``start`` begins (or the closing bracket)."""
    found = _NEXT.search(buffer, start + 1, end)
    return found.end() if found else None


def last_event(buffer: bytearray, start: int, end: int) -> int | None:
    """Return where the damaged event at ``start`` ends, if what is left is it and brackets."""
    found = _LAST.search(buffer, max(start, end - 4096), end)
    return found.start() + 1 if found else None


def repair_event(raw: bytes) -> bytes | None:
    """Return a clean JSON event made of the known fields, None unless all that matter are there."""
    if raw.count(b'"ts"') != 1:
        return None  # pieces of several events written over each other
    scalars = {key: found[1] for key, p in _SCALAR.items() if (found := p.search(raw))}
    name = _text(raw, "name")
    if scalars.get("ph") != b'"X"' or name is None or not {"ts", "dur"} <= scalars.keys():
        return None
    category = _text(raw, "cat")
    event = {
        "ph": "X",
        "cat": "" if category is None else decode_string(b'"' + category + b'"')[0],
        "name": decode_string(b'"' + name + b'"')[0],
    }
    parts = [json.dumps(event)[1:-1]]
    parts += [f'"{key}": {scalars[key].decode()}' for key in ("pid", "tid", "ts", "dur")
              if key in scalars]  # fmt: skip
    counts = [
        f'"{key}": {found[1].decode()}' for key, p in _COUNT.items() if (found := p.search(raw))
    ]
    parts.append(f'"args": {{{", ".join(counts)}}}')
    return f"{{{', '.join(parts)}}}".encode()


def _text(raw: bytes, key: str) -> bytes | None:
    """Return the text of a key's string, whatever quotes are in it.

    What ends a string that begins later would end the first one too, so only that is looked at.
    """
    begin = _TEXT[key].search(raw)
    found = _STRING.match(raw, begin.end()) if begin else None
    return found[1] if found else None


def salvage_metadata(raw: bytes) -> dict[str, Any]:
    """Return what a damaged header or trailer still tells of rank, world size and time base."""
    info: dict[str, Any] = {}
    for key, pattern in _INFO.items():
        if found := pattern.search(raw):
            info[key] = found[1].decode() if key == "backend" else int(found[1])
    metadata: dict[str, Any] = {"distributedInfo": info} if info else {}
    if base := _BASE.search(raw):
        metadata["baseTimeNanoseconds"] = int(base[1])
    return metadata
