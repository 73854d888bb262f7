"""Members of process groups that no single dump tells.

With more than one group, gloo's recorder (torch 2.13) names the groups but not their ranks. The
dumps of all ranks together tell most of it: the default group has every rank, and whoever
recorded a call in a group is its member. A member that never called is not seen so; pass what
is known from elsewhere (``torch.distributed.get_process_group_ranks``) as ``known``.
"""

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from eroica.records import FlightRecord

_DEFAULT = "default_pg"


def fill_groups(
    records: Mapping[int, FlightRecord],
    world_size: int,
    known: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[int, FlightRecord]:
    """Return the records with every group of their entries in ``groups``; told ones are kept."""
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
            if entry.group and not record.groups.get(entry.group)
        }
        if missing:
            record = msgspec.structs.replace(record, groups={**record.groups, **missing})
        filled[rank] = record
    return filled
