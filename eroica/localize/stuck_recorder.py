"""What the Flight Recorder alone tells: mismatches, two threads, who did not come."""

from eroica.localize.collectives import Mismatch, absent, interleaved, mismatches
from eroica.localize.stuck_between import Candidate, candidates
from eroica.localize.stuck_peers import Peers
from eroica.localize.stuck_prose import ADVICE
from eroica.localize.stuck_suspect import Suspect, at
from eroica.localize.waits import Wait
from eroica.records import CollectiveEntry
from eroica.units import rank_phrase


def from_recorder(peers: Peers) -> list[Suspect]:
    """Return what the Flight Recorder alone tells: mismatches, and who did not come."""
    records = peers.records
    if not records:
        return []
    mixed = interleaved(peers.histories)
    if len(mixed) * 2 >= len(records):
        return [_interleaved(peers, mixed)]
    found = [_mismatch(peers, m) for m in mismatches(peers.histories)[:1]]
    if peers.lags and not found:
        found.append(_missing(peers, absent(peers.lags), peers.lags[0].entry.op))
    return found


def _interleaved(peers: Peers, mixed: dict[int, CollectiveEntry]) -> Suspect:
    """Entries of one group from two threads, one of them waiting beside the other."""
    entry = next(iter(mixed.values()))
    places = tuple(p for p in entry.frames if peers.project.contains(p.file))[:2]
    wait = Wait("collective", entry.op, places)
    return Suspect(
        category="collective_order_mismatch",
        ranks=peers.everyone(list(mixed)) if len(mixed) < len(peers.world) else "all",
        places=(*places[:1], *peers.start_of(wait), *places[1:]),
        confidence=0.7,
        summary=f"two threads of {rank_phrase(sorted(mixed))} issue collectives on one group",
        why=(
            "the recorder shows calls of two threads in one group's sequence, at places that "
            "differ between ranks",
        ),
        advice=ADVICE["collective_order_mismatch"],
    )


def _missing(peers: Peers, ranks: tuple[int, ...], op: str) -> Suspect:
    silent = [r for r in ranks if not _entries(peers, r)]
    places = [
        p
        for r in ranks
        if (last := peers.by_rank[r].last) is not None
        for p in last.frames
        if peers.project.contains(p.file)
    ][:2]
    all_silent = len(silent) == len(ranks)
    between = _between(peers, ranks)
    if between:
        return _suspected(peers, ranks, op, between)
    summary = f"{rank_phrase(ranks)} never came to the collective the others wait in ({op})"
    why = [f"the other members have issued it; {rank_phrase(ranks)} have not"]
    if all_silent:
        why.append("their recorders hold no unfinished entry at all: they issue nothing")
    return Suspect(
        category="thread_lock_deadlock" if all_silent else "polling_wait",
        ranks=tuple(sorted(ranks)),
        places=tuple(places),
        confidence=0.55,
        summary=summary,
        why=tuple(why),
        against=("what they do instead was not seen: their stacks are missing",),
        advice="take stacks of these ranks (eroica collect --pid); a held GIL, a lock or a "
        "failing device look alike in the recorder",
        action="investigate",
        victims=tuple(r for r in peers.world if r not in ranks),
    )


def _between(peers: Peers, ranks: tuple[int, ...]) -> list[Candidate]:
    """Calls that may block between the last collective of an absent rank and the missed one."""
    last = peers.by_rank[ranks[0]].last
    if last is None or not last.frames or not peers.lags:
        return []
    return candidates(last, peers.lags[0].entry, peers.project, peers.divergence.calls)


def _suspected(peers: Peers, ranks: tuple[int, ...], op: str, between: list[Candidate]) -> Suspect:
    first = between[0]
    return Suspect(
        category=first.category,
        ranks=tuple(sorted(ranks)),
        places=tuple(c.place for c in between[:4]),
        confidence=0.45,
        summary=f"{rank_phrase(ranks)} never came to the collective the others wait in ({op}); "
        f"on the way lies `{first.text}`",
        why=(
            f"the other members have issued it; {rank_phrase(ranks)} have not",
            "between their last collective and this one the program calls "
            + ", ".join(f"`{c.text}` ({at(c.place, peers.project)})" for c in between[:4])
            + ", which may wait without end",
        ),
        against=("where they are was not seen: only the source between two collectives was read",),
        advice="take stacks of these ranks to be sure (eroica collect --pid)",
        action="investigate",
        victims=tuple(r for r in peers.world if r not in ranks),
    )


def _entries(peers: Peers, rank: int) -> int:
    flight = peers.by_rank[rank].evidence.flight
    return len(flight.entries) if flight is not None else 0


def _mismatch(peers: Peers, mismatch: Mismatch) -> Suspect:
    odd = _odd(peers, mismatch)
    category = {
        "shape": "collective_shape_mismatch",
        "dtype": "collective_dtype_mismatch",
    }.get(mismatch.kind, "rank_conditional_collective")
    entry = mismatch.entries[odd[0]]
    places = tuple(p for p in entry.frames if peers.project.contains(p.file))[:2]
    theirs = ", ".join(sorted({mismatch.odd.get(r, mismatch.majority) for r in odd}))
    others = mismatch.majority if odd[0] in mismatch.odd else next(iter(mismatch.odd.values()))
    return Suspect(
        category=category,
        ranks=tuple(odd),
        places=places,
        confidence=0.65 if mismatch.kind == "op" else 0.85,
        summary=f"{rank_phrase(odd)} came to collective #{mismatch.sequence} with "
        f"{mismatch.kind} {theirs}, the others with {others}",
        why=(
            f"group {mismatch.group or '0'}, collective #{mismatch.sequence}: {theirs} on "
            f"{rank_phrase(odd)}, {others} on the other ranks",
        ),
        advice=ADVICE.get(category, ""),
        victims=tuple(r for r in peers.world if r not in odd),
    )


def _odd(peers: Peers, mismatch: Mismatch) -> list[int]:
    """The minority; among equals, who came with something else than gradients."""
    odd = sorted(mismatch.odd)
    rest = sorted(r for r in mismatch.entries if r not in mismatch.odd)
    if len(odd) == len(rest) and all(mismatch.entries[r].op == "all_reduce" for r in odd):
        return rest
    return odd
