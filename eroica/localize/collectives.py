"""Match the collectives of all ranks: who came to which, who did not, who came with another.

Works on Flight Recorder entries alone, whole histories or unfinished entries only. The majority
is right, never the first rank. Point-to-point entries are left out of the roll call: a pipeline
neighbour that waits says nothing about who is to blame.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from eroica.records import CollectiveEntry, FlightRecord


@dataclass(frozen=True)
class Mismatch:
    """One sequence number of one group at which ranks came with different things."""

    group: str
    sequence: int
    kind: str
    """``op``, ``shape`` or ``dtype``."""
    majority: str
    """What most ranks came with."""
    odd: dict[int, str]
    """The others, by rank."""
    entries: dict[int, CollectiveEntry]


@dataclass(frozen=True)
class Lag:
    """Members of one group that have issued fewer collectives than the others."""

    group: str
    description: str
    front: int
    """Sequence the leading members have issued."""
    waiting: tuple[int, ...]
    behind: dict[int, int | None]
    """Rank to its last sequence, None where it has no entry."""
    entry: CollectiveEntry
    """What the front waits in."""


@dataclass(frozen=True)
class History:
    """The collectives of one group, by rank. Groups of one name but other members are others."""

    group: str
    members: tuple[int, ...]
    by_rank: dict[int, list[CollectiveEntry]]
    only_active: bool


Histories = Sequence[History]


def histories(records: Mapping[int, FlightRecord]) -> Histories:
    """Sort all ranks' entries by group; point-to-point entries are left out."""
    everyone = tuple(sorted(records))
    found: dict[tuple[str, int, int, int, int], History] = {}
    for rank, record in records.items():
        own: dict[str, History] = {}  # a job of 8,000 ranks must not hash 8,000 ranks an entry
        for entry in record.entries:
            if entry.is_p2p or entry.sequence is None:
                continue
            if entry.group not in own:
                members = record.groups.get(entry.group) or everyone
                middle = members[len(members) // 2]
                key = (entry.group, len(members), members[0], middle, members[-1])
                if key not in found:
                    found[key] = History(entry.group, members, {}, record.only_active)
                own[entry.group] = found[key]
            own[entry.group].by_rank.setdefault(rank, []).append(entry)
    return list(found.values())


def lags(known: Histories, records: Mapping[int, FlightRecord]) -> list[Lag]:
    """Return the groups in which some members with a dump have not come as far as the others."""
    found: list[Lag] = []
    for history in known:
        group, members, by_rank = history.group, history.members, history.by_rank
        last = {r: max(e.sequence or 0 for e in es) for r, es in by_rank.items()}
        front = max(last.values())
        behind: dict[int, int | None] = {
            r: last.get(r) for r in members if r in records and last.get(r) != front
        }
        # Not by ``members``: a dump may name another rank than its group holds.
        waiting = tuple(sorted(r for r in last if last[r] == front))
        leader = next(e for e in by_rank[waiting[0]] if e.sequence == front)
        active = _first_active(by_rank[waiting[0]]) or leader
        if behind and not _is_over(by_rank, waiting, front):
            found.append(Lag(group, leader.group_description, front, waiting, behind, active))
    return found


def _first_active(entries: Iterable[CollectiveEntry]) -> CollectiveEntry | None:
    return next((e for e in entries if not (e.is_retired or e.state == "completed")), None)


def _is_over(
    by_rank: dict[int, list[CollectiveEntry]], waiting: tuple[int, ...], front: int
) -> bool:
    """Whether the leading members are done with their last one: then nobody waits in the group."""
    return all(
        all(e.is_retired or e.state == "completed" for e in by_rank[r] if e.sequence == front)
        for r in waiting
    )


def absent(found: list[Lag]) -> tuple[int, ...]:
    """Return the ranks to blame for the lags: behind, and not themselves waiting elsewhere.

    A rank that is behind in one group but leads in another, and waits there for a member that
    has not come, is a victim of that member.
    """
    behind = {r for lag in found for r in lag.behind}
    held_up = {r for lag in found for r in lag.waiting if r in behind}
    blamed = behind - held_up
    return tuple(sorted(blamed or behind))


def is_circle(found: list[Lag]) -> bool:
    """Whether everyone who is behind in one group waits in another: no one is to blame alone."""
    return not {r for lag in found for r in lag.behind} - {r for lag in found for r in lag.waiting}


def mismatches(known: Histories) -> list[Mismatch]:
    """Return the first sequence of each group at which op, shape or dtype differ."""
    found: list[Mismatch] = []
    for history in known:
        group, by_rank = history.group, history.by_rank
        at: dict[int, dict[int, CollectiveEntry]] = {}
        for rank, entries in by_rank.items():
            for entry in entries:
                at.setdefault(entry.sequence or 0, {})[rank] = entry
        for sequence in sorted(at):
            mismatch = _compare(group, sequence, at[sequence])
            if mismatch is not None:
                found.append(mismatch)
                break
    return found


_UNEVEN_SHAPES = ("all_to_all", "scatter", "gather", "reduce_scatter", "send", "recv")
"""Operations whose sizes may differ between ranks by right."""


def _compare(group: str, sequence: int, entries: dict[int, CollectiveEntry]) -> Mismatch | None:
    entries = {r: e for r, e in entries.items() if e.op}
    if len(entries) < 2:
        return None
    views = [("op", {r: e.op for r, e in entries.items()})]
    if not any(word in e.op for e in entries.values() for word in _UNEVEN_SHAPES):
        views.append(("shape", {r: str(_elements(e)) for r, e in entries.items()}))
    views.append(("dtype", {r: ",".join(e.input_dtypes) for r, e in entries.items()}))
    for kind, values in views:
        if len(set(values.values())) > 1:
            majority = Counter(values.values()).most_common(1)[0][0]
            odd = {r: v for r, v in values.items() if v != majority}
            return Mismatch(group, sequence, kind, majority, odd, entries)
    return None


def _elements(entry: CollectiveEntry) -> tuple[int, ...]:
    """Number of elements of each input: views of one size and other shape do not mismatch."""
    sizes = []
    for shape in entry.input_sizes:
        product = 1
        for side in shape:
            product *= side
        sizes.append(product)
    return tuple(sizes)


def interleaved(known: Histories) -> dict[int, CollectiveEntry]:
    """Return, by rank, an entry of a second thread that issues on a group of the first.

    Only where the ranks' sequences come apart: the same two threads in the same order are no
    fault. Autograd threads issue the reducer's collectives by right.
    """
    found: dict[int, CollectiveEntry] = {}
    for history in known:
        by_rank = history.by_rank
        if not _comes_apart(by_rank):
            continue
        for rank, entries in by_rank.items():
            own = [e for e in entries if e.thread_id and "autograd" not in e.thread_name]
            threads = Counter(e.thread_id for e in own)
            if len(threads) > 1:
                rarest = min(threads, key=lambda t: threads[t])
                found[rank] = next(e for e in reversed(own) if e.thread_id == rarest)
    return found


def _comes_apart(by_rank: dict[int, list[CollectiveEntry]]) -> bool:
    ops: dict[int, set[str]] = {}
    for entries in by_rank.values():
        for entry in entries:
            ops.setdefault(entry.sequence or 0, set()).add(entry.op)
    return any(len(some) > 1 for some in ops.values())


@dataclass(frozen=True)
class Apart:
    """The first sequence number of a group at which ranks called from different places."""

    group: str
    sequence: int
    before: CollectiveEntry
    """The last collective all have in common."""
    entries: dict[int, CollectiveEntry]


def first_apart(
    known: Histories,
    site: Callable[[CollectiveEntry], Hashable],
    is_pair: Callable[[CollectiveEntry, CollectiveEntry], bool],
) -> Apart | None:
    """Return where the ranks' histories come apart, the earliest over the groups.

    ``site`` names the place of a call; ``is_pair`` says whether two places belong together, as
    the two branches of one condition do. Ranks may pair the wrong calls for a long time before
    one hangs: the last common collective is nearer to the fault than the hang.
    """
    found: list[Apart] = []
    for history in known:
        group, by_rank = history.group, history.by_rank
        if len(by_rank) < 2 or history.only_active:
            continue
        tables = {r: {e.sequence or 0: e for e in entries} for r, entries in by_rank.items()}
        common = sorted(set.intersection(*(set(t) for t in tables.values())))
        before: CollectiveEntry | None = None
        for sequence in common:
            entries = {r: t[sequence] for r, t in tables.items()}
            first = next(iter(entries.values()))
            place = site(first)
            if all(site(e) == place or is_pair(e, first) for e in entries.values()):
                before = first
            elif before is not None:
                found.append(Apart(group, sequence, before, entries))
                break
            else:
                break  # the histories begin apart: the ring has wrapped, nothing is sure
    return min(found, key=lambda a: a.before.created_ns or 0, default=None)


def timeouts_ms(records: Iterable[FlightRecord]) -> int | None:
    """Return the shortest time-out among unfinished entries."""
    values = [
        e.timeout_ms
        for record in records
        for e in record.entries
        if e.timeout_ms and not (e.is_retired or e.state == "completed")
    ]
    return min(values, default=None)
