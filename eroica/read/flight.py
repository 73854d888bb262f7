"""Flight Recorder dumps (pickle or JSON, torch 2.2 to 2.13, NCCL and gloo) -> FlightRecord.

Versions: torch 2.2 writes a bare list of entries; 1.4 (2.3) to 2.10 (2.13) a dict. Fields come
and go between them, so each is looked for under every name it has had. What gloo does otherwise
is put right here: its ``pg_config`` names the group with an empty key, and its entries stay
``scheduled`` for ever (``is_retired`` is the sign of completion). Layout: torch/csrc/distributed/
c10d/FlightRecorderDetail.hpp.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eroica.errors import InputError
from eroica.read import names
from eroica.read.repair import load_json
from eroica.read.source import read_bytes
from eroica.read.unpickle import load_plain
from eroica.read.values import (
    first_int,
    int_of,
    items_of,
    milliseconds_ns,
    ranks_of,
    sizes_of,
    strings_of,
    text_of,
    time_ns,
)
from eroica.records import CollectiveEntry, FlightRecord, Place, Warning

MAX_BYTES = 1 << 30
"""A dump of 20 000 entries with stacks has some 20 MB."""
_MAX_FRAMES = 512
_SEND = re.compile(r"^send (\d+)->(\d+)$")
_RECV = re.compile(r"^recv (\d+)<-(\d+)$")
_NEXT = "collect it again: eroica collect -o DIR"


def read_flight(path: str | Path, *, rank: int | None = None) -> FlightRecord:
    """Read one rank's dump. The rank is the one asked for, else the one the file name tells.

    A damaged dump gives its whole entries and a warning. InputError when there is nothing in it
    or it is no dump; RefusedPickle when it asks to run code.
    """
    path = Path(path)
    if rank is None:
        rank = names.rank_of(path, trailing=True)
    data, defects = read_bytes(path, MAX_BYTES)
    return parse_flight(data, rank=rank, name=str(path), defects=defects)


def parse_flight(
    data: bytes,
    *,
    rank: int | None = None,
    name: str = "the dump",
    defects: Sequence[str] = (),
) -> FlightRecord:
    """Read a dump from memory; see read_flight. ``defects`` are those known of its source."""
    if not data.strip():
        raise InputError(f"{name} is empty", "a Flight Recorder dump was expected", _NEXT)
    defects = list(defects)
    value, is_cut = _load(data, name, defects)
    if isinstance(value, list):  # torch 2.2
        value = {"version": "", "entries": value}
    if not isinstance(value, Mapping) or not ("entries" in value or "pg_status" in value):
        found = "; ".join(defects) or "it has neither entries nor pg_status"
        raise InputError(f"{name} is no Flight Recorder dump", found, _NEXT)
    entries = _entries(value.get("entries"), defects, is_cut=is_cut)
    if defects and not entries and not value.get("pg_status"):
        raise InputError(f"nothing can be read from {name}", "; ".join(defects), _NEXT)
    groups, descriptions = _groups(value.get("pg_config"), entries)
    status = _status(value.get("pg_status"))
    return FlightRecord(
        rank=rank,
        version=text_of(value.get("version")),
        groups=groups,
        group_descriptions=descriptions,
        status=status,
        entries=entries,
        only_active=_is_only_active(entries, status),
        warnings=tuple(Warning(file=name, what=defect) for defect in defects),
    )


def _load(data: bytes, name: str, defects: list[str]) -> tuple[object, bool]:
    """What the dump holds, and whether its end is missing."""
    if data.lstrip()[:1] in (b"{", b"["):
        loaded = load_json(data)
        defects.extend(loaded.defects)
        return loaded.value, loaded.is_cut
    pickle = load_plain(data, name)
    rest = len(data) - pickle.num_bytes
    if pickle.defect:
        defects.append(f"{pickle.defect}; what came before it is used")
    elif rest:
        defects.append(
            f"{rest} more bytes follow the dump at byte {pickle.num_bytes}; they are not read. "
            "Did two ranks write to the same path?"
        )
    return pickle.value, bool(pickle.defect)


# --- entries ----------------------------------------------------------------------------------


def _entries(raw: object, defects: list[str], *, is_cut: bool) -> tuple[CollectiveEntry, ...]:
    """The whole entries. Half of one would lie: without ``retired`` it looks unfinished."""
    if not isinstance(raw, list):
        return ()
    places: dict[tuple[Any, ...], Place] = {}
    entries: list[CollectiveEntry] = []
    num_dropped = 0
    for number, item in enumerate(raw):
        is_last = is_cut and number == len(raw) - 1
        if _is_whole(item) and not (is_last and not _has_keys_of(item, raw[0], number)):
            entries.append(_entry(item, len(entries), places))
        else:
            num_dropped += 1
    if num_dropped:
        defects.append(f"{num_dropped} of {len(raw)} entries are incomplete and dropped")
    return tuple(entries)


def _is_whole(item: object) -> bool:
    return isinstance(item, Mapping) and "profiling_name" in item and "state" in item


def _has_keys_of(item: Mapping[str, Any], first: object, number: int) -> bool:
    """Whether the last entry of a cut dump has all that the first has (an only one cannot tell)."""
    return number > 0 and isinstance(first, Mapping) and first.keys() <= item.keys()


def _entry(
    item: Mapping[str, Any], index: int, places: dict[tuple[Any, ...], Place]
) -> CollectiveEntry:
    profiling_name = text_of(item["profiling_name"])
    backend, _, op = profiling_name.rpartition(":")
    group, description = _process_group(item)
    source, destination = _ends(op)
    is_p2p = bool(item.get("is_p2p", source is not None))
    record_id = int_of(item.get("record_id"))
    return CollectiveEntry(
        record_id=index if record_id is None else record_id,
        op=op,
        backend=backend,
        group=group,
        group_description=description,
        group_id=text_of(item.get("pg_id")),
        sequence=first_int(item, "collective_seq_id", "seq_id"),
        p2p_sequence=int_of(item.get("p2p_seq_id")),
        op_id=int_of(item.get("op_id")),
        is_p2p=is_p2p,
        source_rank=source,
        destination_rank=destination,
        input_sizes=sizes_of(item.get("input_sizes")),
        output_sizes=sizes_of(item.get("output_sizes")),
        input_dtypes=strings_of(item.get("input_dtypes")),
        output_dtypes=strings_of(item.get("output_dtypes")),
        created_ns=time_ns(item, "time_created"),
        started_ns=time_ns(item, "time_discovered_started"),
        completed_ns=time_ns(item, "time_discovered_completed"),
        duration_ns=milliseconds_ns(item.get("duration_ms")),
        state=text_of(item["state"]),
        is_retired=bool(item.get("retired", False)),
        timeout_ms=int_of(item.get("timeout_ms")),
        frames=_frames(item.get("frames"), places),
        thread_name=text_of(item.get("thread_name")),
        thread_id=text_of(item.get("thread_id")),
    )


def _process_group(item: Mapping[str, Any]) -> tuple[str, str]:
    """(name, description); torch 2.2 and 2.3 know only the local id."""
    pair = item.get("process_group")
    if isinstance(pair, (list, tuple)) and pair:
        return text_of(pair[0]), text_of(pair[1]) if len(pair) > 1 else ""
    return text_of(item.get("pg_id")), ""


def _ends(op: str) -> tuple[int | None, int | None]:
    """(source, destination) group ranks of a send or receive."""
    if found := _SEND.match(op):
        return int(found[1]), int(found[2])
    if found := _RECV.match(op):
        return int(found[2]), int(found[1])
    return None, None


def _frames(raw: object, places: dict[tuple[Any, ...], Place]) -> tuple[Place, ...]:
    """Frames share Place objects: thousands of entries come from a few call sites."""
    if not isinstance(raw, list):
        return ()
    frames = []
    for frame in raw[:_MAX_FRAMES]:
        if not isinstance(frame, Mapping):
            continue
        key = (
            text_of(frame.get("filename")),
            int_of(frame.get("line")),
            text_of(frame.get("name")),
        )
        place = places.get(key)
        if place is None:
            place = places[key] = Place(name=key[2], file=key[0] or None, line=key[1])
        frames.append(place)
    return tuple(frames)


# --- groups and status ------------------------------------------------------------------------


def _groups(
    raw: object, entries: tuple[CollectiveEntry, ...]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    ranks: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    for key, config in items_of(raw):
        if isinstance(config, Mapping):
            ranks[key] = ranks_of(config.get("ranks"))
            descriptions[key] = text_of(config.get("desc"))
    for entry in entries:
        if entry.group and entry.group_description:
            descriptions.setdefault(entry.group, entry.group_description)
    if "" in ranks:  # gloo
        _name_the_nameless(ranks, descriptions, entries)
    return ranks, descriptions


def _name_the_nameless(
    ranks: dict[str, tuple[int, ...]],
    descriptions: dict[str, str],
    entries: tuple[CollectiveEntry, ...],
) -> None:
    """Give gloo's group '' the name its entries use, where that is beyond doubt.

    With several groups torch 2.13 writes no ranks for it, so it tells nothing (``fill_groups``).
    """
    if not ranks[""]:
        del ranks[""], descriptions[""]
        return
    unknown = dict.fromkeys(e.group for e in entries if e.group and e.group not in ranks)
    if len(unknown) > 1:  # all of them were written under '', the last one stayed
        return
    name = next(iter(unknown), "0")
    nameless = ranks.pop("")
    if name not in ranks:
        ranks[name] = nameless
    described = descriptions.pop("", "")
    descriptions[name] = descriptions.get(name) or described or "default_pg"


def _status(raw: object) -> dict[str, dict[str, int]]:
    """Local group id -> {last_enqueued, last_started, last_completed}; JSON has strings."""
    status: dict[str, dict[str, int]] = {}
    for key, counters in items_of(raw):
        values = {name.removesuffix("_collective"): int_of(n) for name, n in items_of(counters)}
        status[key] = {name: n for name, n in values.items() if n is not None}
    return status


def _is_only_active(
    entries: tuple[CollectiveEntry, ...], status: dict[str, dict[str, int]]
) -> bool:
    """Whether finished calls were left out (TORCH_INCLUDE_ONLY_ACTIVE)."""
    if any(entry.is_retired or entry.state == "completed" for entry in entries):
        return False
    if any(counters.get("last_completed", 0) > 0 for counters in status.values()):
        return True
    return bool(entries) and entries[0].record_id > 0
