"""JSON that may be cut off, doubled or not quite JSON, for the small files (dumps, stacks).

Traces have a scanner of their own; this one parses into Python objects.
"""

import json
from collections import deque
from dataclasses import dataclass
from typing import Any

from eroica.errors import InputError
from eroica.read.json_strings import without_halves

_MAX_TRIES = 64
_MAX_NESTING = 200


@dataclass(frozen=True)
class Loaded:
    """What could be read and what was wrong, a sentence each."""

    value: Any
    defects: tuple[str, ...] = ()
    is_cut: bool = False
    """The document does not end properly: the last of its parts may be incomplete."""


def load_json(data: bytes, name: str = "the file") -> Loaded:
    """Parse the first JSON document of ``data``; a cut-off one is closed where it was whole.

    Bytes that are not UTF-8 are replaced, control characters and NaN taken. InputError when
    nothing can be read.
    """
    try:
        text, defects = data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        text = data.decode("utf-8-sig", "replace")
        defects = [f"byte {error.start} is not UTF-8"]
    text = without_halves(text.lstrip())
    decoder = json.JSONDecoder(strict=False)
    is_cut = False
    try:
        value, end = decoder.raw_decode(text)
    except json.JSONDecodeError as error:
        value, is_cut = _closed(text, error.pos, decoder), True
        where = len(text[: error.pos].encode("utf-8", "replace"))
        defects.append(f"broken at byte {where} ({error.msg}); what came before it is used")
    except (RecursionError, ValueError) as error:  # nested beyond reason; a number too long
        raise InputError(
            f"{name} cannot be read as JSON", str(error), next_step="write the file again"
        ) from None
    else:
        if text[end:].strip(" \r\n\t\0"):
            where = len(text[:end].encode("utf-8", "replace"))
            defects.append(
                f"more data follows the first document at byte {where}; it is not read. "
                "Did two ranks write to the same path?"
            )
    return Loaded(value, tuple(defects), is_cut)


def _closed(text: str, position: int, decoder: json.JSONDecoder) -> object:
    """Cut before ``position`` at a comma and close what is open; None if nothing is whole."""
    for cut, closers in _cuts(text, position):
        try:
            return decoder.decode(text[:cut] + closers)
        except (json.JSONDecodeError, RecursionError, ValueError):
            continue
    return None


def _cuts(text: str, position: int) -> list[tuple[int, str]]:
    """Places outside strings where the text can be ended, last first, with what closes it."""
    cuts: deque[tuple[int, str]] = deque(maxlen=_MAX_TRIES)
    open_brackets: list[str] = []
    in_string = escaped = False
    for index, char in enumerate(text[: position + 1]):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            open_brackets.append("}" if char == "{" else "]")
            if len(open_brackets) > _MAX_NESTING:
                break
            cuts.append((index + 1, "".join(reversed(open_brackets))))
        elif char in "}]" and open_brackets:
            open_brackets.pop()
            cuts.append((index + 1, "".join(reversed(open_brackets))))
        elif char == ",":
            cuts.append((index, "".join(reversed(open_brackets))))
    return list(reversed(cuts))
