"""Call stacks of the host threads: every event to a node of one tree of calls.

Two Python events are the same function only if their whole call stack is equal (paper section 3).
The tree holds each distinct stack once: a node is (caller's node, function). Calls nest in time on
their thread, so one pass over the events in order of start builds it; Kineto's own parent ids are
not needed and are absent from some events.

- ``nn.Module`` frames carry a number a module and would split a function by instance: they are
  looked through, the innermost one is kept as detail.
- An operator or runtime call is identified by its name and the place that led to it, which is the
  innermost frame outside torch and the standard library: ``aten::mm`` of the model and
  ``aten::mm`` of a forgotten metric are two functions. The stack shown is the one that led to it
  longest.
- ``Python GC`` is one function wherever it strikes.

Complexity O(n) after the sort; a node costs about 50 bytes, an event 8.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from eroica.columns import Int32, Int64, Timeline
from eroica.read.compiled import compiled
from eroica.records import Function, FunctionKind, Place
from eroica.summarize.classify import (
    LANE_BACKWARD,
    LANE_TRAINING,
    SHAPE_GC,
    SHAPE_MODULE,
    SHAPE_OP,
    SHAPE_PYTHON,
    Int8,
    Lanes,
)
from eroica.summarize.names import (
    PythonName,
    function_id,
    parse_python_name,
    strip_addresses,
)

Number = TypeVar("Number", np.int8, np.int32, np.int64)


@dataclass(frozen=True)
class CallTree:
    """Distinct functions of the host threads. N nodes; a caller comes before its callees."""

    caller_N: Int32
    """Node of the calling Python function, -1 at a root. Of an operator: the one that led to it
    longest."""
    place_N: Int32
    """Of an operator: node of the innermost frame that belongs to nobody's machinery."""
    shape_N: Int8
    name_id_N: Int32
    """A name of the timeline as last seen: with the def line wherever a call was fresh."""
    module_id_N: Int32
    """Name of the innermost ``nn.Module`` around it, -1 where none."""
    names: dict[int, PythonName]
    """Name id to the parsed name, for Python names."""


def build_call_tree(timeline: Timeline, lanes: Lanes, order: Int32) -> tuple[CallTree, Int32]:
    """Return the tree of the host events and the node of each event, -1 for other lanes.

    ``order`` is from ``order_events``.
    """
    host = order[(lanes.lane_E[order] == LANE_TRAINING) | (lanes.lane_E[order] == LANE_BACKWARD)]
    python = host[lanes.shape_E[host] != SHAPE_OP]
    key_N, is_machinery_N, names = _number_names(timeline, python)
    node_E, caller, place, shape, name_id, module_id = _walk(
        host,
        timeline.start_ns_E,
        timeline.duration_ns_E,
        timeline.name_id_E,
        lanes.track_E,
        lanes.shape_E,
        key_N,
        is_machinery_N,
        int(lanes.track_E.max()) + 1 if len(lanes.track_E) else 0,
    )
    return CallTree(caller, place, shape, name_id, module_id, names), node_E


def _number_names(
    timeline: Timeline, python: Int32
) -> tuple[Int32, NDArray[np.bool_], dict[int, PythonName]]:
    """Number names so that equal functions have equal numbers; ops keep their own."""
    used = np.zeros(len(timeline.names), bool)
    used[timeline.name_id_E[python]] = True
    key_N = np.arange(len(timeline.names), dtype=np.int32)
    is_machinery_N = np.ones(len(timeline.names), bool)
    names: dict[int, PythonName] = {}
    numbers: dict[str, int] = {}
    for name_id in np.flatnonzero(used):
        parsed = parse_python_name(timeline.names[name_id])
        names[int(name_id)] = parsed
        key_N[name_id] = numbers.setdefault(parsed.identity, int(name_id))
        is_machinery_N[name_id] = parsed.is_machinery
    return key_N, is_machinery_N, names


@compiled
def _grown(old: NDArray[Number], size: int) -> NDArray[Number]:
    new = np.full(size, -1, old.dtype)
    new[: len(old)] = old
    return new


@compiled
def _slot(table: Int32, owner: Int64, key: int) -> int:
    """Return the slot of ``key`` in an open-addressed table, or the free one it belongs in."""
    mask = len(table) - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    at = np.int64(mixed >> np.uint64(20)) & mask
    while table[at] >= 0 and owner[table[at]] != key:
        at = (at + 1) & mask
    return int(at)


