"""A different rank is late each time: work that is uneven from step to step, not from rank to rank.

Sequences of unlike length, experts chosen unevenly, packed batches: each rank works as much as its
peers on the whole, so that no rank stands out, and yet every step lasts as long as its slowest
rank. Evidence is who comes how late to each collective: from profiler windows (ends align clocks),
else from Flight Recorders of one host. Each rank's own mean lateness is taken off first; what then
remains is what equal work would win: the last rank against the mean, summed over collectives.

Counter-evidence: few steps hold most of it (pauses, checkpoints), the late ranks load data or
collect garbage (other rules), ranks wait for a core (then any rank may be late; that time is taken
off), or a rank is late on the whole (a straggler).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.localize.arrival import ArrivalTable, arrival_table
from eroica.localize.rules.draft import Draft, hottest, mean_over, percent, step_text, where
from eroica.localize.rules.view import JobView, has_kernels, warm_up
from eroica.localize.rules.zones import project_frames, zone_of
from eroica.records import Finding, Function, Place

Float64 = NDArray[np.float64]
HOST_SHARE = 0.2  # of the step where the CPU computes: its jitter alone makes ranks late in turn
MIN_MEETINGS = 5  # fewer steps cannot tell turns from chance
COMPUTE_ZONES = ("forward", "backward", "ddp", "optimizer", "user", "other")


@dataclass(frozen=True)
class Lateness:
    """How late R ranks came to C meetings, in ns after the first; NaN where a rank was not in."""

    late_CR: Float64
    ranks: tuple[int, ...]
    span_ns: float
    source: str
    arrivals: ArrivalTable | None = None

    @property
    def fixed_R(self) -> Float64:
        """Each rank's mean lateness against the mean of all."""
        mean_R = np.nanmean(self.late_CR, axis=0)
        return np.asarray(mean_R - np.nanmean(mean_R))

    @property
    def apart_CR(self) -> Float64:
        """Lateness against the mean of the meeting, each rank's own mean taken off."""
        rest = self.late_CR - self.fixed_R
        return np.asarray(rest - np.nanmean(rest, axis=1, keepdims=True))

    @property
    def gain_C(self) -> Float64:
        """What equal work would win at each meeting."""
        return np.asarray(np.nanmax(self.apart_CR, axis=1))


def rotating(view: JobView) -> list[Draft]:
    """Return the cause that work is uneven from step to step, if it is."""
    late = _from_windows(view) or _from_recorders(view)
    if late is None or len(late.late_CR) < MIN_MEETINGS or late.span_ns <= 0:
        return []
    gain_C, waiting = late.gain_C, _waiting_for_cores(view)
    if waiting is None:
        return []
    # The last of several ranks waited for a core longer than the mean of them did.
    share = float(gain_C.sum()) / late.span_ns - 2 * waiting
    if view.source == "profiler":  # what computing hides costs nothing
        share = min(share, mean_over(view.sum_seen(np.ones(len(view.rows), bool), view.wait_FR)))
    fixed = float(late.fixed_R.max()) * len(gain_C) / late.span_ns
    floor = view.parameters.common_share if _on_device(view) else HOST_SHARE
    if share < max(floor, fixed):
        return []
    if _is_rare(gain_C) or _times_last(late) < _enough(len(late.ranks)):
        return []
    places = _places(view, late)
    if places is None:
        return []
    return [_draft(view, late, min(share, 1.0), places)]


def _from_windows(view: JobView) -> Lateness | None:
    profiled = [p for p in view.patterns if not p.is_sampled]
    table = arrival_table(profiled)
    steps = [p.num_steps or 0 for p in profiled]
    if table is None or max(steps) < MIN_MEETINGS:
        return None
    return Lateness(table.late_ns_CR, table.ranks, table.window_ns, "the profiler's windows", table)


def _from_recorders(view: JobView) -> Lateness | None:
    """One meeting a step: whoever is late issues all collectives of the step late."""
    hosts = {view.hosts.get(rank, "") for rank in view.flights}
    ranks = tuple(sorted(view.flights))
    steps = next((view.steps[rank] for rank in ranks if rank in view.steps), None)
    if len(ranks) < max(2, view.num_ranks) or len(hosts) != 1 or steps is None:
        return None
    issued: dict[tuple[str, int], dict[int, int]] = {}
    for rank in ranks:
        for entry in view.flights[rank]:
            if not entry.is_p2p and entry.sequence is not None and entry.created_ns:
                issued.setdefault((entry.group, entry.sequence), {})[rank] = entry.created_ns
    met = [[times[r] for r in ranks] for times in issued.values() if len(times) == len(ranks)]
    if not met:
        return None
    times_CR = np.array(sorted(met, key=max), np.float64)
    starts = np.asarray(steps.start_ns, np.float64)[warm_up(np.asarray(steps.duration_ns, float)) :]
    step_C = np.searchsorted(starts, times_CR.max(axis=1), side="right") - 1
    late_CR = times_CR - times_CR.min(axis=1, keepdims=True)
    spread_C = late_CR.max(axis=1)
    chosen = [
        int(inside[spread_C[inside].argmax()])
        for step in range(len(starts))
        if len(inside := np.flatnonzero(step_C == step))
    ]
    if len(chosen) < MIN_MEETINGS:
        return None
    span = float(times_CR[chosen[-1]].max() - times_CR[chosen[0]].max())
    return Lateness(late_CR[chosen], ranks, span * len(chosen) / (len(chosen) - 1), "the recorders")


