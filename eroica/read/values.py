"""Plain values out of dumps that may hold anything: the right type within bounds, or nothing."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from eroica.read.names import is_rank

INT64 = 1 << 63
_MAX_TENSORS = 4096


def items_of(raw: object) -> Iterable[tuple[str, Any]]:
    return ((text_of(key), value) for key, value in raw.items()) if isinstance(raw, Mapping) else ()


def text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    number = int_of(value)
    return "" if number is None else str(number)


def int_of(value: object) -> int | None:
    if isinstance(value, str):
        try:
            value = int(value) if len(value) < 20 else None
        except ValueError:
            return None
    if isinstance(value, float):
        value = int(value) if abs(value) < INT64 else None  # also drops NaN
    if isinstance(value, int) and -INT64 <= value < INT64:
        return int(value)
    return None


def first_int(item: Mapping[str, Any], *keys: str) -> int | None:
    return next((number for key in keys if (number := int_of(item.get(key))) is not None), None)


def time_ns(item: Mapping[str, Any], key: str) -> int | None:
    """``KEY_ns``, or ``KEY_us`` of torch 2.2; 0 in JSON stands for none."""
    ns = int_of(item.get(f"{key}_ns"))
    if ns is None:
        us = int_of(item.get(f"{key}_us"))
        ns = us * 1000 if us is not None and abs(us) < INT64 // 1000 else None
    return ns or None


def milliseconds_ns(value: object) -> int | None:
    if isinstance(value, (int, float)) and 0 <= value < 1e12:
        return round(value * 1_000_000)
    return None


def sizes_of(raw: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(raw, list):
        return ()
    return tuple(
        tuple(n for value in size[:64] if (n := int_of(value)) is not None)
        for size in raw[:_MAX_TENSORS]
        if isinstance(size, (list, tuple))
    )


def strings_of(raw: object) -> tuple[str, ...]:
    return tuple(text_of(value) for value in raw[:_MAX_TENSORS]) if isinstance(raw, list) else ()


def ranks_of(raw: object) -> tuple[int, ...]:
    """Ranks from a list or from its text, ``"[0, 1]"``."""
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            raw = []
    return tuple(n for v in raw if is_rank(n := int_of(v))) if isinstance(raw, list) else ()
