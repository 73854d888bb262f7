"""Collectives that only the logs tell of: the watchdog's lines as Flight Recorder entries."""

from collections.abc import Mapping, Sequence

import msgspec

from eroica.records import CollectiveEntry, FlightRecord, JobEvidence, LogEvent, RankEvidence

_OPS = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "BROADCAST": "broadcast",
    "BARRIER": "barrier",
    "REDUCE": "reduce",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "COALESCED": "coalesced",
    "SEND": "send",
    "RECV": "recv",
}
"""OpType of c10d (torch/csrc/distributed/c10d/Work.hpp) to the recorder's names."""


def with_logs(evidence: JobEvidence) -> JobEvidence:
    """Add what watchdog lines say to ranks that have neither a recorder nor stacks.

    ``Watchdog caught collective operation timeout`` names the collective a rank waits in;
    ``last enqueued work`` how far it came. Lines without a rank are left out: they cannot be
    told apart. The group is not in the line, so sizes keep groups of one job apart only roughly.
    """
    by_rank: dict[int, list[LogEvent]] = {}
    for event in evidence.log_events:
        if event.rank is not None and event.kind in ("watchdog_timeout", "watchdog_work"):
            by_rank.setdefault(event.rank, []).append(event)
    for event in evidence.log_events:
        for rank, said in _detected(event):
            by_rank.setdefault(rank, []).append(said)
    if not by_rank:
        return evidence
    known = {r.rank: r for r in evidence.ranks}
    for rank, events in by_rank.items():
        mine = known.get(rank) or RankEvidence(rank=rank)
        if mine.flight is None and not mine.stacks:
            known[rank] = msgspec.structs.replace(mine, flight=_record(rank, events))
    ranks = tuple(known[r] for r in sorted(known))
    return msgspec.structs.replace(evidence, ranks=ranks)


def _detected(event: LogEvent) -> list[tuple[int, LogEvent]]:
    """Torch's own check (TORCH_DISTRIBUTED_DEBUG=DETAIL) names two ranks and their operations."""
    found: list[tuple[int, LogEvent]] = []
    if event.kind != "collective_mismatch":
        return found
    for side in "ab":
        rank, op = _number(event.fields, f"rank_{side}"), event.fields.get(f"op_{side}")
        if rank is not None and op:
            sequence = _number(event.fields, f"sequence_{side}") or 0
            fields = {"sequence": sequence, "op": op}
            found.append((rank, LogEvent(kind="watchdog_timeout", text="", fields=fields)))
    return found


def _record(rank: int, events: Sequence[LogEvent]) -> FlightRecord:
    entries: dict[int, CollectiveEntry] = {}
    for event in events:
        fields = event.fields
        sequence = _number(fields, "sequence")
        if event.kind == "watchdog_timeout" and sequence is not None:
            size = _number(fields, "numel_in")
            op = str(fields.get("op", ""))
            entries[sequence] = CollectiveEntry(
                record_id=sequence,
                op=_OPS.get(op, op.lower()),
                backend=str(fields.get("backend", "")).lower(),
                sequence=sequence,
                input_sizes=((size,),) if size is not None else (),
                timeout_ms=_number(fields, "timeout_ms"),
            )
        enqueued = _number(fields, "last_enqueued")
        if enqueued is not None and enqueued >= 0:
            entries.setdefault(
                enqueued, CollectiveEntry(record_id=enqueued, op="", sequence=enqueued)
            )
    return FlightRecord(
        rank=rank,
        version="log",
        groups={},
        entries=tuple(entries[s] for s in sorted(entries)),
        only_active=True,
    )


def _number(fields: Mapping[str, object], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) else None
