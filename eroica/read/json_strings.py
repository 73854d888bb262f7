"""Text of JSON strings, also of those that are not valid JSON."""

import json
import re

import msgspec

_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL = re.compile(rb"[\x00-\x1f]")


def decode_string(raw: bytes) -> tuple[str, bool]:
    """Return the text of a JSON string or bare value, and whether it was valid JSON.

    Bytes that are no UTF-8 become U+FFFD, a backslash that escapes nothing stays a backslash.
    """
    if raw[:1] != b'"':
        return raw.decode("utf-8", "replace"), True
    if not _CONTROL.search(raw):
        try:
            return msgspec.json.decode(raw, type=str), True
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    text = raw[1:-1].decode("utf-8", "replace")
    try:
        return json.loads('"' + _BAD_ESCAPE.sub(r"\\\\", text) + '"', strict=False), False
    except ValueError:
        return text, False
