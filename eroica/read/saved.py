"""Evidence that eroica itself wrote (``evidence.json`` of ``eroica collect``), read again."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from eroica.errors import InputError
from eroica.incident import compact
from eroica.read.flight_groups import fill_groups, known_groups
from eroica.read.names import LARGEST_WORLD, is_rank
from eroica.read.source import read_bytes
from eroica.records import JobEvidence, LogEvent, RankEvidence, Warning

_MAX_BYTES = 1 << 30


def read_saved(paths: Sequence[Path], warnings: list[Warning]) -> list[JobEvidence]:
    """Read evidence files; one that does not decode becomes a warning."""
    saved = []
    for path in paths:
        try:
            data, _ = read_bytes(path, _MAX_BYTES)
            evidence = msgspec.json.decode(data, type=JobEvidence)
            saved.append(believable(evidence, path, warnings))
        except (InputError, msgspec.DecodeError, RecursionError) as error:
            what = f"is no evidence that can be read: {error}"
            warnings.append(Warning(file=str(path), what=what.replace("\n", "; ")))
    return saved


def believable(evidence: JobEvidence, path: Path, warnings: list[Warning]) -> JobEvidence:
    """Return evidence without ranks that no job has, of a world no larger than any job's."""
    ranks = tuple(one for one in evidence.ranks if is_rank(one.rank))
    world_size = min(max(0, evidence.world_size), LARGEST_WORLD)
    if len(ranks) == len(evidence.ranks) and world_size == evidence.world_size:
        return evidence
    if world_size != evidence.world_size:
        world_size = max((one.rank + 1 for one in ranks), default=0)
    what = f"tells of ranks or of a world beyond {LARGEST_WORLD}: they are left out"
    warnings.append(Warning(file=str(path), what=what))
    return msgspec.structs.replace(evidence, ranks=ranks, world_size=world_size)


def merge_saved(
    evidence: JobEvidence, saved: Sequence[JobEvidence], warnings: Sequence[Warning]
) -> JobEvidence:
    """Join hosts' evidence files and what lies beside them: each rank once, the fuller wins."""
    ranks: dict[int, RankEvidence] = {}
    for one in (evidence, *saved):
        for rank in one.ranks:
            ranks[rank.rank] = _joined(ranks[rank.rank], rank) if rank.rank in ranks else rank
    first = saved[0]
    world_size = max(one.world_size for one in (evidence, *saved))
    records = {number: one.flight for number, one in ranks.items() if one.flight}
    for number, record in fill_groups(records, world_size, known_groups(ranks.values())).items():
        ranks[number] = msgspec.structs.replace(ranks[number], flight=record)
    return msgspec.structs.replace(
        first,
        ranks=tuple(ranks[number] for number in sorted(ranks)),
        world_size=world_size,
        hosts=tuple({host.host: host for one in saved for host in one.hosts}.values()),
        backend=next((one.backend for one in (*saved, evidence) if one.backend), ""),
        log_events=tuple(
            {_key(e): e for one in (*saved, evidence) for e in one.log_events}.values()
        ),
        warnings=tuple(dict.fromkeys([*warnings, *(w for one in saved for w in one.warnings)])),
    )


def _key(event: LogEvent) -> bytes:
    return compact(event)


def _joined(one: RankEvidence, other: RankEvidence) -> RankEvidence:
    """Each part from whoever has it; ``other`` first."""
    parts = {
        name: getattr(other, name) or getattr(one, name)
        for name in RankEvidence.__struct_fields__
        if name != "rank"
    }
    return RankEvidence(rank=one.rank, **parts)
