"""Hardware told from code, on pattern tables of many ranks.

- A bad link: few ranks whose collective runs at a steadily low rate (low mu, low sigma) while the
  ranks that exchange with them run in bursts (low mu, high sigma). All on one host: NVLink; over
  hosts: NIC or network.
- A throttled GPU: all kernels of few ranks longer at a lower rate. Longer at the same rate is more
  work: an imbalance, which is the code's.
- A slow PCIe link: copies longer, at a steadily low rate.

None of these is ever to be patched. Counter-evidence: the rank's peers on the same host show it
too (then the host), or every rank does (then it is the job).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.localize.counterfactual import Slowest, slowest
from eroica.localize.distance import Block, FunctionDistances, Scan
from eroica.localize.rules.draft import Draft, percent
from eroica.localize.rules.zones import zone_of
from eroica.records import Action, Finding, Function, Place

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
STEADY = 0.5  # sigma at most this part of the neighbours'
SLOW_RATE = 0.85  # mu at most this part of the peers'
LOWER_RATE = 0.95  # over many kernels together
MAX_LINKS = 0.02  # of all ranks, one host at least
MIN_RANKS = 8
DATA_SHARE = 0.22
COSTLY = 0.05
FEW_PEERS = 32
FEW_PEERS_SHARE = 0.08
PAUSE_EVERY = 10.0  # steps between two pauses of a rank, where counts are not known


class Source(Protocol):
    """A table of patterns that can be read function by function, more than once."""

    @property
    def ranks_R(self) -> Int64: ...
    @property
    def roles_R(self) -> "NDArray[np.int32] | None": ...
    def blocks(self) -> Iterator[Block]: ...
    def host(self, position: int) -> str: ...


@dataclass(frozen=True)
class Fleet:
    """A scanned table with what the rules ask of it."""

    source: Source
    scan: Scan
    pauses_per_step: float | None = None

    @property
    def num_ranks(self) -> int:
        return len(self.source.ranks_R)

    def role(self, position: int) -> int:
        roles = self.source.roles_R
        return int(roles[position]) if roles is not None else 0

    def ranks(self, positions: "Int64 | tuple[int, ...]") -> tuple[int, ...]:
        return tuple(int(r) for r in self.source.ranks_R[np.asarray(positions, np.int64)])

    def hosts(self, positions: "Int64 | tuple[int, ...]") -> tuple[str, ...]:
        return tuple(dict.fromkeys(h for p in positions if (h := self.source.host(int(p)))))


def fleet_rules(fleet: Fleet) -> list[Draft]:
    """Return every cause that patterns of many ranks alone can show."""
    if fleet.num_ranks < 2 or not fleet.scan.functions:
        return []
    drafts = bad_links(fleet)
    linked = {r for d in drafts if d.ranks != "all" for r in d.ranks}
    slow = slow_ranks(fleet)
    drafts += [d for d in slow if not set(d.ranks) <= linked]
    return drafts + common_python(fleet)


def bad_links(fleet: Fleet) -> list[Draft]:
    """Few ranks that send steadily at a low rate, one draft a collective and scope."""
    if fleet.num_ranks < MIN_RANKS:
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
    low = found.mu_A <= SLOW_RATE * (peer[:, 1] + peer[:, 2])
    bursting = np.median(found.sigma_A[low]) if low.any() else 0.0
    steady = found.sigma_A <= STEADY * np.maximum(peer[:, 2], bursting)
    bad = low & steady
    limit = max(8, int(MAX_LINKS * fleet.num_ranks))
    if not bad.any() or int(bad.sum()) > limit:
        return None
    positions = found.positions_A[bad]
    # A ring of the job's healthy rate elsewhere, or, in a job of one ring, the neighbours' bursts.
    usual = np.where(
        peer[bad, 1] > found.mu_A[bad] / SLOW_RATE,
        peer[bad, 1],
        np.minimum(1.0, peer[bad, 1] + peer[bad, 2]),
    )
    left = float(np.median(found.mu_A[bad] / np.maximum(usual, 1e-6)))
    share = float(np.median(found.beta_A[bad])) * (1 - left)
    neighbours = found.positions_A[low & ~steady]
    inside = _one_host(fleet, positions, neighbours, found.function)
    category = "nvlink_degraded" if inside else "nic_degraded"
    return _link_draft(fleet, found, category, positions, bad, usual, left, share)


def _one_host(fleet: Fleet, bad: Int64, neighbours: Int64, function: Function) -> bool:
    """Whether the exchange stays inside a host: all that it slows are on the bad rank's host."""
    hosts = set(fleet.hosts(bad))
    group = (function.group or "").lower()
    if not hosts:
        return group.startswith(("tp", "tensor", "intra"))
    others = set(fleet.hosts(neighbours[:512]))
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
    findings = [_finding(found, fleet, position, text) for position in np.flatnonzero(bad)[:8]]
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
            "the neighbours burst and wait.",
            "A low rate without fluctuation is the link's own; fluctuating ones wait for it.",
        ],
        advice=f"Drain {', '.join(hosts) or 'the host'}, then look at its {what}: link "
        "width, error counters. No change of code will help.",
        findings=findings,
        hosts=hosts,
        claims=share,
    )


