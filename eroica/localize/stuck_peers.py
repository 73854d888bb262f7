"""Ranks that wait for each other: in different collectives, sends, two threads, a store."""

import ast
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from eroica.localize.collectives import Apart, first_apart, histories, lags
from eroica.localize.locks import thread_starts
from eroica.localize.source import Project
from eroica.localize.source_calls import STATE_COLLECTIVES, collective_kind
from eroica.localize.source_depend import FILE, LOCAL, RANK, REGISTERED
from eroica.localize.source_lines import line_calls
from eroica.localize.stuck_divergence import Divergence, sample
from eroica.localize.stuck_reason import RANK_LIKELY, Group, Reason, category_of
from eroica.localize.stuck_suspect import Ranks, Suspect, at
from eroica.localize.stuck_view import RankView, entry_wait, innermost
from eroica.localize.waits import Wait, short
from eroica.records import CollectiveEntry, Place
from eroica.units import rank_phrase


def groups_of(views: Iterable[RankView]) -> list[Group]:
    """Group the ranks that wait for peers by operation and place; the largest first."""
    found: dict[tuple[str, tuple[tuple[str, str, int], ...]], list[RankView]] = {}
    for view in views:
        if view.wait is not None and view.wait.is_distributed:
            found.setdefault((view.wait.op, view.wait.path), []).append(view)
    grouped = [
        Group(tuple(v.rank for v in some), some[0].wait) for some in found.values() if some[0].wait
    ]
    return sorted(grouped, key=lambda g: -len(g.ranks))


