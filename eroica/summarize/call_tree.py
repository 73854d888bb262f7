"""The compiled pass that turns nested host events into a tree of calls; see python_stacks.

Open calls lie as linked stacks, one a track, in one small pool: few calls are open at any time, so
a trace of ten million events needs no further column for it. The distinct calls are rows of a
growing table, found again through an open-addressed hash of (what led to it, name, shape).
"""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from eroica.columns import Int32, Int64
from eroica.read.compiled import compiled
from eroica.summarize.classify import SHAPE_GC, SHAPE_MODULE, SHAPE_PYTHON, Bool, Int8

Number = TypeVar("Number", np.int8, np.int32, np.int64)


class Open(NamedTuple):
    """Pool of open calls."""

    event: Int64
    below: Int32
    """The call around it on its track; links the free entries too."""
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


@compiled
def _grown(old: NDArray[Number], size: int) -> NDArray[Number]:
    new = np.full(size, -1, old.dtype)
    for i in range(len(old)):  # a slice would compile numba's shape errors: seconds
        new[i] = old[i]
    return new


@compiled
def _grown_pool(pool: Open) -> Open:
    """Double the pool; the new entries are linked as free ones."""
    room = len(pool.event)
    below = _grown(pool.below, 2 * room)
    for entry in range(room, 2 * room - 1):
        below[entry] = entry + 1
    return Open(
        _grown(pool.event, 2 * room),
        below,
        _grown(pool.node, 2 * room),
        _grown(pool.module, 2 * room),
    )


@compiled
def _grown_nodes(nodes: Nodes) -> Nodes:
    size = 2 * len(nodes.key)
    return Nodes(
        _grown(nodes.key, size),
        _grown(nodes.caller, size),
        _grown(nodes.place, size),
        _grown(nodes.shape, size),
        _grown(nodes.name, size),
        _grown(nodes.module, size),
        _grown(nodes.weight, size),
    )


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
def _rehashed(keys: Int64, count: int) -> Int32:
    table = np.full(4 * len(keys), -1, np.int32)
    for row in range(count):
        table[_slot(table, keys, keys[row])] = row
    return table


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
def walk(
    host: Int32,
    start: Int64,
    duration: Int64,
    name_id: Int32,
    track: Int32,
    shape: Int8,
    key_N: Int32,
    is_machinery_N: Bool,
    num_tracks: int,
) -> tuple[Int32, Nodes]:
    """Return the node of each event and the nodes; ``host`` are events in order of start."""
    node_E = np.full(len(start), -1, np.int32)
    none = np.full(256, -1, np.int32)
    pool = Open(np.full(128, -1, np.int64), none[:128].copy(), none[:128].copy(), none[:128].copy())
    pool, free = _grown_pool(pool), 128  # the first half is never used: one way to link free ones
    top = np.full(num_tracks, -1, np.int64)
    nodes = Nodes(
        np.full(256, -1, np.int64),
        none.copy(),
        none.copy(),
        np.full(256, -1, np.int8),
        none.copy(),
        none.copy(),
        np.zeros(256, np.int64),
    )
    table = _rehashed(nodes.key, 0)
    count = 0
    for k in range(len(host)):
        event = host[k]
        on = track[event]
        while top[on] >= 0:
            entry = top[on]
            if start[pool.event[entry]] + duration[pool.event[entry]] > start[event]:
                break
            top[on] = pool.below[entry]
            pool.below[entry] = free
            free = entry
        around = top[on]
        inner = pool.node[around] if around >= 0 else -1
        inside = pool.module[around] if around >= 0 else -1
        if free < 0:
            free = len(pool.event)
            pool = _grown_pool(pool)
        entry = free
        free = pool.below[entry]
        pool.below[entry] = around
        pool.event[entry] = event
        top[on] = entry
        what = shape[event]
        row = inner
        if what == SHAPE_MODULE:  # looked through: its time is its caller's
            inside = name_id[event]
        else:
            led_by = _led_by(nodes, what, inner)
            key = (np.int64(led_by + 1) << 32) | (np.int64(key_N[name_id[event]]) << 2) | what
            at = _slot(table, nodes.key, key)
            row = table[at]
            if row < 0:
                if count == len(nodes.key):
                    nodes = _grown_nodes(nodes)
                    table = _rehashed(nodes.key, count)
                    at = _slot(table, nodes.key, key)
                row = count
                table[at] = row
                count += 1
                _fill(nodes, row, key, what, inner, is_machinery_N[name_id[event]])
            if what != SHAPE_PYTHON:
                _vote(nodes, row, inner, duration[event])
            nodes.name[row] = name_id[event]
            nodes.module[row] = inside
        node_E[event] = row
        pool.node[entry] = row if what == SHAPE_PYTHON else inner
        pool.module[entry] = inside
    return node_E, Nodes(
        nodes.key[:count],
        nodes.caller[:count],
        nodes.place[:count],
        nodes.shape[:count],
        nodes.name[:count],
        nodes.module[:count],
        nodes.weight[:count],
    )
