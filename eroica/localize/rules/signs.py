"""Signs of counters and logs: what they say of a rank, what it costs, and the cause made of them.

A counter says what is wrong, the ranks' work says what it costs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

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


def held_share(view: JobView, ranks: tuple[int, ...]) -> float:
    """What the step would win were these ranks like their peers; 0 where they hold nobody."""
    if not view.rows or view.num_ranks < 2:
        return 0.0
    found = slowest(view.sum(np.ones(len(view.rows), dtype=bool), view.work_FR))
    if found is None or not {view.ranks[p] for p in found.positions} <= set(ranks):
        return 0.0
    return max(0.0, found.share)


def rank_counters(view: JobView, rank: int) -> dict[str, CounterUse]:
    one = view.by_rank.get(rank)
    return one.counters if one is not None else {}


def host_counters(view: JobView, rank: int) -> dict[str, CounterUse]:
    name = view.hosts.get(rank, "")
    hosts = view.evidence.hosts if view.evidence is not None else ()
    return next((h.counters for h in hosts if h.host == name), {})


def events_of(view: JobView, rank: int) -> list[LogEvent]:
    """What the logs say of a rank, or of a host that is this rank's alone."""
    if view.evidence is None:
        return []
    host = view.hosts.get(rank, "")
    alone = sum(h == host for h in view.hosts.values()) == 1
    return [
        e
        for e in view.evidence.log_events
        if e.rank == rank or (e.rank is None and e.host and e.host == host and alone)
    ]


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
