"""Ranks whose own work holds the others, on pattern tables of many ranks.

Work is compared activity by activity (kernels, copies, loading, collection ...), because the
scatter of the largest would hide an excess in the others, and function by function where Delta
sets few ranks apart. Victims wait and culprits do not: a rank counts only if it waits that much
less in collectives than its peers; where the table holds no collective, the excess must stand out
further. What it is:

- kernels at a lower rate than the peers': the device is throttled; at the same rate: more work, an
  imbalance, which is the code's.
- copies at a lower rate: the PCIe link.
- loading, collection, logs, checkpoints: by the zone of their stacks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.localize.distance import Peers
from eroica.localize.rules.draft import Draft, percent
from eroica.localize.rules.tables import Fleet
from eroica.localize.scan import NOT_WORK, activity_of
from eroica.records import Action, Finding, Function, Place

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
CLOSE = 0.8
"""A rank with this part of the largest excess holds the others as well."""


@dataclass(frozen=True)
class Excess:
    """Few ranks of one role that spend longer on one activity than their peers."""

    activity: str
    positions: Int64
    excess: float
    """Mean share of the window beyond the peers' median."""
    share: float
    """What a cure is certain to win, before the next slow rank takes over."""
    rate: float | None = None
    """Of their kernels over the peers', where that is what sets them apart."""


def slow_ranks(fleet: Fleet) -> list[Draft]:
    """One draft for each activity in which few ranks hold the others."""
    wait_R = np.asarray(fleet.scan.wait_R, np.float64)
    return [
        _draft(fleet, peers, found)
        for peers in fleet.scan.peers
        for found in _own(_candidates(fleet, peers, wait_R))
    ]


def _own(candidates: Sequence[Excess]) -> list[Excess]:
    """Of what sets the same ranks apart, the largest: the rest of it comes along."""
    kept: list[Excess] = []
    for one in sorted(candidates, key=lambda c: -c.excess):
        if not any(np.isin(one.positions, other.positions).any() for other in kept):
            kept.append(one)
    return kept


def _candidates(fleet: Fleet, peers: Peers, wait_R: Float64) -> list[Excess]:
    found = []
    members = peers.positions
    for activity, total_R in fleet.scan.time_by_activity.items():
        if activity in NOT_WORK:
            continue
        time_R = np.asarray(total_R[members], np.float64)
        excess_R = time_R - np.median(time_R)
        limit = _noise(fleet, excess_R, wait_R)
        one = _outliers(fleet, members, excess_R, limit, wait_R, activity)
        found += [one] if one is not None else []
        if activity == "compute":
            one = _slow_device(fleet, members, time_R, wait_R)
            found += [one] if one is not None else []
    return found + _odd_functions(fleet, peers, wait_R)


def _noise(fleet: Fleet, values_R: Float64, wait_R: Float64) -> float:
    """What the scatter of the others produces among so many ranks, with a margin."""
    count = len(values_R)
    parameters = fleet.parameters
    spread = 1.4826 * float(np.median(np.abs(values_R - np.median(values_R))))
    if count < parameters.few_peers:  # so few rarely show how far they scatter
        spread *= 1 + 4 / count
    margin = parameters.noise_margin if wait_R.any() else parameters.noise_margin_alone
    return float((margin + np.sqrt(2 * np.log(max(count, 2)))) * spread)


def _outliers(
    fleet: Fleet,
    members: Int64,
    excess_R: Float64,
    limit: float,
    wait_R: Float64,
    activity: str,
    rate: float | None = None,
) -> Excess | None:
    """The few ranks with the largest excess, if it is large enough and the peers wait for it."""
    parameters = fleet.parameters
    floor = parameters.straggler_share
    if len(members) < parameters.few_peers:
        floor = max(floor, parameters.few_peers_share)
    top = float(excess_R.max())
    if len(members) < 2 or top < max(limit, floor):
        return None
    slow = excess_R >= max(CLOSE * top, limit, floor)
    others = excess_R[~slow]
    if int(slow.sum()) > max(8, parameters.few_ranks_share * len(members)) or not len(others):
        return None
    rest = float(others.max())
    share = float(excess_R[slow].min()) - (rest if rest >= max(limit, floor) else 0.0)
    excess = float(excess_R[slow].mean())
    if wait_R.any():
        usual = float(np.median(wait_R[members[~slow]]))
        spared = usual - float(wait_R[members[slow]].mean())
        if spared < parameters.spared_share * excess:
            return None  # they wait as long as the others: nobody waits for this
        share = min(share, spared)  # two measurements of one thing; the lower is sure
    if share < parameters.straggler_share:
        return None
    return Excess(activity, members[slow], excess, share, rate)


def _slow_device(fleet: Fleet, members: Int64, time_R: Float64, wait_R: Float64) -> Excess | None:
    """Kernels of few ranks at a lower rate: seen long before their time stands out of the scatter.

    The excess is what the lower rate makes of their time.
    """
    rates = fleet.scan.device_rate_R
    if rates is None:
        return None
    lost_R = 1 - np.asarray(rates[members], np.float64)
    limit = max(_noise(fleet, lost_R, wait_R), 1 - fleet.parameters.lower_rate)
    excess_R = np.where(lost_R >= limit, time_R * lost_R, 0.0)
    found = _outliers(fleet, members, excess_R, 0.0, wait_R, "compute")
    if found is None:
        return None
    rate = float(np.mean(rates[found.positions]))
    return Excess(found.activity, found.positions, found.excess, found.share, rate)