def _waiting_for_cores(view: JobView) -> float | None:
    """The largest share of its running time that a rank waited for a core.

    None on a CPU where nobody counted: there the scheduler makes ranks late in turn as well.
    """
    told = [s.value for s in view.values("cpu.schedule")]
    shares = [v["waiting_ns"] / max(v["on_cpu_ns"] + v["waiting_ns"], 1) for v in told]
    shares += [
        use.mean
        for rank in view.by_rank.values()
        if (use := rank.counters.get("training_thread.wait")) is not None
    ]
    return float(max(shares, default=0.0)) if shares or _on_device(view) else None


def _on_device(view: JobView) -> bool:
    return has_kernels(view.patterns)


def _is_rare(gain_C: Float64) -> bool:
    """Whether a tenth of the meetings holds most of it: pauses, not work."""
    ordered = np.sort(gain_C)[::-1]
    few = max(1, len(ordered) // 10)
    return bool(len(ordered) >= 10 and ordered[:few].sum() > 0.5 * ordered.sum())


def _times_last(late: Lateness) -> float:
    """How many ranks share in being last, by the time they cost: 1 for one, R for all alike."""
    last_C = np.nanargmax(late.apart_CR, axis=1)
    cost_R = np.bincount(last_C, weights=late.gain_C, minlength=len(late.ranks))
    part_R = cost_R / max(cost_R.sum(), 1.0)
    return float(1 / max((part_R**2).sum(), 1e-9))


def _enough(num_ranks: int) -> float:
    return 0.2 + 0.5 * min(num_ranks, 4)


def _places(view: JobView, late: Lateness) -> tuple[Place, ...] | None:
    """Where the late ranks spent their time; None where that is not computing."""
    function = _culprit(view, late)
    if function is not None:
        frames = (
            Place(name=function.name, file=function.file, line=function.line),
            *function.stack,
        )
        if zone_of(frames, function.kind) not in COMPUTE_ZONES:
            return None
        return project_frames(frames, view.project.contains)[:2] or frames[:1]
    if _is_loading(view, late.ranks):
        return None
    mask = np.array([r.zone in COMPUTE_ZONES for r in view.rows], dtype=bool)
    if not mask.any():
        return ()
    return hottest(view, mask, view.work_FR.mean(axis=1))


def _culprit(view: JobView, late: Lateness) -> Function | None:
    """The function that ranks were in before they came last, weighted by what that cost."""
    if late.arrivals is None or not late.arrivals.culprits:
        return None
    cost: dict[str, float] = {}
    for number, column in enumerate(np.nanargmax(late.apart_CR, axis=1)):
        names = late.arrivals.culprits.get(late.ranks[column], ())
        if number < len(names) and names[number]:
            cost[names[number]] = cost.get(names[number], 0.0) + float(late.gain_C[number])
    known = {f.id: f for p in view.patterns for f in p.functions}
    best = max((c for c in cost if c in known), key=lambda c: cost[c], default=None)
    return known[best] if best is not None else None


def _is_loading(view: JobView, ranks: Sequence[int]) -> bool:
    """Whether loading differs from rank to rank by half of what the steps' last ranks cost."""
    told = [view.steps[r].data_ns for r in ranks if r in view.steps and view.steps[r].data_ns]
    length = min((len(data) for data in told), default=0)
    if len(told) < len(ranks) or length < MIN_MEETINGS:
        return False
    data_SR = np.array([data[-length:] for data in told], np.float64).T
    gain = float((data_SR.max(axis=1) - data_SR.mean(axis=1)).sum())
    whole = float(np.median([sum(view.steps[r].duration_ns[-length:]) for r in ranks]))
    return gain >= 0.5 * view.parameters.common_share * whole


def _draft(view: JobView, late: Lateness, share: float, places: tuple[Place, ...]) -> Draft:
    at = where(places[0] if places else None, view)
    count = len(late.gain_C)
    text = (
        f"a different rank is last each time: uneven work from step to step costs "
        f"{percent(share)} of the step"
    )
    number_R = np.bincount(np.nanargmax(late.apart_CR, axis=1), minlength=len(late.ranks))
    often = {str(r): int(n) for r, n in zip(late.ranks, number_R, strict=True) if n}
    mean = units.duration(float(late.gain_C.mean()))
    return Draft(
        rule="rotating",
        category="load_imbalance",
        ranks="all",
        places=places,
        share=share,
        confidence=0.75 if late.arrivals is not None else 0.65,
        summary=text + (f", in {at}" if at else ""),
        why=[
            f"At {count} meetings in {late.source} {len(often)} of {len(late.ranks)} ranks came "
            f"last, and held the mean of the others for {mean}.",
            f"On the whole the ranks work alike: no rank is to blame{step_text(view, share)}.",
        ],
        against=["Work that must differ, and cannot be sorted or packed, has to be waited for."],
        advice="Give all ranks like amounts of work in each step: sort or bucket by length, pack "
        "sequences up to a number of tokens, or balance the experts.",
        findings=[
            Finding(
                id="",
                kind="collective_arrival",
                text=f"{len(often)} ranks take turns in coming last at {count} meetings",
                details={"times_last": often, "meetings": count, "share": round(share, 4)},
            )
        ],
        claims=share,
    )
