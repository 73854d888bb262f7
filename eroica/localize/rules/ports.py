"""A host's network port that is off its like on the other hosts: a lower link, errors alone there.

What a lower link costs is what it lacks of the time that every rank spends in collectives (an
upper bound: waiting is in it too). Errors are a cause only where the ranks of that host hold the
others.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eroica import units
from eroica.localize.counterfactual import slowest
from eroica.localize.rules.draft import Draft, percent
from eroica.localize.rules.view import COLLECTIVE_ZONES, JobView
from eroica.records import CounterUse, Finding

LOWER_LINK = 0.9  # of the others' rate: ports of one kind negotiate the same
MIN_EXCESS = 0.05  # of the step beyond the peers' median: less is nobody's waiting
_ERRORS = frozenset(
    {
        "symbol_errors",
        "link_recoveries",
        "link_downs",
        "rx_errors",
        "ack_timeouts",
        "sequence_errors",
        "errors",
    }
)


@dataclass(frozen=True)
class PortFault:
    """What is off about a host's port; ``lacks`` is the part of its rate that is missing."""

    host: str
    ranks: tuple[int, ...]
    text: str
    lacks: float


def bad_ports(view: JobView) -> list[Draft]:
    """Return a cause per host whose port is off and costs time."""
    drafts = []
    for fault in port_faults(view):
        share = _cost(view, fault)
        if share > 0:
            drafts.append(_draft(view, fault, share))
    return drafts


def port_faults(view: JobView) -> list[PortFault]:
    """Return every port that is off its like, whether or not it costs time."""
    hosts = view.evidence.hosts if view.evidence else ()
    found = []
    for host in hosts:
        ranks = tuple(r for r, one in view.by_rank.items() if one.host == host.host)
        others = [one.counters for one in hosts if one is not host]
        fault = _off(host.counters, others) if ranks and others else None
        if fault is not None:
            found.append(PortFault(host.host, ranks, f"{host.host}: {fault[0]}", fault[1]))
    return found


def _off(
    mine: Mapping[str, CounterUse], others: list[dict[str, CounterUse]]
) -> tuple[str, float] | None:
    for name, use in mine.items():
        port, _, what = name.rpartition(".")
        if what != "link_bits_per_s":
            continue
        peers = [one[name] for one in others if name in one]
        if peers:
            usual = float(np.median([one.mean for one in peers]))
            if 0 <= use.mean < LOWER_LINK * usual:
                text = f"{port} runs at {use.mean / 1e9:.0f} Gb/s, elsewhere at {usual / 1e9:.0f}"
                return text, 1 - use.mean / usual
    for name, use in mine.items():
        port, _, what = name.rpartition(".")
        if what not in _ERRORS or not use.increase:
            continue
        peers = [one[name] for one in others if name in one]
        if peers and not any(p.increase for p in peers):
            return f"{port} counts {use.increase:.0f} {what.replace('_', ' ')}, elsewhere none", 0.0
    return None


def _cost(view: JobView, fault: PortFault) -> float:
    if not view.rows:
        return 0.0
    if fault.lacks:
        waits = np.array([row.zone in COLLECTIVE_ZONES for row in view.rows], dtype=bool)
        return fault.lacks * float(view.sum_seen(waits).min())
    found = slowest(view.sum(np.ones(len(view.rows), dtype=bool), view.work_FR), view.seen_R)
    if found is None or found.excess < MIN_EXCESS:
        return 0.0
    late = {view.ranks[position] for position in found.positions}
    return found.share if late <= set(fault.ranks) else 0.0


def _draft(view: JobView, fault: PortFault, share: float) -> Draft:
    return Draft(
        rule="port",
        category="nic_degraded",
        ranks=fault.ranks,
        places=(),
        share=share,
        confidence=0.85 if fault.lacks else 0.7,
        summary=f"{fault.text}; it costs {percent(share)} of the step",
        action="drain",
        why=[
            f"{fault.text}.",
            f"All ranks spend at least {percent(share / fault.lacks)} of the step in collectives."
            if fault.lacks
            else f"{units.rank_phrase(fault.ranks)} there hold the others.",
        ],
        advice="Drain the host; look at the cable, the port of the switch and ibstat.",
        findings=[Finding(id="", kind="counter", ranks=fault.ranks, text=fault.text)],
        hosts=(fault.host,) if fault.host else (),
        victims=tuple(rank for rank in view.ranks if rank not in fault.ranks),
        claims=share,
    )
