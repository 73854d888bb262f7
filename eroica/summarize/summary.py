"""One rank's timeline to its patterns: the paper's P(f, w) = (beta, mu, sigma) a function.

Order: classify events into lanes, build the tree of calls, sweep for the critical path, fold what
is small, measure the resource. ``window`` is what the profiler recorded, else first to last event.
"""

import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.columns import HardwareSamples, Int32, Int64, RankPatterns, Timeline
from eroica.config import Parameters, load
from eroica.errors import InputError
from eroica.records import Function
from eroica.summarize.arrivals import CollectiveFacts, build_arrivals, collect_facts
from eroica.summarize.breakdown import break_down
from eroica.summarize.classify import (
    _COMMUNICATION_OP,
    LANE_COLLECTIVE,
    LANE_DEVICE,
    LANE_MEMORY,
    SHAPE_GC,
    SHAPE_OP,
    SHAPE_PYTHON,
    Lanes,
    classify,
)
from eroica.summarize.critical_path import (
    CriticalPath,
    extent,
    find_critical_path,
    order_events,
    select_events,
    tally,
)
from eroica.summarize.fold import REST, Folding, fold
from eroica.summarize.names import function_id, strip_addresses
from eroica.summarize.python_stacks import FunctionNames, build_call_tree
from eroica.summarize.resource import Use, measure
from eroica.summarize.steps import count_steps, find_loader_waits

_MAX_COUNT = 2**31 - 1
_WAIT_OR_COPY = re.compile(
    r"synchronize|memcpy|cudaFree|hipFree|cudaMalloc|hipMalloc"
    r"|\burEventWait|\burQueueFinish|\bwaitOnEvent",  # XPU and MTIA
    re.IGNORECASE,
)


def summarize(
    timeline: Timeline,
    *,
    hardware: HardwareSamples | None = None,
    parameters: Parameters | None = None,
) -> RankPatterns:
    """Return the patterns of one rank's trace.

    ``hardware`` are samples of the same rank in Unix time. A trace without a rank raises
    InputError; one without events gives patterns without functions, its window idle.
    """
    parameters = parameters or load()
    if timeline.rank is None:
        raise InputError(
            f"no rank is known for {timeline.path}",
            "neither the trace nor the file name says which rank recorded it",
            "rename the file to rank<N>.json or pass the rank",
        )
    lanes = classify(timeline)
    window = find_window(timeline, lanes)
    events = select_events(
        lanes.lane_E, timeline.start_ns_E, timeline.duration_ns_E, window[0], window[1]
    )
    order = order_events(timeline.start_ns_E, timeline.duration_ns_E, timeline.python_id_E, events)
    table = FunctionTable(timeline, lanes, order)
    path = find_critical_path(
        order,
        timeline.start_ns_E,
        timeline.duration_ns_E,
        lanes.lane_E,
        lanes.level_E,
        table.function_E,
        table.num_functions,
        window,
        *find_loader_waits(timeline, lanes),
    )
    return _assemble(timeline, lanes, window, order, table, path, hardware, parameters)


def find_window(timeline: Timeline, lanes: Lanes) -> tuple[int, int]:
    """Return (start, end) of what was recorded, relative to the timeline's base."""
    if timeline.window is not None and timeline.window[1] > timeline.window[0]:
        return timeline.window
    return extent(lanes.lane_E, timeline.start_ns_E, timeline.duration_ns_E)


