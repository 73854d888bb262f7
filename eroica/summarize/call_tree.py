"""The compiled pass that turns nested host events into a tree of calls; see python_stacks.

Open calls lie as linked stacks, one a track, in one small pool: few calls are open at any time, so
a trace of ten million events needs no further column for it. The distinct calls are rows of a
growing table, found again through an open-addressed hash of (what led to it, name, shape). Where
pool or table is full the pass stops, they are made larger, and it goes on.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.columns import Int32, Int64
from eroica.read.compiled import compiled
from eroica.summarize.classify import SHAPE_GC, SHAPE_MODULE, SHAPE_PYTHON, Bool, Int8

_FIRST_OPEN = 128
_FIRST_NODES = 256
# What the pass stopped at.
_DONE, _POOL_FULL, _TABLE_FULL = range(3)
# ``counters``.
_POSITION, _FREE, _NUM_OPENED, _NUM_NODES = range(4)


class Calls(NamedTuple):
    """What is known of the events; N rows a name, else one an event."""

    start: Int64
    duration: Int64
    name_id: Int32
    track: Int32
    shape: Int8
    key_N: Int32
    """Equal functions have equal numbers."""
    is_machinery_N: Bool


class Open(NamedTuple):
    """Pool of open calls."""

    event: Int64
    below: Int32
    """The call around it on its track; links the entries given back too."""
    node: Int32
    """Innermost Python node, itself or around it."""
    module: Int32
    """Name of the innermost ``nn.Module``."""


class Nodes(NamedTuple):
    """Rows of distinct calls; the fields are those of ``CallTree``."""

    key: Int64
    caller: Int32
    place: Int32
    shape: Int8
    name: Int32
    module: Int32
    weight: Int64
    """Of the caller, by majority vote over time."""


def walk(host: Int32, calls: Calls, num_tracks: int) -> tuple[Int32, Nodes]:
    """Return the node of each event and the nodes; ``host`` are events in order of start."""
    node_E = np.full(len(calls.start), -1, np.int32)
    top = np.full(num_tracks, -1, np.int64)
    pool = Open(
        np.empty(_FIRST_OPEN, np.int64),
        *(np.empty(_FIRST_OPEN, np.int32) for _ in range(3)),
    )
    nodes = _empty_nodes()
    table = _hashed(nodes.key, 0)
    counters = np.zeros(4, np.int64)
    counters[_FREE] = -1
    while status := _walk(host, calls, pool, nodes, table, top, counters, node_E):
        if status == _POOL_FULL:
            pool = Open._make(_twice(column) for column in pool)
        else:
            nodes = Nodes._make(_twice(column) for column in nodes)
            table = _hashed(nodes.key, int(counters[_NUM_NODES]))
    return node_E, Nodes._make(column[: counters[_NUM_NODES]].copy() for column in nodes)


def _empty_nodes() -> Nodes:
    ids = (np.empty(_FIRST_NODES, np.int32) for _ in range(4))
    key, weight = (np.empty(_FIRST_NODES, np.int64) for _ in range(2))
    shape = np.empty(_FIRST_NODES, np.int8)
    return Nodes(key, next(ids), next(ids), shape, next(ids), next(ids), weight)


def _twice(column: NDArray[Any]) -> NDArray[Any]:
    larger = np.empty(2 * len(column), column.dtype)
    larger[: len(column)] = column
    return larger


def _hashed(keys: Int64, count: int) -> Int32:
    table = np.full(4 * len(keys), -1, np.int32)
    _fill_table(table, keys, count)
    return table


@compiled
def _fill_table(table: Int32, keys: Int64, count: int) -> None:
    for row in range(count):
        table[_slot(table, keys, keys[row])] = row


@compiled
def _slot(table: Int32, keys: Int64, key: int) -> int:
    """Return the slot of ``key`` in an open-addressed table, or the free one it belongs in."""
    mask = len(table) - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    at = np.int64(mixed >> np.uint64(20)) & mask
    while table[at] >= 0 and keys[table[at]] != key:
        at = (at + 1) & mask
    return int(at)


@compiled
def _vote(nodes: Nodes, row: int, caller: int, duration: int) -> None:
    """Count an execution for its caller: the one that led to most time remains."""
    if nodes.caller[row] == caller:
        nodes.weight[row] += duration
    elif nodes.weight[row] >= duration:
        nodes.weight[row] -= duration
    else:
        nodes.caller[row] = caller
        nodes.weight[row] = duration - nodes.weight[row]


@compiled
def _led_by(nodes: Nodes, shape: int, inner: int) -> int:
    """Return the node that is part of a call's identity: its caller, its place, or none."""
    if shape == SHAPE_PYTHON:
        return inner
    if shape == SHAPE_GC or inner < 0:
        return -1
    return int(nodes.place[inner])


