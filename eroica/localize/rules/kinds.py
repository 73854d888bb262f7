"""What kind of slowness the excess of a slow rank is: sending, loading, writing, computing."""

from dataclasses import dataclass

import numpy as np

from eroica.localize.rules.phase import (
    LOG_WORDS,
    SAVE_WORDS,
    find_spine,
    has_word,
    is_input,
)
from eroica.localize.rules.view import Bool, JobView, Row
from eroica.localize.rules.zones import frame_zone
from eroica.localize.source_calls import calls, collective_kind
from eroica.records import Action, Place

EXCLUSIVE = 0.2  # of a rank's time in an activity: peers with less do not do it

LOWER_RATE = 0.92  # of the peers' rate; op times scatter more than kernels'
# A function this close to the peers' rate runs on a healthy device.
EVEN_RATE = 0.97
MIN_FUNCTIONS = 4  # fewer cannot tell a slow device from more work
MORE_CALLS = 1.2  # executions a step over the peers': more work, not slower work
LARGE_PART = 0.02  # of the time, before a function's rate counts
SENDING = ("collective", "point_to_point")
MEETING = ("barrier", "monitored_barrier", "wait_for_everyone", "new_group")
"""Collectives that carry nothing: time in them is waiting, not the wire."""


@dataclass(frozen=True)
class Group:
    """Rows that are one activity, with what the slow ranks spend on it beyond their peers."""

    mask: Bool
    entry: Place | None
    caller: Place | None
    excess: float
    mine: float
    peers: float

    @property
    def exclusive(self) -> bool:
        return self.peers < EXCLUSIVE * self.mine


def category_of(
    view: JobView, group: Group, top: Row | None, columns: list[int]
) -> tuple[str, Action, float]:
    """Return category, action and confidence for the group's activity."""
    if top is None:
        return "straggler_compute", "investigate", 0.5
    spine = find_spine(view)
    if _is_sending(view, group, top, columns):
        return "straggler_network", "drain", 0.8
    if top.zone in ("gc", "compile"):
        return {"gc": "gc_pause", "compile": "recompilation"}[top.zone], "patch", 0.8
    alone = group.entry is not None and group.exclusive
    if top.zone == "checkpoint" or (alone and has_word(view, top, SAVE_WORDS)):
        return "checkpoint_overhead", "patch", 0.85
    if top.zone in ("loader", "loader_wait", "unpickle") and not alone:
        return "straggler_data_loading", "patch", 0.9
    if top.zone == "logging" or (alone and has_word(view, top, LOG_WORDS)):
        return "straggler_rank_logging", "patch", 0.9
    if alone and is_input(view, top, spine, by_zone=False) is not True:
        return "serialized_on_rank0", "patch", 0.85
    if is_input(view, top, spine) is True:
        return "straggler_data_loading", "patch", 0.85
    if top.zone in ("forward", "backward", "ddp", "optimizer", "other"):
        return _compute_kind(view, top, columns)
    if has_word(view, top, LOG_WORDS):
        return "straggler_rank_logging", "patch", 0.75
    return "straggler_compute", "patch", 0.7


def _compute_kind(view: JobView, top: Row, columns: list[int]) -> tuple[str, Action, float]:
    """More work, or the same work done slower: by executions a step and by their rate.

    Kernels that all run at a lower rate on a device are the device's fault; the same on a CPU may
    be the host's. Without either number, work that the user's code does is taken for more work.
    """
    more, rate = _compare_execution(view, columns)
    if more is not None and more > MORE_CALLS:
        return "load_imbalance", "patch", 0.8
    if rate is not None and rate[0] < LOWER_RATE:
        if rate[1] > EVEN_RATE:
            return "load_imbalance", "patch", 0.7
        if top.kind == "kernel" and rate[1] <= EVEN_RATE:
            return "gpu_throttled", "drain", 0.8
        return "straggler_compute", "investigate", 0.75
    if view.source == "samples" and top.project:
        return "load_imbalance", "patch", 0.65
    return "straggler_compute", "investigate", 0.7


def _compare_execution(
    view: JobView, columns: list[int]
) -> tuple[float | None, tuple[float, float] | None]:
    """Return (executions a step, (mean, fastest) rate), of the slow ranks over their peers'.

    The rate is nanoseconds per execution of the functions both have, weighted by the peers' time.
    """
    slow = {view.ranks[c] for c in columns}
    counts: dict[bool, list[float]] = {True: [], False: []}
    each: dict[bool, dict[str, list[tuple[float, float]]]] = {True: {}, False: {}}
    for one in view.patterns:
        if one.is_sampled:
            continue
        side = one.rank in slow
        total = 0
        for function, count, spent in zip(one.functions, one.count_F, one.total_ns_F, strict=True):
            if function.kind in ("op", "kernel") and count > 0:
                total += int(count)
                pair = (float(spent) / float(count), float(spent))
                each[side].setdefault(function.id, []).append(pair)
        if total:
            counts[side].append(total / (one.num_steps or 1))
    more = None
    if counts[True] and counts[False] and np.median(counts[False]):
        more = float(np.mean(counts[True]) / np.median(counts[False]))
    return more, _rate_of(each[True], each[False])


def _rate_of(
    mine: dict[str, list[tuple[float, float]]], peers: dict[str, list[tuple[float, float]]]
) -> tuple[float, float] | None:
    """Return (mean, fastest) rate over the peers', of functions that hold 2 % of the time each.

    A slow device slows all it runs; longer inputs leave the optimizer's kernels as they are.
    NaN where too few functions are seen to tell.
    """
    ratios, weights = [], []
    for name in mine.keys() & peers.keys():
        other = float(np.median([p[0] for p in peers[name]]))
        own = float(np.mean([p[0] for p in mine[name]]))
        if own > 0:
            ratios.append(other / own)
            weights.append(float(np.median([p[1] for p in peers[name]])))
    total = sum(weights)
    if total <= 0:
        return None
    large = [r for r, w in zip(ratios, weights, strict=True) if w >= LARGE_PART * total]
    mean = float(np.average(ratios, weights=weights))
    return mean, (max(large) if len(large) >= MIN_FUNCTIONS else np.nan)


def _is_sending(view: JobView, group: Group, top: Row, columns: list[int]) -> bool:
    """The extra time is idle, inside code that issues collectives, while backward or a collective
    is under way: time on the wire rather than work."""
    if not top.project:
        return False
    in_backward = any(frame_zone(f) == "backward" for f in top.frames)
    issues = any(_issues_collective(view, place) for place in top.project[:2])
    if not issues:
        return False
    share = float(
        view.share_FR[np.ix_(np.flatnonzero(group.mask), np.array(columns))].sum(axis=0).mean()
    )
    busy = view.busy_FR[np.ix_(np.flatnonzero(group.mask), np.array(columns))]
    idle = np.isnan(busy).all() or float(np.nansum(busy, axis=0).mean()) < 0.5 * share
    return bool(idle) and (in_backward or top.zone in ("user", "collective"))


def _issues_collective(view: JobView, place: Place) -> bool:
    """Whether the function's own body exchanges tensors, by the module's imports."""
    info = view.project.enclosing(place.file, place.line)
    if info is None or info.is_module:
        return False
    known = [collective_kind(call, info.module) for call in calls(info)]
    sends = any(k and k[1] in SENDING and k[0] not in MEETING for k in known)
    return sends and not any(k and k[1] == "backward" for k in known)
