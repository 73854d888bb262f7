"""What a trace says of its job: rank, world size, backend, process groups, time base."""

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec

from eroica.read.json_strings import load_value
from eroica.read.names import LARGEST_WORLD

_RANGE_MARK = "..."
_LARGEST_NS = 2**62


@dataclass(frozen=True)
class TraceInfo:
    """``distributedInfo`` and its neighbors, each part optional."""

    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    host: str = ""
    base_ns: int = 0
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Process group name to global ranks; empty where ranks are not listed in full."""


def trace_info(metadata: dict[str, Any]) -> TraceInfo:
    """Collect what the members of the outer object tell; values of a wrong type count as absent."""
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    host, backend = metadata.get("host_name"), info.get("backend")
    return TraceInfo(
        rank=whole_number(info.get("rank")),
        world_size=whole_number(info.get("world_size")) or None,
        backend=backend if isinstance(backend, str) else "",
        host=host if isinstance(host, str) else "",
        base_ns=_base_ns(metadata.get("baseTimeNanoseconds")),
        groups=_groups(info.get("pg_config")),
    )


def whole_number(value: object) -> int | None:
    """Return a rank or a count, given as number or digits; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,8}", value):
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= LARGEST_WORLD else None  # type: ignore[operator, return-value]


def rank_list(value: object) -> tuple[int, ...]:
    """Return global ranks from a list or from text like ``[0, 1]``; empty if cut short."""
    if isinstance(value, str):
        if _RANGE_MARK in value:
            return ()
        value = [part for part in value.strip("[] ").split(",") if part.strip()]
        value = [part.strip() for part in value]
    if not isinstance(value, list):
        return ()
    ranks = [whole_number(item) for item in value]
    return () if None in ranks else tuple(rank for rank in ranks if rank is not None)


def parse_event(text: bytes) -> dict[str, Any]:
    """Return one event as a dict with ``args`` a dict; empty if it cannot be parsed."""
    try:
        event = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            event = load_value(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return {}
    if not isinstance(event, dict):
        return {}
    if not isinstance(event.get("args"), dict):
        event["args"] = {}
    return event


def span_ns(text: bytes) -> tuple[int, int] | None:
    """Return exact start and duration of one event in ns; None unless it tells both."""
    try:
        event = json.loads(text.decode("utf-8", "replace"), parse_float=Decimal, strict=False)
        start, duration = (Decimal(event[key]) * 1000 for key in ("ts", "dur"))
        if not (abs(start) < _LARGEST_NS and abs(duration) < _LARGEST_NS):
            return None  # 1e999999 would be a number of a million digits
        return round(start), round(duration)
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        return None


def _base_ns(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value):
        value = int(value)
    if isinstance(value, int) and 0 <= value < 2**63:
        return int(value)
    return 0


def _groups(config: object) -> dict[str, tuple[int, ...]]:
    if isinstance(config, dict):  # name to entry, as some forks write it
        config = [{"pg_name": name, **entry} for name, entry in config.items()
                  if isinstance(entry, dict)]  # fmt: skip
    groups = {}
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict) and "pg_name" in entry:
            groups[str(entry["pg_name"])] = rank_list(entry.get("ranks"))
    return groups