@compiled
def _walk(
    host: Int32,
    start: Int64,
    duration: Int64,
    name_id: Int32,
    track: Int32,
    shape: Int8,
    key_N: Int32,
    is_machinery_N: NDArray[np.bool_],
    num_tracks: int,
) -> tuple[Int32, Int32, Int32, Int8, Int32, Int32]:
    node = np.full(len(start), -1, np.int32)
    # Calls that are open, as linked stacks in one pool; few at any time, so the pool is small.
    room = 256
    opened = np.full(room, -1, np.int64)  # event
    below = np.arange(1, room + 1).astype(np.int32)  # also links the free entries
    below[room - 1] = -1
    context = np.full(room, -1, np.int32)  # innermost Python node at the event
    module = np.full(room, -1, np.int32)  # innermost nn.Module name at the event
    free = 0
    top = np.full(num_tracks, -1, np.int32)
    size = 1024
    table = np.full(4 * size, -1, np.int32)
    owner = np.full(size, -1, np.int64)
    caller = np.full(size, -1, np.int32)
    place = np.full(size, -1, np.int32)
    kinds = np.full(size, -1, np.int8)
    last_name = np.full(size, -1, np.int32)
    last_module = np.full(size, -1, np.int32)
    weight = np.zeros(size, np.int64)  # of the caller, by majority vote over time
    count = 0
    for k in range(len(host)):
        event = host[k]
        on = track[event]
        while top[on] >= 0:
            entry = top[on]
            if start[opened[entry]] + duration[opened[entry]] > start[event]:
                break
            top[on] = below[entry]
            below[entry] = free
            free = entry
        around = top[on]
        inner = context[around] if around >= 0 else -1
        inside = module[around] if around >= 0 else -1
        what = shape[event]
        if free < 0:
            opened, below = _grown(opened, 2 * room), _grown(below, 2 * room)
            context, module = _grown(context, 2 * room), _grown(module, 2 * room)
            for entry in range(room, 2 * room - 1):
                below[entry] = entry + 1
            free = room
            room *= 2
        entry = free
        free = below[entry]
        below[entry] = around
        opened[entry] = event
        top[on] = entry
        if what == SHAPE_MODULE:
            node[event] = inner
            context[entry] = inner
            module[entry] = name_id[event]
            continue
        led_by = inner
        if what == SHAPE_OP:
            led_by = place[inner] if inner >= 0 else -1
        elif what == SHAPE_GC:
            led_by = -1
        key = (np.int64(led_by + 1) << 32) | (np.int64(key_N[name_id[event]]) << 2) | what
        at = _slot(table, owner, key)
        found = table[at]
        if found < 0:
            if count == size:
                size *= 2
                owner = _grown(owner, size)
                caller = _grown(caller, size)
                place = _grown(place, size)
                kinds = _grown(kinds, size)
                last_name = _grown(last_name, size)
                last_module = _grown(last_module, size)
                weight = _grown(weight, size)
                table = np.full(4 * size, -1, np.int32)
                for old in range(count):
                    table[_slot(table, owner, owner[old])] = old
                at = _slot(table, owner, key)
            found = count
            count += 1
            table[at] = found
            owner[found] = key
            kinds[found] = what
            caller[found] = inner
            weight[found] = 0
            if what == SHAPE_PYTHON:
                inherited = place[inner] if inner >= 0 else -1
                place[found] = inherited if is_machinery_N[name_id[event]] else found
            else:
                place[found] = led_by
        if what != SHAPE_PYTHON:
            if caller[found] == inner:
                weight[found] += duration[event]
            elif weight[found] >= duration[event]:
                weight[found] -= duration[event]
            else:
                caller[found] = inner
                weight[found] = duration[event] - weight[found]
        last_name[found] = name_id[event]
        last_module[found] = inside
        node[event] = found
        context[entry] = found if what == SHAPE_PYTHON else inner
        module[entry] = inside
    return (
        node,
        caller[:count],
        place[:count],
        kinds[:count],
        last_name[:count],
        last_module[:count],
    )


class FunctionNames:
    """Turns nodes into ``Function`` records, stacks shared, hashes made once."""

    def __init__(self, tree: CallTree, names: tuple[str, ...]) -> None:
        self._tree, self._names = tree, names
        self._ids: dict[int, str] = {}
        self._stacks: dict[int, tuple[Place, ...]] = {-1: ()}

    def is_builtin(self, node: int) -> bool:
        """Whether the node is a call into C that Python made."""
        parsed = self._tree.names.get(int(self._tree.name_id_N[node]))
        return parsed is not None and parsed.is_builtin

    def place(self, node: int) -> Place:
        parsed = self._tree.names[int(self._tree.name_id_N[node])]
        return Place(name=parsed.name, file=parsed.file, line=parsed.line)

    def stack(self, node: int) -> tuple[Place, ...]:
        """Return the frames from a node outwards, the node first; -1 is the empty stack."""
        missing = []
        while node not in self._stacks:
            missing.append(node)
            node = int(self._tree.caller_N[node])
        for inner in reversed(missing):
            outer = self._stacks[int(self._tree.caller_N[inner])]
            self._stacks[inner] = (self.place(inner), *outer)
        return self._stacks[missing[0] if missing else node]

    def id(self, node: int) -> str:
        """Return the hash of the node's whole normalized stack."""
        missing = []
        while node >= 0 and node not in self._ids:
            missing.append(node)
            node = int(self._tree.caller_N[node])
        for inner in reversed(missing):
            caller = int(self._tree.caller_N[inner])
            outer = self._ids[caller] if caller >= 0 else ""
            parsed = self._tree.names[int(self._tree.name_id_N[inner])]
            self._ids[inner] = function_id("python", outer, parsed.identity)
        return self._ids[missing[0] if missing else node]

    def function(self, node: int) -> Function:
        """Return the record of a node."""
        tree = self._tree
        shape = int(tree.shape_N[node])
        caller = int(tree.caller_N[node])
        module_id = int(tree.module_id_N[node])
        module = self._names[module_id] if module_id >= 0 else ""
        if shape == SHAPE_PYTHON:
            here = self.place(node)
            return Function(
                id=self.id(node),
                kind="python",
                name=here.name,
                file=here.file,
                line=here.line,
                stack=self.stack(caller),
                module=module,
            )
        name = strip_addresses(self._names[int(tree.name_id_N[node])])
        kind: FunctionKind = "python" if shape == SHAPE_GC else "op"
        led_by = int(tree.place_N[node])
        place = ""
        if led_by >= 0:
            place = tree.names[int(tree.name_id_N[led_by])].identity
        return Function(
            id=function_id(kind, name, place),
            kind=kind,
            name=name,
            stack=self.stack(caller),
            module=module,
        )
