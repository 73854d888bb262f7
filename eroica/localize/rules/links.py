"""Bad links told from code, on pattern tables of many ranks.

Few ranks whose collective runs at a steadily low rate (low mu, low sigma) while the ranks that
exchange with them run in bursts (low mu, high sigma). All on one host: NVLink; over hosts: NIC or
network. A link is never to be patched. Counter-evidence: many ranks show it, then it is the job.
"""

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.localize.distance import FunctionDistances
from eroica.localize.rules.draft import Draft, percent
from eroica.localize.rules.tables import Fleet, pattern_finding_of
from eroica.records import Function, Place

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


def bad_links(fleet: Fleet) -> list[Draft]:
    """Few ranks that send steadily at a low rate, one draft a collective and scope."""
    if fleet.num_ranks < fleet.parameters.link_min_ranks:
        return []
    drafts: list[Draft] = []
    for found in fleet.scan.found:
        if found.function.kind == "collective" and len(found.positions_A):
            draft = _bad_link(fleet, found)
            if draft is not None:
                drafts.append(draft)
    return drafts


def _bad_link(fleet: Fleet, found: FunctionDistances) -> Draft | None:
    peer = np.array([found.peers.get(fleet.role(int(p)), (0, 0, 0)) for p in found.positions_A])
    # Where the peers burst, in a job of one ring, their mean is not their rate.
    in_bursts = peer[:, 2] > fleet.parameters.link_steady * peer[:, 1]
    rate = peer[:, 1] + np.where(in_bursts, peer[:, 2], 0.0)
    low = found.mu_A <= fleet.parameters.link_rate * rate
    bursting = np.median(found.sigma_A[low]) if low.any() else 0.0
    steady = found.sigma_A <= fleet.parameters.link_steady * np.maximum(peer[:, 2], bursting)
    bad = low & steady
    limit = max(8, int(fleet.parameters.link_share * fleet.num_ranks))
    if not bad.any() or int(bad.sum()) > limit:
        return None
    positions = found.positions_A[bad]
    # A ring of the job's healthy rate elsewhere, or, in a job of one ring, the neighbors' bursts.
    usual = np.where(
        peer[bad, 1] > found.mu_A[bad] / fleet.parameters.link_rate,
        peer[bad, 1],
        np.minimum(1.0, peer[bad, 1] + peer[bad, 2]),
    )
    left = float(np.median(found.mu_A[bad] / np.maximum(usual, 1e-6)))
    share = float(np.median(found.beta_A[bad])) * (1 - left)
    neighbors = found.positions_A[low & ~steady]
    inside = _one_host(fleet, positions, neighbors, found.function)
    category = "nvlink_degraded" if inside else "nic_degraded"
    return _link_draft(fleet, found, category, positions, bad, usual, left, share)


def _one_host(fleet: Fleet, bad: Int64, neighbors: Int64, function: Function) -> bool:
    """Whether the exchange stays inside a host: all that it slows are on the bad rank's host."""
    hosts = set(fleet.hosts(bad))
    group = (function.group or "").lower()
    if not hosts:
        return group.startswith(("tp", "tensor", "intra"))
    others = set(fleet.hosts(neighbors[:512]))
    if others:
        return others <= hosts
    return group.startswith(("tp", "tensor", "intra"))


def _link_draft(
    fleet: Fleet,
    found: FunctionDistances,
    category: str,
    positions: Int64,
    bad: NDArray[np.bool_],
    usual: Float64,
    left: float,
    share: float,
) -> Draft:
    ranks, hosts = fleet.ranks(positions), fleet.hosts(positions)
    mu, sigma = float(np.median(found.mu_A[bad])), float(np.median(found.sigma_A[bad]))
    name = found.function.name + (
        f" of group {found.function.group}" if found.function.group else ""
    )
    at = f"{units.rank_phrase(ranks)}{f' on {hosts[0]}' if len(hosts) == 1 else ''}"
    text = f"{at} exchange{'s' if len(ranks) == 1 else ''} at {percent(left)} of the usual rate"
    what = "NVLink" if category == "nvlink_degraded" else "NIC or its link"
    findings = [
        pattern_finding_of(found, fleet, int(position), text)
        for position in np.flatnonzero(bad)[:8]
    ]
    return Draft(
        rule="bad_link",
        category=category,
        ranks=ranks,
        places=(Place(name=found.function.name),),
        share=share,
        confidence=0.9,
        summary=f"{text} ({name}): {percent(share)} of the step",
        action="drain",
        why=[
            f"{name}: steady at mu {mu:.2f} (sigma {sigma:.2f}) against "
            f"{float(np.median(usual)):.2f}; "
            "the neighbors burst and wait.",
            "A low rate without fluctuation is the link's own; fluctuating ones wait for it.",
        ],
        advice=f"Drain {', '.join(hosts) or 'the host'}, then look at its {what}: link "
        "width, error counters. No change of code will help.",
        findings=findings,
        hosts=hosts,
        claims=share,
    )
