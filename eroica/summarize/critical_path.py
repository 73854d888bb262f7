"""The critical path of one rank: which function each nanosecond of the window belongs to.

Definition (paper section 3): at each instant the executing function of the highest priority holds
the critical path; GPU compute > memory > collective > Python. Then, with T the window,

    beta(f, w) = (1 / T) * sum over executions e of f of |e and critical path|

Every instant goes to one execution or to nobody (idle), so the betas and idle add up to 1. Within
a lane the execution that began last counts: on a thread that is the innermost call, and a frame
that waits inside an operator shows as the frame.

Complexity: O(n log n) for the one sort by start, O(n) for the sweep: each step of it either ends
an execution or reaches the next start. Memory: 4 bytes an event besides the order.

Worked example, times in ms, window 0-10::

    training thread  f 0-10, g (called by f) 2-5
    stream 7         kernel k 4-6
    stream 9         collective c 5-9

    0-2 f, 2-4 g, 4-6 k, 6-9 c, 9-10 f    beta: f 0.3, g 0.2, k 0.2, c 0.3
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eroica.columns import Int32, Int64
from eroica.read.compiled import compiled
from eroica.summarize.classify import (
    LANE_COLLECTIVE,
    LANE_TRAINING,
    LEVEL_COLLECTIVE,
    NUM_LANES,
    NUM_LEVELS,
    Int8,
)

_MAX_INSERTION = 32  # of more equal starts a sort is faster than insertion
_MAX_LARGE_TIES = 1 << 16


@dataclass(frozen=True)
class CriticalPath:
    """What the sweep found, in nanoseconds."""

    critical_ns_F: Int64
    """Time on the critical path a function; functions as numbered by the caller."""
    level_ns_LD: Int64
    """[level, inside data loading (1) or not (0)]; the last row is idle."""
    collective_E: Int64
    """Events of the collective lane in the order they began."""
    culprit_C: Int32
    """Function that held the path longest since the collective before; -1 where none did."""


def select_events(
    lane_E: Int8, start_ns_E: Int64, duration_ns_E: Int64, first: int, last: int
) -> Int32:
    """Return the events on any lane that reach into [first, last)."""
    found = np.empty(len(lane_E), np.int32)
    return found[: _select(lane_E, start_ns_E, duration_ns_E, first, last, found)]


@compiled
def _select(lane: Int8, start: Int64, duration: Int64, first: int, last: int, found: Int32) -> int:
    number = 0
    for event in range(len(lane)):
        begin = start[event]
        if lane[event] >= 0 and begin < last and begin + duration[event] > first:
            found[number] = event
            number += 1
    return number


@compiled
def extent(lane_E: Int8, start_ns_E: Int64, duration_ns_E: Int64) -> tuple[int, int]:
    """Return first start and last end of the events on any lane; (0, 0) where there are none."""
    first, last, seen = 0, 0, False
    for event in range(len(lane_E)):
        if lane_E[event] < 0:
            continue
        start, end = start_ns_E[event], start_ns_E[event] + duration_ns_E[event]
        if not seen or start < first:
            first = start
        if not seen or end > last:
            last = end
        seen = True
    return first, last


def tally(
    order: Int32, function_E: Int32, duration_ns_E: Int64, num_functions: int
) -> tuple[Int64, Int64]:
    """Return summed duration and number of executions a function, on the critical path or not."""
    total = np.zeros(num_functions, np.int64)
    count = np.zeros(num_functions, np.int64)
    _tally(order, function_E, duration_ns_E, total, count)
    return total, count


@compiled
def _tally(order: Int32, function_E: Int32, duration: Int64, total: Int64, count: Int64) -> None:
    for k in range(len(order)):
        function = function_E[order[k]]
        if function >= 0:
            total[function] += duration[order[k]]
            count[function] += 1


def order_events(
    start_ns_E: Int64, duration_ns_E: Int64, python_id_E: Int64, events: Int32
) -> Int32:
    """Return ``events`` by start; of equal starts the longer first, callers before callees."""
    order = events[np.argsort(start_ns_E[events], kind="stable")]
    large = np.empty((_MAX_LARGE_TIES, 2), np.int64)
    for first, last in large[: _order_ties(order, start_ns_E, duration_ns_E, python_id_E, large)]:
        group = order[first:last]
        order[first:last] = group[np.lexsort((python_id_E[group], -duration_ns_E[group]))]
    return order


@compiled
def _order_ties(order: Int32, start: Int64, duration: Int64, python_id: Int64, large: Int64) -> int:
    """Order equal starts in place; large groups are noted in ``large`` and left to the caller."""
    first = 0
    num_large = 0
    while first < len(order):
        last = first + 1
        while last < len(order) and start[order[last]] == start[order[first]]:
            last += 1
        if last - first > _MAX_INSERTION and num_large < len(large):
            large[num_large, 0], large[num_large, 1] = first, last
            num_large += 1
        else:
            for i in range(first + 1, last):
                event = order[i]
                j = i
                while j > first and _is_before(event, order[j - 1], duration, python_id):
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = event
        first = last
    return num_large


@compiled
def _is_before(a: int, b: int, duration: Int64, python_id: Int64) -> bool:
    if duration[a] != duration[b]:
        return bool(duration[a] > duration[b])
    return bool(python_id[a] < python_id[b])


def find_critical_path(
    order: Int32,
    start_ns_E: Int64,
    duration_ns_E: Int64,
    lane_E: Int8,
    level_E: Int8,
    function_E: Int32,
    num_functions: int,
    window: tuple[int, int],
    data_start_ns: Int64,
    data_end_ns: Int64,
) -> CriticalPath:
    """Sweep the ordered events of all lanes once; see the module for what comes out.

    ``order`` is from ``order_events``; ``data_start_ns``/``data_end_ns`` are disjoint and sorted.
    """
    num_collectives = int(np.count_nonzero(lane_E[order] == LANE_COLLECTIVE))
    sweep = _Sweep(
        critical=np.zeros(num_functions, np.int64),
        level_ns=np.zeros((NUM_LEVELS + 1, 2), np.int64),
        collective=np.zeros(num_collectives, np.int64),
        culprit=np.full(num_collectives, -1, np.int32),
        since=np.zeros(num_functions, np.int64),
        touched=np.zeros(num_functions + 1, np.int32),
        top=np.full(NUM_LANES, -1, np.int64),
        below=np.full(len(start_ns_E), -1, np.int32),
    )
    events = _Events(start_ns_E, duration_ns_E, lane_E, level_E, function_E)
    seen = _run(order, events, window[0], window[1], data_start_ns, data_end_ns, sweep)
    return CriticalPath(
        sweep.critical, sweep.level_ns, sweep.collective[:seen], sweep.culprit[:seen]
    )


class _Events(NamedTuple):
    """One row an event."""

    start: Int64
    duration: Int64
    lane: Int8
    level: Int8
    function: Int32


class _Sweep(NamedTuple):
    """What the sweep fills and works in."""

    critical: Int64
    level_ns: Int64
    collective: Int64
    culprit: Int32
    since: Int64
    """Time a function had since the collective before."""
    touched: Int32
    """How many functions had any, in row 0, then which."""
    top: Int64
    """Innermost call of each lane, a linked stack."""
    below: Int32


@compiled
def _elect(events: _Events, top: Int64, below: Int32, time: int) -> int:
    """Return the event that holds the instant after ``time``, -1 for none; drop what has ended."""
    winner = -1
    for lane in range(NUM_LANES):
        call = top[lane]
        while call >= 0 and events.start[call] + events.duration[call] <= time:
            call = below[call]
        top[lane] = call
        if call >= 0 and (winner < 0 or events.level[call] < events.level[winner]):
            winner = call
    return winner


@compiled
def _overlap(start: Int64, end: Int64, first: int, left: int, right: int) -> int:
    """Return how much of [left, right) the sorted intervals from ``first`` on cover."""
    covered = 0
    while first < len(start) and start[first] < right:
        covered += min(right, end[first]) - max(left, start[first])
        first += 1
    return covered


@compiled
def _take_longest(sweep: _Sweep) -> int:
    """Return the function with most time, -1 where there is none, and set all back to 0."""
    longest, found = 0, -1
    for k in range(1, sweep.touched[0] + 1):
        function = sweep.touched[k]
        if sweep.since[function] > longest:
            longest, found = sweep.since[function], function
        sweep.since[function] = 0
    sweep.touched[0] = 0
    return found


@compiled
def _give(events: _Events, winner: int, span: int, sweep: _Sweep) -> None:
    """Count a span of time for the function that held it."""
    function = events.function[winner]
    sweep.critical[function] += span
    if events.level[winner] != LEVEL_COLLECTIVE:
        if sweep.since[function] == 0:
            sweep.touched[0] += 1
            sweep.touched[sweep.touched[0]] = function
        sweep.since[function] += span


@compiled
def _advance(
    events: _Events, time: int, until: int, data_start: Int64, data_end: Int64, data: int,
    sweep: _Sweep,
) -> int:  # fmt: skip
    """Give out the time up to ``until``, in which nothing begins; return the loader interval."""
    top = sweep.top
    while time < until:
        winner = _elect(events, top, sweep.below, time)
        stop = until
        if winner >= 0:
            stop = min(stop, events.start[winner] + events.duration[winner])
            call = top[LANE_TRAINING]  # its level changes when a call returns
            if call >= 0:
                stop = min(stop, events.start[call] + events.duration[call])
        while data < len(data_start) and data_end[data] <= time:
            data += 1
        in_data = _overlap(data_start, data_end, data, time, stop)
        row = events.level[winner] if winner >= 0 else NUM_LEVELS
        sweep.level_ns[row, 1] += in_data
        sweep.level_ns[row, 0] += stop - time - in_data
        if winner >= 0:
            _give(events, winner, stop - time, sweep)
        time = stop
    return data


@compiled
def _run(
    order: Int32,
    events: _Events,
    window_start: int,
    window_end: int,
    data_start: Int64,
    data_end: Int64,
    sweep: _Sweep,
) -> int:
    """Sweep all events; return how many collectives have begun."""
    time = window_start
    seen = 0
    data = 0  # next loader interval that is not over
    for k in range(len(order)):
        event = order[k]
        if events.function[event] < 0:
            continue
        begin = min(events.start[event], window_end)
        if begin > time:
            data = _advance(events, time, begin, data_start, data_end, data, sweep)
            time = begin
        if events.start[event] >= window_end:
            continue
        lane = events.lane[event]
        if lane == LANE_COLLECTIVE:
            sweep.culprit[seen] = _take_longest(sweep)
            sweep.collective[seen] = event
            seen += 1
        sweep.below[event] = sweep.top[lane]
        sweep.top[lane] = event
    _advance(events, time, window_end, data_start, data_end, data, sweep)
    return seen