def _finding(found: FunctionDistances, fleet: Fleet, position: int, text: str) -> Finding:
    rank = fleet.ranks((int(found.positions_A[position]),))[0]
    peer = found.peers.get(fleet.role(int(found.positions_A[position])), (0.0, 0.0, 0.0))
    return Finding(
        id="",
        kind="pattern",
        rank=rank,
        ranks=(rank,),
        function=found.function,
        beta=round(float(found.beta_A[position]), 4),
        mu=round(float(found.mu_A[position]), 4),
        sigma=round(float(found.sigma_A[position]), 4),
        differential_distance=round(float(found.delta_A[position]), 4),
        threshold=round(float(found.threshold_A[position]), 4),
        peers=dict(zip(("beta", "mu", "sigma"), (round(v, 4) for v in peer), strict=True)),
        text=text,
    )


def slow_ranks(fleet: Fleet) -> list[Draft]:
    """The ranks whose own work sets the step, and what their work is longer in."""
    drafts: list[Draft] = []
    work_R = np.asarray(fleet.scan.work_R, np.float64)
    roles = fleet.source.roles_R
    for role in np.unique(roles) if roles is not None else (0,):
        members = np.flatnonzero(roles == role) if roles is not None else np.arange(fleet.num_ranks)
        found = slowest(work_R[members])
        if found is None or found.excess < 0.05 or found.share < 0.03:
            continue
        positions = members[list(found.positions)]
        if len(positions) > max(8, 0.1 * len(members)):
            continue
        if len(members) < FEW_PEERS and found.share < FEW_PEERS_SHARE:
            continue
        if _is_noise(work_R[members], found) and not _is_unlike(fleet, positions):
            continue
        drafts.append(_slow_draft(fleet, positions, found))
    return drafts


def _is_unlike(fleet: Fleet, positions: Int64) -> bool:
    """Whether one function that costs something sets these ranks apart from their peers."""
    for found in fleet.scan.found:
        if found.function.kind in ("collective", "idle", "rest"):
            continue
        costly = found.positions_A[found.beta_A >= COSTLY]
        if np.isin(positions, costly).all():
            return True
    return False


def _is_noise(work_R: Float64, found: Slowest) -> bool:
    """Within what the spread of the others produces among so many ranks."""
    rest = np.delete(work_R, list(found.positions))
    middle = float(np.median(rest))
    spread = 1.4826 * float(np.median(np.abs(rest - middle)))
    if len(work_R) < FEW_PEERS:  # so few rarely show how far they scatter
        spread *= 1 + 4 / len(work_R)
    beyond = float(work_R[list(found.positions)].min()) - middle
    return bool(beyond < (3.0 + np.sqrt(2 * np.log(max(len(work_R), 2)))) * spread)


def _slow_draft(fleet: Fleet, positions: Int64, found: Slowest) -> Draft:
    excess, rates = _excess(fleet, positions)
    number = int(max(range(len(excess)), key=lambda i: excess[i]))
    kinds: dict[str, float] = {}
    for function, value in zip(fleet.scan.functions, excess, strict=True):
        kinds[_group_of(function)] = kinds.get(_group_of(function), 0.0) + value
    group = max(kinds, key=lambda k: kinds[k])
    inside = [i for i, f in enumerate(fleet.scan.functions) if _group_of(f) == group]
    number = max(inside, key=lambda i: excess[i])
    weights = np.maximum(excess, 0)[inside]
    rate = float(np.average(rates[inside], weights=weights)) if weights.sum() > 0 else 1.0
    category, action, what = _kind_of_slow(group, rate, fleet.scan.functions[number])
    ranks, hosts = fleet.ranks(positions), fleet.hosts(positions)
    function = fleet.scan.functions[number]
    place = Place(name=function.name, file=function.file, line=function.line)
    who = f"{units.rank_phrase(ranks)}{f' on {hosts[0]}' if len(hosts) == 1 else ''}"
    text = f"{who} {what if len(ranks) == 1 else _plural(what)}"
    finding = Finding(
        id="",
        kind="pattern",
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks,
        function=function,
        text=f"{function.name}: {percent(excess[number])} of the step beyond "
        f"the peers, at {percent(rate)} of their rate",
        details={
            "excess_by_group": {k: round(v, 4) for k, v in kinds.items()},
            "rate": round(rate, 4),
        },
    )
    return Draft(
        rule="straggler",
        category=category,
        ranks=ranks,
        places=(place, *function.stack[:1]),
        share=found.share,
        confidence=0.85,
        summary=f"{text}: {percent(found.share)} of the step",
        action=action,
        why=[
            f"{who} work{'s' if len(ranks) == 1 else ''} {percent(found.excess)} of the step "
            "longer than the median of the peers, who wait for it.",
            f"The excess is in {group} functions ({percent(kinds[group])} of the step), which "
            f"run at {percent(rate)} of the peers' rate.",
        ],
        advice="Drain the host and look at clocks, temperature and power."
        if action == "drain"
        else "Make the work equal over ranks.",
        findings=[finding],
        hosts=hosts,
        claims=found.excess,
    )


