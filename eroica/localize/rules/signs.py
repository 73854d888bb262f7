"""Signs of counters and logs: what they say of a rank, what it costs, and the cause made of them.

A counter says what is wrong, the ranks' work says what it costs.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eroica import units
from eroica.localize.counterfactual import slowest
from eroica.localize.rules.draft import Draft
from eroica.localize.rules.view import JobView
from eroica.records import Action, CounterUse, Finding, LogEvent


@dataclass(frozen=True)
class Sign:
    """One thing that a counter or a log line says of a rank."""

    rank: int
    text: str
    share: float
    """Of the rank's time it takes; 0 where the sign does not say."""
    details: dict[str, float]


@dataclass
class Machine:
    """What lies beneath a job: counters by rank and host, log events, and whom ranks hold up."""

    view: JobView

    def counters(self, rank: int) -> dict[str, CounterUse]:
        one = self.view.by_rank.get(rank)
        return one.counters if one is not None else {}

    @cached_property
    def hosts(self) -> dict[str, dict[str, CounterUse]]:
        evidence = self.view.evidence
        return {h.host: h.counters for h in evidence.hosts} if evidence is not None else {}

    def host_counters(self, rank: int) -> dict[str, CounterUse]:
        return self.hosts.get(self.view.hosts.get(rank, ""), {})

    @cached_property
    def usual(self) -> dict[str, float]:
        """Median over ranks of each counter of a device, by what follows the device's name."""
        found: dict[str, list[float]] = {}
        for rank in self.view.ranks:
            for name, use in self.counters(rank).items():
                found.setdefault(name.partition(".")[2], []).append(use.mean)
        return {name: float(np.median(v)) for name, v in found.items() if len(v) >= 3}

    @cached_property
    def _num_on_host(self) -> Counter[str]:
        return Counter(self.view.hosts.values())

    @cached_property
    def _events(self) -> dict[int | str, list[LogEvent]]:
        """Events by the rank they name, else by host."""
        found: dict[int | str, list[LogEvent]] = {}
        for event in self.view.evidence.log_events if self.view.evidence is not None else ():
            key = event.rank if event.rank is not None else event.host
            if key is not None and key != "":
                found.setdefault(key, []).append(event)
        return found

    def events(self, rank: int, kinds: tuple[str, ...]) -> list[LogEvent]:
        """What the logs say of a rank, or of a host that is this rank's alone."""
        host = self.view.hosts.get(rank, "")
        alone = self._events.get(host, []) if self._num_on_host[host] == 1 else []
        return [e for e in (*self._events.get(rank, ()), *alone) if e.kind in kinds]

    def host_events(self, host: str) -> list[LogEvent]:
        """What the logs of a host say without naming a rank."""
        return self._events.get(host, [])

    @cached_property
    def _slowest(self) -> tuple[frozenset[int], float]:
        view = self.view
        if not view.rows or view.num_ranks < 2:
            return frozenset(), 0.0
        found = slowest(view.sum(np.ones(len(view.rows), dtype=bool), view.work_FR), view.seen_R)
        if found is None:
            return frozenset(), 0.0
        return frozenset(view.ranks[p] for p in found.positions), max(0.0, found.share)

    def held(self, ranks: tuple[int, ...]) -> float:
        """What the step would win were these ranks like their peers; 0 where they hold nobody."""
        slow, share = self._slowest
        return share if slow and slow <= set(ranks) else 0.0


def place_of(view: JobView, ranks: tuple[int, ...]) -> str:
    hosts = tuple(dict.fromkeys(h for r in ranks if (h := view.hosts.get(r))))
    if len(ranks) == view.num_ranks and len(hosts) <= 1:
        return f"on {hosts[0]}" if hosts else "on all ranks"
    return f"on {', '.join(hosts[:4])}" if hosts else f"on {units.rank_phrase(ranks)}"


def once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def sign_draft(
    view: JobView,
    category: str,
    ranks: tuple[int, ...],
    signs: list[Sign],
    share: float | None,
    *,
    confidence: float,
    summary: str,
    action: Action,
    advice: str,
    against: list[str],
) -> Draft:
    whole = len(ranks) == view.num_ranks
    return Draft(
        rule="machine",
        category=category,
        ranks="all" if whole else ranks,
        places=(),
        share=share,
        rank_share=view.parameters.common_share if share is None else None,
        confidence=confidence,
        summary=summary,
        action=action,
        why=[f"{text[0].upper()}{text[1:]}." for text in once(s.text for s in signs)[:6]],
        against=against,
        advice=advice,
        findings=[
            Finding(
                id="", kind="counter", rank=s.rank, ranks=(s.rank,), text=s.text, details=s.details
            )
            for s in signs[:8]
        ],
        victims=tuple(r for r in view.ranks if r not in ranks),
        hosts=tuple(dict.fromkeys(h for r in ranks if (h := view.hosts.get(r)))),
        claims=share or 0.0,
    )