@compiled
def _fill(nodes: Nodes, row: int, key: int, shape: int, inner: int, is_machinery: bool) -> None:
    """Write a new row. A machinery frame stands at the place of the frame around it."""
    nodes.key[row] = key
    nodes.shape[row] = shape
    nodes.caller[row] = inner
    nodes.weight[row] = 0
    around = nodes.place[inner] if inner >= 0 else -1
    if shape == SHAPE_GC:
        around = -1
    nodes.place[row] = row if shape == SHAPE_PYTHON and not is_machinery else around


@compiled
def _close_ended(calls: Calls, event: int, pool: Open, top: Int64, counters: Int64) -> None:
    """Take off the stack of the event's track what has ended when it begins."""
    on = calls.track[event]
    entry = top[on]
    while entry >= 0:
        open_event = pool.event[entry]
        if calls.start[open_event] + calls.duration[open_event] > calls.start[event]:
            break
        below = pool.below[entry]
        pool.below[entry] = counters[_FREE]
        counters[_FREE] = entry
        entry = below
    top[on] = entry


@compiled
def _open(pool: Open, counters: Int64) -> int:
    """Return an entry of the pool that is free; there is one."""
    entry = int(counters[_FREE])
    if entry >= 0:
        counters[_FREE] = pool.below[entry]
    else:
        entry = int(counters[_NUM_OPENED])
        counters[_NUM_OPENED] = entry + 1
    return entry


@compiled
def _find(calls: Calls, event: int, inner: int, nodes: Nodes, table: Int32, counters: Int64) -> int:
    """Return the row of the call that an event is, a new one if it is the first of its kind."""
    what = calls.shape[event]
    name = calls.name_id[event]
    led_by = _led_by(nodes, what, inner)
    key = (np.int64(led_by + 1) << 32) | (np.int64(calls.key_N[name]) << 2) | what
    at = _slot(table, nodes.key, key)
    row = int(table[at])
    if row < 0:
        row = int(counters[_NUM_NODES])
        counters[_NUM_NODES] = row + 1
        table[at] = row
        _fill(nodes, row, key, what, inner, calls.is_machinery_N[name])
    if what != SHAPE_PYTHON:
        _vote(nodes, row, inner, calls.duration[event])
    return row


@compiled
def _walk(
    host: Int32,
    calls: Calls,
    pool: Open,
    nodes: Nodes,
    table: Int32,
    top: Int64,
    counters: Int64,
    node_E: Int32,
) -> int:
    """Go on from the event at hand; return what it stopped at."""
    for k in range(counters[_POSITION], len(host)):
        counters[_POSITION] = k
        event = host[k]
        if counters[_NUM_NODES] == len(nodes.key):
            return _TABLE_FULL
        _close_ended(calls, event, pool, top, counters)
        if counters[_FREE] < 0 and counters[_NUM_OPENED] == len(pool.event):
            return _POOL_FULL
        around = top[calls.track[event]]
        inner = pool.node[around] if around >= 0 else -1
        inside = pool.module[around] if around >= 0 else -1
        row = inner
        if calls.shape[event] == SHAPE_MODULE:  # looked through: its time is its caller's
            inside = calls.name_id[event]
        else:
            row = _find(calls, event, inner, nodes, table, counters)
            nodes.name[row] = calls.name_id[event]
            nodes.module[row] = inside
        node_E[event] = row
        entry = _open(pool, counters)
        pool.below[entry], pool.event[entry] = around, event
        pool.node[entry] = row if calls.shape[event] == SHAPE_PYTHON else inner
        pool.module[entry] = inside
        top[calls.track[event]] = entry
    return _DONE