class FunctionTable:
    """Numbers the functions of one timeline: kernels, copies and collectives first, then calls."""

    def __init__(self, timeline: Timeline, lanes: Lanes, order: Int32) -> None:
        self._timeline = timeline
        self._has_device = lanes.has_device
        self.tree, node_E = build_call_tree(timeline, lanes, order)
        self.nodes = FunctionNames(self.tree, timeline.names)
        collective_E = order[lanes.lane_E[order] == LANE_COLLECTIVE]
        self.facts: CollectiveFacts = collect_facts(timeline, collective_E)
        self.device_functions: list[Function] = []
        self._numbers: dict[tuple[str, str, str], int] = {}
        device = self._number_lane(order[lanes.lane_E[order] == LANE_DEVICE], "kernel")
        memory = self._number_lane(order[lanes.lane_E[order] == LANE_MEMORY], "memory")
        collective_C = np.array(
            [
                self._number("collective", op, group)
                for op, group in zip(self.facts.op_C, self.facts.group_C, strict=True)
            ],
            np.int32,
        )
        self.first_node = len(self.device_functions)
        self.num_functions = self.first_node + len(self.tree.caller_N)
        self.function_E: Int32 = node_E  # shifted in place: one column of events is enough
        self.function_E[self.function_E >= 0] += self.first_node
        for events, numbers in (device, memory, (collective_E, collective_C)):
            self.function_E[events] = numbers

    def _number_lane(self, events: Int32, kind: str) -> tuple[Int32, Int32]:
        """Return the events with their functions."""
        names = self._timeline.names
        used = np.unique(self._timeline.name_id_E[events])
        number_N = np.full(len(names), -1, np.int32)
        for name_id in used:
            number_N[name_id] = self._number(kind, strip_addresses(names[name_id]), "")
        return events, number_N[self._timeline.name_id_E[events]]

    def _number(self, kind: str, name: str, group: str) -> int:
        number = self._numbers.get((kind, name, group))
        if number is None:
            number = self._numbers[kind, name, group] = len(self.device_functions)
            self.device_functions.append(
                Function(
                    id=function_id(kind, name, group),
                    kind=kind,  # type: ignore[arg-type]
                    name=name,
                    group=group or None,
                )
            )
        return number

    def function(self, number: int) -> Function:
        """Return the record of a numbered function."""
        if number < self.first_node:
            return self.device_functions[number]
        function = self.nodes.function(number - self.first_node)
        if (
            function.kind == "op"
            and not self._has_device
            and _COMMUNICATION_OP.match(function.name)
        ):
            return msgspec.structs.replace(function, kind="collective")
        return function

    def folding(
        self, path: CriticalPath, total_ns_F: Int64, window_ns: int, rest_beta: float
    ) -> Folding:
        """Return which functions stand alone."""
        tree = self.tree
        num_nodes = len(tree.caller_N)
        caller_F = np.full(self.num_functions, -1, np.int64)
        called = tree.caller_N >= 0
        caller_F[self.first_node :][called] = tree.caller_N[called] + self.first_node
        builtin_names = {i for i, parsed in tree.names.items() if parsed.is_builtin}
        is_small_F = np.zeros(self.num_functions, bool)
        is_small_F[self.first_node :] = (tree.shape_N == SHAPE_PYTHON) & np.isin(
            tree.name_id_N, np.fromiter(builtin_names, np.int64, len(builtin_names))
        )
        is_always_F = np.zeros(self.num_functions, bool)
        is_lasting_F = np.zeros(self.num_functions, bool)
        for number, function in enumerate(self.device_functions):
            is_always_F[number] = function.kind == "collective"
            is_lasting_F[number] = function.kind == "memory"
        names = self._timeline.names
        for node in range(num_nodes) if num_nodes else ():
            if tree.shape_N[node] == SHAPE_GC:
                is_lasting_F[self.first_node + node] = True
            elif tree.shape_N[node] == SHAPE_OP:
                is_lasting_F[self.first_node + node] = bool(
                    _WAIT_OR_COPY.search(names[tree.name_id_N[node]])
                )
        return fold(
            path.critical_ns_F,
            total_ns_F,
            caller_F,
            is_small_F,
            is_always_F,
            is_lasting_F,
            window_ns,
            rest_beta,
        )


