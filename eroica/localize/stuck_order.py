"""Collectives and sends that do not meet: two threads, groups in another order, send to send."""

import ast
from collections.abc import Sequence

from eroica.localize.collectives import is_circle
from eroica.localize.source_calls import group_of
from eroica.localize.source_flow import loops
from eroica.localize.source_lines import line_calls
from eroica.localize.stuck_peers import Peers
from eroica.localize.stuck_prose import ADVICE
from eroica.localize.stuck_suspect import Ranks, Suspect, at
from eroica.localize.stuck_view import RankView
from eroica.localize.waits import Wait
from eroica.units import rank_phrase


def two_threads(peers: Peers) -> list[Suspect]:
    """Return ranks whose background thread issues collectives beside the training thread."""
    inside: dict[int, Wait] = {}
    for view in peers.views:
        for other in view.threads[1:]:
            if other.is_distributed and other.user and view.wait is not other:
                inside[view.rank] = other
    if not inside:
        return []
    wait = next(iter(inside.values()))
    if not _is_default_group(peers, wait):
        return []
    beside = [r for r in inside if _waits_too(peers, r)]
    start = peers.start_of(wait)
    ranks: Ranks = "all" if 2 * len(inside) >= len(peers.world) else tuple(sorted(inside))
    name = wait.thread.name if wait.thread is not None else "a thread"
    return [
        Suspect(
            category="collective_order_mismatch",
            ranks=ranks,
            places=(*wait.user[:1], *start, *wait.user[1:2]),
            confidence=0.92 if beside else 0.6,
            summary=f"two threads of {rank_phrase(sorted(inside))} issue collectives on one "
            "group, in an order that differs between ranks",
            why=(
                f"thread '{name}' is in `{wait.op}` at {at(wait.user[0], peers.project)} while "
                "the training thread is in a collective of the same group",
                "the order in which the two threads enqueue is not the same on every rank",
            ),
            advice="issue all collectives of a group from one thread, or give the background "
            "thread a process group of its own (dist.new_group)",
        )
    ]


def _waits_too(peers: Peers, rank: int) -> bool:
    wait = peers.by_rank[rank].wait
    return wait is not None and wait.is_distributed


def _is_default_group(peers: Peers, wait: Wait) -> bool:
    place = wait.user[0]
    function = peers.project.enclosing(place.file, place.line)
    if function is None or place.line is None:
        return True
    calls = line_calls(function, place.line)[1]
    return all(group_of(call) is None for call in calls)


def only_point_to_point(peers: Peers) -> bool:
    """Whether every rank that waits for peers does so in a send or a receive."""
    if any(v.source == "flight" and peers.lags for v in peers.views):
        return False  # queued on the device behind something else: the roll call tells more
    return bool(peers.groups) and all(g.wait.kind == "point_to_point" for g in peers.groups)


def point_to_point(peers: Peers) -> list[Suspect]:
    """Return ranks that wait in sends and receives which do not meet."""
    waiting = [v for v in peers.views if v.wait is not None and v.wait.kind == "point_to_point"]
    if len(waiting) < 2:
        return []
    others = [v for v in peers.views if v not in waiting and v.wait is not None]
    ops = {v.wait.op for v in waiting if v.wait is not None}
    ranks = [v.rank for v in waiting]
    first = next((v.wait for v in waiting if v.wait and v.wait.user), None)
    uneven = ops == {"recv"} and _in_loops(peers, waiting)
    what = f"`{next(iter(ops))}`" if len(ops) == 1 else "sends and receives that do not meet"
    return [
        Suspect(
            category="collective_count_mismatch" if uneven else "collective_order_mismatch",
            ranks=peers.everyone(ranks) if len(ranks) != 2 else tuple(sorted(ranks)),
            places=first.user[:2] if first is not None else (),
            confidence=0.9 if len(ops) == 1 and not others else 0.6,
            summary=f"{rank_phrase(ranks)} all wait in {what}: "
            + (
                "one expects more messages than the other sends"
                if uneven
                else "each waits for the other to take the opposite part"
            ),
            why=tuple(
                f"rank {v.rank} is in `{v.wait.op}` at "
                f"{at(v.wait.user[0] if v.wait.user else None, peers.project)}"
                for v in waiting[:6]
                if v.wait is not None
            ),
            advice="tell the other side how many messages come, or take both numbers from one place"
            if uneven
            else "let one side send first and the other receive first, or post both with "
            "dist.batch_isend_irecv",
            victims=tuple(v.rank for v in others),
        )
    ]


