"""Members of process groups that no single dump tells.

With more than one group, gloo's recorder (torch 2.13) names the groups but not their ranks. The
dumps of all ranks together tell most of it: the default group has every rank, and whoever
recorded a call in a group is its member. A member that never called is not seen so; pass what
is known from elsewhere (``torch.distributed.get_process_group_ranks``) as ``known``.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from eroica.records import FlightRecord, RankEvidence

_DEFAULT = "default_pg"


def fill_groups(
    records: Mapping[int, FlightRecord],
    world_size: int,
    known: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[int, FlightRecord]:
    """Return the records with every group of their entries in ``groups``.

    What is known counts before what a dump tells, that before what is concluded.
    """
    callers: dict[str, set[int]] = defaultdict(set)
    told: dict[str, tuple[int, ...]] = dict(known or {})
    for rank, record in records.items():
        for entry in record.entries:
            callers[entry.group].add(rank)
            if entry.group_description == _DEFAULT:
                told.setdefault(entry.group, tuple(range(world_size)))
    filled = {}
    for rank, record in records.items():
        missing = {
            entry.group: told.get(entry.group) or tuple(sorted(callers[entry.group]))
            for entry in record.entries
            if entry.group and (entry.group in (known or {}) or not record.groups.get(entry.group))
        }
        if missing:
            record = msgspec.structs.replace(record, groups={**record.groups, **missing})
        filled[rank] = record
    return filled


def known_groups(ranks: Iterable[RankEvidence]) -> dict[str, tuple[int, ...]]:
    """The groups that the hook told (Setting ``process_group``: name to ranks)."""
    known: dict[str, tuple[int, ...]] = {}
    for rank in ranks:
        for setting in rank.settings:
            groups = setting.value.get("groups") if isinstance(setting.value, dict) else None
            if setting.key == "process_group" and isinstance(groups, dict):
                for name, members in groups.items():
                    if isinstance(members, (list, tuple)):
                        known[str(name)] = tuple(n for n in members if isinstance(n, int))
    return known