def _assemble(
    timeline: Timeline,
    lanes: Lanes,
    window: tuple[int, int],
    order: Int32,
    table: FunctionTable,
    path: CriticalPath,
    hardware: HardwareSamples | None,
    parameters: Parameters,
) -> RankPatterns:
    window_ns = window[1] - window[0]
    total_ns_F, count_F = tally(
        order, table.function_E, timeline.duration_ns_E, table.num_functions
    )
    folding = table.folding(path, total_ns_F, window_ns, parameters.rest_beta)
    functions = [table.function(int(number)) for number in folding.kept]
    critical, count, total = _folded(folding, path, total_ns_F, count_F, len(functions) + 1)
    kind_F = np.array([function.kind for function in functions] + ["rest"])
    use = _use(timeline, lanes, order, table, folding, kind_F, hardware, parameters)
    ids = (*(function.id for function in functions), REST.id)
    culprit_C = np.where(path.culprit_C >= 0, folding.target_F[path.culprit_C], -1).astype(np.int32)
    keep = slice(0, len(ids) if critical[-1] > 0 else len(functions))
    return RankPatterns(
        rank=timeline.rank if timeline.rank is not None else -1,
        functions=(*functions, REST)[keep],
        beta_F=(critical / max(window_ns, 1)).astype(np.float32)[keep],
        mu_F=use.mu_F[keep],
        sigma_F=use.sigma_F[keep],
        count_F=np.minimum(count, _MAX_COUNT).astype(np.int32)[keep],
        total_ns_F=total.astype(np.int64)[keep],
        window_ns=window_ns,
        num_steps=count_steps(timeline, lanes),
        host=timeline.host,
        proxy=use.proxy,
        breakdown=break_down(path.level_ns_LD, has_device=lanes.has_device),
        arrivals=build_arrivals(timeline, table.facts, culprit_C, ids),
        warnings=timeline.warnings,
        reference_F=use.reference_F[keep],
        groups=dict(timeline.groups),
        source=timeline.path,
        num_events=timeline.num_events,
        num_bytes=timeline.num_bytes,
    )


def _folded(
    folding: Folding, path: CriticalPath, total_ns_F: Int64, count_F: Int64, size: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return critical time, executions and time of what stands alone; the last row is rest."""
    critical = np.bincount(folding.target_F, weights=path.critical_ns_F, minlength=size)
    # A folded builtin gives its time to its caller, its calls to nobody.
    stands_F = folding.stands_F | (folding.target_F == size - 1)
    targets = folding.target_F[stands_F]
    count = np.bincount(targets, weights=count_F[stands_F], minlength=size)
    total = np.bincount(targets, weights=total_ns_F[stands_F], minlength=size)
    return critical, count, total


def _use(
    timeline: Timeline,
    lanes: Lanes,
    order: Int32,
    table: FunctionTable,
    folding: Folding,
    kind_F: NDArray[np.str_],
    hardware: HardwareSamples | None,
    parameters: Parameters,
) -> Use:
    """Return mu and sigma of what stands alone."""
    events = _measured_events(order, lanes, table, folding, with_host=hardware is not None)
    facts = table.facts
    num_bytes_E = dict(zip(facts.event_C.tolist(), facts.num_bytes_C.tolist(), strict=True))
    start = timeline.base_ns + timeline.start_ns_E[events]
    return measure(
        hardware,
        kind_F,
        start,
        start + timeline.duration_ns_E[events],
        folding.target_F[table.function_E[events]],
        np.array([num_bytes_E.get(event, -1) for event in events.tolist()], np.int64),
        parameters.critical_share,
    )


def _measured_events(
    order: Int32, lanes: Lanes, table: FunctionTable, folding: Folding, *, with_host: bool
) -> Int32:
    """Return the executions that mu and sigma are made of: of functions that stand alone."""
    if not with_host:
        order = order[lanes.lane_E[order] <= LANE_COLLECTIVE]
    order = order[table.function_E[order] >= 0]
    return order[folding.stands_F[table.function_E[order]]]