class Peers:
    """Rules for ranks that wait for each other."""

    def __init__(self, project: Project, divergence: Divergence, views: Sequence[RankView]) -> None:
        self.project, self.divergence, self.views = project, divergence, views
        self.by_rank = {v.rank: v for v in views}
        self.groups = groups_of(views)
        self.world = tuple(v.rank for v in views)
        self.records = {v.rank: v.evidence.flight for v in views if v.evidence.flight is not None}
        self.histories = histories(self.records)
        self.lags = lags(self.histories, self.records)
        self.apart_at = first_apart(self.histories, self._site, self._is_pair)

    def everyone(self, ranks: Sequence[int]) -> Ranks:
        return "all" if set(ranks) == set(self.world) else tuple(sorted(ranks))

    # two groups at different places
    def diverged(self) -> list[Suspect]:
        """Return what the source says of ranks at different collectives, the best reason first.

        Compared are the places where the ranks hang and, where the recorder has a history, those
        where their calls came apart first.
        """
        early = self._earlier_groups()
        reasons = [replace(r, is_early=True) for r in self._reasons(early)]
        certain = max((r.score for r in reasons), default=0.0)
        fade = 0.8 if certain >= 0.6 else 1.0
        reasons += [replace(r, score=r.score * fade) for r in self._reasons(self.groups)]
        reasons.sort(key=lambda r: -r.score)
        found: list[Suspect] = []
        seen: set[tuple[str, str | None, int | None]] = set()
        for reason in reasons:
            key = _key(reason)
            if key not in seen and reason.score >= 0.2:
                seen.add(key)
                alike = [
                    r
                    for r in reasons
                    if _key(r) == key and r.score >= 0.2 and r.is_early == reason.is_early
                ]
                found.append(self._suspect(reason, alike))
        return found[:4]

    def _reasons(self, groups: Sequence[Group]) -> list[Reason]:
        return [
            self._checked(reason)
            for waiter in groups
            for skipper in groups
            if waiter is not skipper
            for reason in self.divergence.reasons(waiter, skipper)
        ]

    def _earlier_groups(self) -> list[Group]:
        """Ranks by where they called from when their histories first came apart."""
        if self.apart_at is None:
            return []
        alike: dict[object, list[int]] = {}
        for rank, entry in self.apart_at.entries.items():
            alike.setdefault(self._site(entry), []).append(rank)
        entries = self.apart_at.entries
        groups = [
            Group(tuple(ranks), entry_wait(entries[ranks[0]], self.project))
            for ranks in alike.values()
        ]
        now = {(g.wait.path, g.ranks) for g in self.groups}
        is_news = any((g.wait.path, g.ranks) not in now for g in groups)
        return groups if is_news and all(g.wait.user for g in groups) else []

    def _site(
        self, entry: CollectiveEntry
    ) -> tuple[str, tuple[tuple[str | None, int | None], ...]]:
        user = (p for p in entry.frames if self.project.contains(p.file))
        return entry.op, tuple((p.file, p.line) for p in itertools.islice(user, 2))

    def _is_pair(self, one: CollectiveEntry, other: CollectiveEntry) -> bool:
        """Whether two calls of one operation stand in the two branches of one condition."""
        if one.op != other.op:
            return False
        a = next((p for p in one.frames if self.project.contains(p.file)), None)
        b = next((p for p in other.frames if self.project.contains(p.file)), None)
        if a is None or b is None:
            return True
        return self.divergence.in_branches(a, b)

    def _checked(self, reason: Reason) -> Reason:
        """Weaken a reason the recorder contradicts: the skipper issued no fewer of that call."""
        place = reason.waiter.wait.user[:1]
        if not place:
            return reason
        waiting = [self._count(r, place[0]) for r in sample(reason.waiter.ranks)]
        skipping = [self._count(r, place[0]) for r in sample(reason.skipper.ranks)]
        known = [c for c in waiting if c] and all(c is not None for c in skipping)
        if known and min(c for c in skipping if c is not None) > max(c or 0 for c in waiting):
            return replace(reason, score=reason.score * 0.5)
        return reason

    def _count(self, rank: int, place: Place) -> int | None:
        """How often a rank called a collective from a place; None without a history."""
        flight = self.by_rank[rank].evidence.flight
        if flight is None or flight.only_active or not flight.entries:
            return None
        if not any(e.frames for e in flight.entries):
            return None
        return sum(
            any(f.line == place.line and f.file == place.file for f in e.frames)
            for e in flight.entries
        )

    def _suspect(self, reason: Reason, alike: list[Reason]) -> Suspect:
        category = category_of(reason)
        waiter, skipper = reason.waiter, reason.skipper
        ranks = self._guilty(reason, category, alike)
        inner = waiter.wait.user[0] if waiter.wait.user else reason.place
        if reason.kind == "condition" and self._is_state_collective(waiter.wait):
            category = "checkpoint_collective_on_one_rank"
        summary, why = self._prose(reason, category, inner)
        victims = () if ranks == "all" else tuple(r for r in self.world if r not in ranks)
        return Suspect(
            category=category,
            ranks=ranks,
            places=self._places(reason, category, inner),
            confidence=_confidence(reason),
            summary=summary,
            why=tuple(why),
            against=self._against(reason),
            advice=_FORWARD_ADVICE if reason.kind == "forward" else ADVICE.get(category, ""),
            victims=victims if skipper.ranks else (),
        )

    def _guilty(self, reason: Reason, category: str, alike: list[Reason]) -> Ranks:
        waiter = sorted({r for a in alike for r in a.waiter.ranks})
        skipper = sorted({r for a in alike for r in a.skipper.ranks})
        if category == "uneven_inputs":
            return "all"
        if reason.kind == "dispatch":
            return tuple(waiter)
        if reason.kind == "loop" and REGISTERED in reason.tags:
            return tuple(waiter)
        if reason.kind != "condition":
            return tuple(skipper)
        if RANK in reason.tags and reason.score >= RANK_LIKELY:
            return tuple(waiter)
        if FILE in reason.tags:
            return tuple(waiter)
        return tuple(skipper if len(skipper) < len(waiter) else waiter)

    def _places(self, reason: Reason, category: str, inner: Place) -> tuple[Place, ...]:
        mine = reason.skipper.wait.user[:1]
        if reason.kind in ("condition", "dispatch"):
            return (inner, reason.place)
        if reason.kind == "loop" and REGISTERED in reason.tags:
            return (inner, reason.place)
        if reason.kind == "handler":
            covered = [
                p
                for p in reason.waiter.wait.user
                if short(p.name) == short(reason.place.name) and p.file == reason.place.file
            ]
            return (reason.place, *(covered or [inner]))
        if reason.kind in ("loop", "while", "break") and not reason.repeats:
            return (reason.place, *mine, inner)
        if reason.kind == "forward" and not reason.text:
            return (inner, *mine)
        del category
        return (reason.place, inner, *mine)

    def _is_state_collective(self, wait: Wait) -> bool:
        """Whether the wait is inside a state dictionary or checkpoint call."""
        if wait.op in STATE_COLLECTIVES or "state_dict" in wait.op or "checkpoint" in wait.op:
            return True
        if not wait.user or wait.user[0].line is None:
            return False
        function = self.project.enclosing(wait.user[0].file, wait.user[0].line)
        if function is None:
            return False
        for call in line_calls(function, wait.user[0].line)[1]:
            known = collective_kind(call, function.module)
            if known is not None and known[1] == "state":
                return True
        library = wait.thread.frames if wait.thread is not None else ()
        return any("distributed/checkpoint" in (p.file or "") for p in library)

    def _prose(self, reason: Reason, category: str, inner: Place) -> tuple[str, list[str]]:
        waiter, skipper = reason.waiter, reason.skipper
        they, others = rank_phrase(waiter.ranks), rank_phrase(skipper.ranks)
        waits = verb(waiter.ranks, "wait")
        never = f"never {verb(skipper.ranks, 'enter')}"
        op, where = waiter.wait.op, at(inner, self.project)
        here = at(reason.place, self.project)
        if reason.is_early and self.apart_at is not None:
            came = self.apart_at
            return self._early_prose(reason, came, inner)
        why = [
            f"{they} {waits} in `{op}` at {where}",
            f"{others} {'is' if len(skipper.ranks) == 1 else 'are'} in `{skipper.wait.op}` at "
            f"{at(skipper.wait.user[0] if skipper.wait.user else None, self.project)}",
        ]
        if reason.kind == "condition":
            summary = f"{they} {waits} in a {op} that {others} {never}"
            why.append(f"the call stands under `if {reason.text}` at {here}")
            why += self._group_hint(waiter.wait)
        elif reason.kind == "guard":
            summary = f"{others} passed the {op} that {they} {waits} in, by `{reason.jump}`"
            why.append(f"`if {reason.text}` at {here} leads to `{reason.jump}` before the call")
        elif reason.kind == "handler":
            summary = f"{others} swallowed an error and went past the {op} that {they} {waits} in"
            why.append(f"`except {reason.text}` at {here} lets the program go on ({reason.jump})")
        elif reason.kind == "dispatch" or REGISTERED in reason.tags:
            summary = f"{they} {waits} in a {op} that {others} {never}"
            why.append(f"`{reason.text}` at {here} is not the same on every rank")
        elif reason.kind == "break":
            summary = f"{others} left the loop in which {they} still {waits}: `{reason.text}`"
            why.append(f"`if {reason.text}` at {here} leads to `{reason.jump}` out of the loop")
        elif category == "collective_count_mismatch":
            summary = f"ranks issue different numbers of {op}: {others} fewer than {they}"
            why.append(f"the call stands in `for ... in {reason.text}` at {here}, once an item")
        elif category == "uneven_inputs":
            summary = f"ranks run out of data at different steps: {others} first"
            why.append(f"the loop over `{reason.text}` at {here} is left by {others} only")
        elif reason.kind == "while":
            summary = f"{others} left the loop `while {reason.text}` in which {they} still {waits}"
            why.append(f"the condition at {here} is decided by each rank for itself")
        else:
            summary = f"the backward pass of {others} needed fewer all-reduces than that of {they}"
            if reason.text:
                why.append(
                    f"the model runs a part only if `{reason.text}` at {here}: where it does not, "
                    "those parameters get no gradient and their bucket is not reduced"
                )
        if reason.kind != "handler" and reason.tags & LOCAL and reason.text:
            names = ", ".join(sorted(reason.tags & LOCAL))
            why.append(f"`{reason.text}` depends on: {names}, so ranks may decide differently")
        return summary, why

    def _early_prose(self, reason: Reason, came: Apart, inner: Place) -> tuple[str, list[str]]:
        """Of a desync that came before the hang: the ranks paired the wrong calls since then."""
        they, others = rank_phrase(reason.waiter.ranks), rank_phrase(reason.skipper.ranks)
        condition = f" (`{reason.text}`)" if reason.text else ""
        summary = f"{others} did not make the {reason.waiter.wait.op} of {they}{condition}"
        other = innermost(reason.skipper.wait)
        why = [
            f"the ranks' collectives agree up to #{came.before.sequence} ({came.before.op})",
            f"#{came.sequence}: {they} called from {at(inner, self.project)}, {others} from "
            f"{at(other, self.project)}; since then wrong calls are paired",
            f"`{reason.text}` at {at(reason.place, self.project)} decides it",
        ]
        return summary, why

    def _group_hint(self, wait: Wait) -> list[str]:
        """Say so where the function's other collectives name a group and this one does not."""
        if not wait.user or wait.user[0].line is None:
            return []
        function = self.project.enclosing(wait.user[0].file, wait.user[0].line)
        if function is None:
            return []
        mine = line_calls(function, wait.user[0].line)[1]
        if any(k.arg == "group" for c in mine for k in c.keywords):
            return []
        for call in (n for n in function.own_nodes if isinstance(n, ast.Call)):
            if collective_kind(call, function.module) and any(
                k.arg == "group" for k in call.keywords
            ):
                return [
                    "other collectives of that function name a group; this one runs on all ranks"
                ]
        return []

    def _against(self, reason: Reason) -> tuple[str, ...]:
        found = []
        if reason.score < 0.6:
            found.append("the source allows other readings; the condition's values were not seen")
        silent = [v.rank for v in self.views if v.wait is None]
        if silent:
            found.append(f"where {rank_phrase(silent)} stands was not seen")
        return tuple(found)

    def apart(self) -> list[Suspect]:
        """Without source or recorder: the ranks that wait elsewhere than most."""
        if len(self.groups) < 2:
            return []
        odd = self._odd_group()
        rest = [g for g in self.groups if g is not odd]
        explicit = odd.wait.kind == "collective"
        return [
            Suspect(
                category="rank_conditional_collective" if explicit else "divergent_control_flow",
                ranks=odd.ranks,
                places=odd.wait.user[:2],
                confidence=0.5,
                summary=f"{rank_phrase(odd.ranks)} {verb(odd.ranks, 'wait')} in `{odd.wait.op}`, "
                f"{rank_phrase(rest[0].ranks)} in `{rest[0].wait.op}`",
                why=tuple(
                    f"{rank_phrase(g.ranks)} at {at(innermost(g.wait), self.project)}"
                    for g in self.groups[:6]
                ),
                against=("why they went apart was not seen: the source tells no condition",),
                advice=ADVICE["rank_conditional_collective"],
                action="investigate",
                victims=tuple(r for r in self.world if r not in odd.ranks),
            )
        ]

    def _odd_group(self) -> Group:
        """The smallest group; among equals the one in an explicit collective."""
        return min(self.groups, key=lambda g: (len(g.ranks), g.wait.kind != "collective", g.ranks))

    def start_of(self, wait: Wait) -> list[Place]:
        names = {short(p.name) for p in wait.user}
        starts = thread_starts(self.project, self.divergence.calls)
        return [s.place for s in starts if s.target.name in names][:1]