def _in_loops(peers: Peers, waiting: Sequence[RankView]) -> bool:
    """Whether the receives stand at different places, one of them in a loop."""
    places = [v.wait.user[0] for v in waiting if v.wait is not None and v.wait.user]
    if len({(p.file, p.line) for p in places}) < 2:
        return False
    for place in places:
        function = peers.project.enclosing(place.file, place.line)
        if function is not None and place.line and loops(function, place.line):
            return True
    return False


def other_groups(peers: Peers) -> list[Suspect]:
    """Return ranks that wait at one place in collectives of different groups.

    Each group lacks the members that wait in the other one. Needs the recorder to be sure; the
    source alone gives a weak suspicion where the call's ``group`` changes from call to call.
    """
    if len(peers.groups) != 1 or len(peers.groups[0].ranks) < 2:
        return []
    if peers.lags and not is_circle(peers.lags):
        return []
    together = peers.groups[0]
    pending: dict[str, list[int]] = {}
    for rank in together.ranks:
        entries = peers.by_rank[rank].pending
        if entries:
            pending.setdefault(entries[0].group, []).append(rank)
    if len(pending) > 1:
        return [_group_order(peers, together.wait, sorted(pending.values(), key=len))]
    if not pending and _has_changing_group(peers, together.wait):
        weak = _group_order(peers, together.wait, [list(together.ranks)])
        return [
            Suspect(
                category=weak.category,
                ranks=weak.ranks,
                places=weak.places,
                confidence=0.45,
                summary=weak.summary,
                why=weak.why,
                against=("which group each rank waits in was not seen: no recorder",),
                advice=weak.advice,
            )
        ]
    return []


def _group_order(peers: Peers, wait: Wait, parts: Sequence[Sequence[int]]) -> Suspect:
    has_minority = len(parts) > 1 and len(parts[0]) < len(parts[-1])
    ranks = (
        tuple(sorted(parts[0])) if has_minority else peers.everyone([r for p in parts for r in p])
    )
    said = "; ".join(f"{rank_phrase(list(p))}" for p in parts)
    return Suspect(
        category="collective_order_mismatch",
        ranks=ranks,
        places=wait.user[:2],
        confidence=0.85,
        summary=f"ranks use two groups in different order: {said} wait in `{wait.op}` of one each",
        why=(
            f"all wait at {at(wait.user[0] if wait.user else None, peers.project)}, but in "
            "collectives of different groups, each of which lacks the members in the other",
        ),
        advice=ADVICE["collective_order_mismatch"],
        victims=tuple(r for r in peers.world if ranks != "all" and r not in ranks),
    )


def _has_changing_group(peers: Peers, wait: Wait) -> bool:
    if not wait.user or wait.user[0].line is None:
        return False
    function = peers.project.enclosing(wait.user[0].file, wait.user[0].line)
    if function is None:
        return False
    around = loops(function, wait.user[0].line)
    targets = {
        n.id
        for b in around
        if isinstance(b.node, ast.For)
        for n in ast.walk(b.node.target)
        if isinstance(n, ast.Name)
    }
    calls = line_calls(function, wait.user[0].line)[1]
    given = [group for call in calls if (group := group_of(call)) is not None]
    return any(isinstance(n, ast.Name) and n.id in targets for g in given for n in ast.walk(g))
