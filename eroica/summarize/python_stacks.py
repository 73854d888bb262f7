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

import numpy as np
from numpy.typing import NDArray

from eroica.columns import Int32, Timeline
from eroica.records import Function, FunctionKind, Place
from eroica.summarize.call_tree import Calls, walk
from eroica.summarize.classify import (
    LANE_BACKWARD,
    LANE_TRAINING,
    SHAPE_GC,
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
    calls = Calls(
        timeline.start_ns_E,
        timeline.duration_ns_E,
        timeline.name_id_E,
        lanes.track_E,
        lanes.shape_E,
        key_N,
        is_machinery_N,
    )
    node_E, nodes = walk(host, calls, int(lanes.track_E.max(initial=-1)) + 1)
    tree = CallTree(nodes.caller, nodes.place, nodes.shape, nodes.name, nodes.module, names)
    return tree, node_E


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


class FunctionNames:
    """Turns nodes into ``Function`` records, stacks shared, hashes made once."""

    def __init__(self, tree: CallTree, names: tuple[str, ...]) -> None:
        self._tree, self._names = tree, names
        self._ids: dict[int, str] = {}
        self._stacks: dict[int, tuple[Place, ...]] = {-1: ()}

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