def verb(ranks: Sequence[int], verb: str) -> str:
    return verb + "s" if len(ranks) == 1 else verb


def _key(reason: Reason) -> tuple[str, str | None, int | None]:
    return (reason.kind, reason.place.file, reason.place.line)


def _confidence(reason: Reason) -> float:
    return 0.97 if reason.score >= 1.0 else 0.25 + 0.75 * reason.score


_FORWARD_ADVICE = (
    "run the part on every rank (on zeros where there is nothing), or wrap the model with "
    "find_unused_parameters=True"
)
ADVICE = {
    "rank_conditional_collective": "let every rank of the group reach the collective: move it out "
    "of the condition, or give it a group of the ranks that enter",
    "checkpoint_collective_on_one_rank": "call the state dictionary on every rank and write the "
    "file on one",
    "collective_count_mismatch": "make the number of collectives the same on every rank: iterate "
    "over a fixed list, contribute zeros where a rank has nothing",
    "uneven_inputs": "give every rank as many batches (drop_last, or the minimum over ranks), or "
    "wrap the loop in torch's Join context",
    "divergent_control_flow": "decide together: all_reduce or broadcast the flag before the branch",
    "exception_swallowed": "tell the other ranks of the error (all_reduce a flag) or re-raise it",
    "collective_shape_mismatch": "make the operands of the collective the same size on every rank",
    "collective_dtype_mismatch": "make the operands of the collective the same type on every rank",
    "collective_order_mismatch": "issue the collectives in one order on every rank",
}