def _odd_functions(fleet: Fleet, peers: Peers, wait_R: Float64) -> list[Excess]:
    """Single functions that set few ranks apart (Delta), in an activity that scatters."""
    found = []
    for one in fleet.scan.found:
        activity = activity_of(one.function)
        if activity in (*NOT_WORK, "rest") or peers.role not in one.peers:
            continue
        excess_R = np.zeros(fleet.num_ranks)
        excess_R[one.positions_A] = one.beta_A - one.peers[peers.role][0]
        mine = excess_R[peers.positions]
        odd = _outliers(fleet, peers.positions, mine, 0.0, wait_R, activity)
        found += [odd] if odd is not None else []
    return found


def _draft(fleet: Fleet, peers: Peers, found: Excess) -> Draft:
    numbers, excess, rates = _by_function(fleet, peers, found)
    top = int(np.argmax(excess))
    weights = np.maximum(excess, 0)
    rate = found.rate
    if rate is None:
        rate = float(np.average(rates, weights=weights)) if weights.sum() > 0 else 1.0
    function = fleet.scan.functions[numbers[top]]
    category, action, what = kind_of_slow(fleet, found.activity, rate, function)
    ranks, hosts = fleet.ranks(found.positions), fleet.hosts(found.positions)
    who = f"{units.rank_phrase(ranks)}{f' on {hosts[0]}' if len(hosts) == 1 else ''}"
    text = f"{who} {what if len(ranks) == 1 else _plural(what)}"
    s = "s" if len(ranks) == 1 else ""
    return Draft(
        rule="straggler",
        category=category,
        ranks=ranks,
        places=(
            Place(name=function.name, file=function.file, line=function.line),
            *function.stack[:1],
        ),
        share=found.share,
        confidence=0.85,
        summary=f"{text}: {percent(found.share)} of the step",
        action=action,
        why=[
            f"{who} spend{s} {percent(found.excess)} of the step longer in {found.activity} "
            "functions than the median of the peers, who wait for it.",
            f"These functions run at {percent(rate)} of the peers' rate.",
        ],
        advice="Drain the host and look at clocks, temperature and power."
        if action == "drain"
        else "Make the work equal over ranks.",
        findings=[_finding(ranks, function, float(excess[top]), rate, found)],
        hosts=hosts,
        claims=found.excess,
    )


def _finding(
    ranks: tuple[int, ...], function: Function, excess: float, rate: float, found: Excess
) -> Finding:
    return Finding(
        id="",
        kind="pattern",
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks,
        function=function,
        text=f"{function.name}: {percent(excess)} of the step beyond the peers, at "
        f"{percent(rate)} of their rate",
        details={
            "activity": found.activity,
            "excess": round(found.excess, 4),
            "rate": round(rate, 4),
        },
    )


def kind_of_slow(
    fleet: Fleet, activity: str, rate: float, function: Function
) -> tuple[str, Action, str]:
    """Return category, action and what the rank does, in words."""
    is_lower = rate <= fleet.parameters.lower_rate
    if activity == "compute":
        if not is_lower:
            return "load_imbalance", "patch", "has more to compute at the same rate"
        if function.kind == "kernel":
            return "gpu_throttled", "drain", "runs all kernels at a lower rate"
        return "straggler_compute", "investigate", "computes at a lower rate"
    if activity == "memory":
        if is_lower:
            return "pcie_degraded", "drain", "copies at a lower rate"
        return "straggler_compute", "investigate", "has more to copy at the same rate"
    known: dict[str, tuple[str, Action, str]] = {
        **dict.fromkeys(
            ("loader", "loader_wait", "unpickle"),
            ("straggler_data_loading", "patch", "loads data slowly"),
        ),
        "gc": ("gc_pause", "patch", "collects garbage"),
        "logging": ("straggler_rank_logging", "patch", "writes logs"),
        "checkpoint": ("checkpoint_overhead", "patch", "saves checkpoints"),
    }
    other = ("straggler_compute", "investigate", f"spends longer in {function.name}")
    return known.get(activity, other)  # type: ignore[arg-type]


def _plural(what: str) -> str:
    verb, _, rest = what.partition(" ")
    plural = {"has": "have"}.get(verb, verb.removesuffix("s"))
    return f"{plural} {rest}"


def _by_function(fleet: Fleet, peers: Peers, found: Excess) -> tuple[list[int], Float64, Float64]:
    """Of the activity's functions: their numbers, the ranks' beta beyond the peers' median, and
    their mu over the peers'; a second pass that touches these ranks and the sample only."""
    numbers, excess, rates = [], [], []
    for number, (block, levels) in enumerate(
        zip(fleet.source.blocks(), fleet.scan.levels, strict=True)
    ):
        if activity_of(block.function) != found.activity:
            continue
        beta = np.asarray(block.beta_R[found.positions], np.float64)
        more = float(np.mean(beta)) - levels[peers.role]
        rate = 1.0
        if more > fleet.parameters.rest_beta:
            usual = float(np.median(np.asarray(block.mu_R[peers.sample], np.float32)))
            mine = float(np.mean(np.asarray(block.mu_R[found.positions], np.float32)))
            rate = mine / usual if usual > 0 else 1.0
        numbers.append(number)
        excess.append(more)
        rates.append(rate)
    return numbers, np.array(excess), np.array(rates)