def _group_of(function: Function) -> str:
    if function.kind in ("kernel", "op"):
        return "compute"
    if function.kind == "python":
        return zone_of((Place(name=function.name, file=function.file), *function.stack))
    return function.kind


def _kind_of_slow(group: str, rate: float, function: Function) -> tuple[str, Action, str]:
    if group == "compute":
        if function.kind == "kernel" and rate <= LOWER_RATE:
            return "gpu_throttled", "drain", "runs all kernels at a lower rate"
        if rate <= LOWER_RATE:
            return "straggler_compute", "investigate", "computes at a lower rate"
        return "load_imbalance", "patch", "has more to compute at the same rate"
    if group == "memory":
        return "pcie_degraded", "drain", "copies at a lower rate"
    if group in ("loader", "loader_wait", "unpickle"):
        return "straggler_data_loading", "patch", "loads data slowly"
    if group == "gc":
        return "gc_pause", "patch", "collects garbage"
    if group == "logging":
        return "straggler_rank_logging", "patch", "writes logs"
    if group == "checkpoint":
        return "checkpoint_overhead", "patch", "saves checkpoints"
    return "straggler_compute", "investigate", f"spends longer in {function.name}"


def _plural(what: str) -> str:
    verb, _, rest = what.partition(" ")
    plural = {"has": "have"}.get(verb, verb.removesuffix("s"))
    return f"{plural} {rest}"


def _excess(fleet: Fleet, positions: Int64) -> tuple[Float64, Float64]:
    """Per function: beta beyond the peers' median, and rate over theirs; a second pass."""
    excess, rates = [], []
    for block, medians in zip(fleet.source.blocks(), fleet.scan.medians, strict=True):
        if not medians or block.function.kind in ("collective", "idle"):
            excess.append(0.0)
            rates.append(1.0)
            continue
        scale = 1.0 / 65535.0 if block.beta_R.dtype == np.uint16 else 1.0
        peer = np.array([medians[fleet.role(int(p))] for p in positions])
        beta = np.asarray(block.beta_R[positions], np.float64) * scale
        mu = np.asarray(block.mu_R[positions], np.float64) * scale
        excess.append(float(np.mean(beta - peer[:, 0])))
        known = peer[:, 1] > 0
        rates.append(float(np.mean(mu[known] / peer[known, 1])) if known.any() else 1.0)
    return np.array(excess), np.array(rates)


def common_python(fleet: Fleet) -> list[Draft]:
    """Python that all ranks show beyond what is expected: collection, loading."""
    drafts: list[Draft] = []
    wait = float(np.median(fleet.scan.wait_R))
    for found in fleet.scan.found:
        if found.function.kind != "python" or found.num_unexpected < 0.5 * fleet.num_ranks:
            continue
        level = float(np.median([m[0] for m in found.peers.values()]))
        group = _group_of(found.function)
        if group == "gc" or found.function.name == "Python GC":
            drafts.append(_pauses(fleet, found, level, wait))
        elif group in ("loader", "loader_wait") and level >= DATA_SHARE:
            drafts.append(
                _common_draft(
                    found, "dataloader_bottleneck", level, "all ranks wait for their data"
                )
            )
    return drafts


def _pauses(fleet: Fleet, found: FunctionDistances, level: float, wait: float) -> Draft:
    """Pauses at different steps hold all others: a pause is as long as its share times the steps
    between two, and a step is held when any rank pauses in it."""
    rate = fleet.pauses_per_step or 1.0 / PAUSE_EVERY
    length = level / rate
    share = min(length * (1 - float(np.exp(-fleet.num_ranks * rate))), level + wait)
    draft = _common_draft(
        found, "gc_pause", max(share, level), "garbage collection stops ranks at different steps"
    )
    draft.why.append(
        f"Each rank collects for {percent(level)} of its time; the pauses of "
        f"{fleet.num_ranks} ranks fall on different steps and add up."
    )
    draft.rule = "gc"
    return draft


def _common_draft(found: FunctionDistances, category: str, share: float, what: str) -> Draft:
    function = found.function
    place = Place(name=function.name, file=function.file, line=function.line)
    level = float(np.median([m[0] for m in found.peers.values()]))
    return Draft(
        rule="common",
        category=category,
        ranks="all",
        places=(place, *function.stack[:1]),
        share=share,
        confidence=0.8,
        summary=f"{what}: {percent(share)} of the step",
        why=[
            f"{function.name} holds {percent(level)} of the time on the median rank, where "
            "1 % is expected."
        ],
        advice="Freeze long-lived objects and collect at the same step on all ranks."
        if category == "gc_pause"
        else "Give the loader workers, or make the data cheaper.",
        findings=[
            Finding(
                id="",
                kind="pattern",
                function=function,
                beta=round(level, 4),
                expected_distance=round(found.max_expected_distance, 4),
                text=what,
            )
        ],
        claims=share,
    )
