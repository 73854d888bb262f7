"""Text of JSON strings, also of those that are not valid JSON."""

import json
import re
from typing import Any

import msgspec

_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL = re.compile(rb"[\x00-\x1f]")
# A backslash, a whole surrogate pair, half of one: only the last is in a group.
_ESCAPES = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def load_value(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Parse one JSON value as ``json.loads`` does, taking control characters in strings.

    ValueError and RecursionError go to the caller.
    """
    return json.loads(without_halves(text), strict=False)


def without_halves(text: str) -> str:
    """Return JSON text, as long as it was, with ``\\ufffd`` for each half of a surrogate pair.

    JSON may escape a half; as a string it could never be written as UTF-8 again.
    """
    return _ESCAPES.sub(lambda found: "\\ufffd" if found[1] else found[0], text)


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
        return load_value('"' + _BAD_ESCAPE.sub(r"\\\\", text) + '"'), False
    except ValueError:
        return text, False
