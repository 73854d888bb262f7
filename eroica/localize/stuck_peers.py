"""Ranks that wait for each other: in different collectives, sends, two threads, a store."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from eroica.localize.collectives import first_apart, histories, lags
from eroica.localize.locks import thread_starts
from eroica.localize.source import Project
from eroica.localize.source_calls import STATE_COLLECTIVES, collective_kind
from eroica.localize.source_depend import FILE, RANK, REGISTERED
from eroica.localize.source_lines import line_calls
from eroica.localize.stuck_divergence import Divergence, sample
from eroica.localize.stuck_prose import ADVICE, FORWARD_ADVICE, early_prose, prose, verb
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
        self._counts: dict[int, Counter[tuple[str | None, int | None]]] = {}
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
        if rank not in self._counts:  # asked for each reason again
            lines = ({(f.file, f.line) for f in e.frames} for e in flight.entries)
            self._counts[rank] = Counter(line for some in lines for line in some)
        return self._counts[rank][place.file, place.line]

    def _suspect(self, reason: Reason, alike: list[Reason]) -> Suspect:
        category = category_of(reason)
        waiter, skipper = reason.waiter, reason.skipper
        ranks = self._guilty(reason, category, alike)
        inner = waiter.wait.user[0] if waiter.wait.user else reason.place
        if reason.kind == "condition" and self._is_state_collective(waiter.wait):
            category = "checkpoint_collective_on_one_rank"
        if reason.is_early and self.apart_at is not None:
            summary, why = early_prose(self.project, reason, self.apart_at, inner)
        else:
            summary, why = prose(self.project, reason, category, inner)
        victims = () if ranks == "all" else tuple(r for r in self.world if r not in ranks)
        return Suspect(
            category=category,
            ranks=ranks,
            places=self._places(reason, inner),
            confidence=_confidence(reason),
            summary=summary,
            why=tuple(why),
            against=self._against(reason),
            advice=FORWARD_ADVICE if reason.kind == "forward" else ADVICE.get(category, ""),
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

    def _places(self, reason: Reason, inner: Place) -> tuple[Place, ...]:
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


def _key(reason: Reason) -> tuple[str, str | None, int | None]:
    return (reason.kind, reason.place.file, reason.place.line)


def _confidence(reason: Reason) -> float:
    return 0.97 if reason.score >= 1.0 else 0.25 + 0.75 * reason.score
