"""Which events of a trace are collectives, and of what operation, group, sequence and size.

On devices the collective is its kernel. NCCL's kernel names tell little (an all_to_all runs as
SendRecv, RCCL calls everything Generic), so the operation comes, in this order, from metadata on
the kernel itself; from the c10d record around the call that launched it (same correlation, then
time on the launching thread); from the annotation that covers it on its stream; from linked
kernels of the same name; from its name. On the host (gloo, mpi) the collective is the backend's
annotation on its own thread.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.columns import CollectiveColumns, Int16, Int64
from eroica.read.collective_notes import HOST_BACKENDS, CollectiveNote, normalize_op
from eroica.read.kineto_tracks import LAUNCH_CATEGORIES
from eroica.read.nccl import op_of_kernel
from eroica.read.scan import Columns

_NOT_COLLECTIVES = frozenset(("init", "wait", "pg_init", "destroy", "abort", "start_coalescing"))
_MAX_NESTING = 8


def find_collectives(
    columns: Columns,
    category_id_E: Int16,
    *,
    names: tuple[str, ...],
    categories: tuple[str, ...],
    notes: dict[int, CollectiveNote],
    default_group: str = "",
) -> CollectiveColumns:
    """Return the collectives in the order they started.

    ``notes`` says by event index what the events' own texts tell; calls whose group is told
    nowhere get ``default_group``.
    """
    finder = _Finder(columns, category_id_E, names, categories, notes)
    calls = {**finder.kernel_calls(), **finder.host_calls()}
    for call in calls.values():
        call.group = call.group or default_group
    return _to_columns(calls, columns.start_ns_E)


@dataclass
class _Finder:
    columns: Columns
    category_id_E: Int16
    names: tuple[str, ...]
    categories: tuple[str, ...]
    told: dict[int, CollectiveNote]

    # --- on the host ------------------------------------------------------------------------

    def host_calls(self) -> dict[int, CollectiveNote]:
        """Return the annotations of backends that run on the host, by event index."""
        return {
            index: call
            for index, call in self.told.items()
            if self._name(index).partition(":")[0] in HOST_BACKENDS
            and self._category(index) == "user_annotation"
            and call.op not in _NOT_COLLECTIVES
        }

    # --- on devices -------------------------------------------------------------------------

    def kernel_calls(self) -> dict[int, CollectiveNote]:
        """Return the collective kernels, by event index."""
        kernels = self._kernels()
        launches = self._launches(kernels)
        around_launch = _Cover(self, "cpu_op", "user_annotation")
        around_kernel = _Cover(self, "gpu_user_annotation")
        calls = {}
        for kernel in kernels.tolist():
            known = [self.told[kernel]] if kernel in self.told else []
            if kernel in launches:
                known += around_launch.at(launches[kernel])
            known += around_kernel.at(kernel)
            calls[kernel] = _merged(known)
        self._name_the_rest(calls)
        if not calls:
            calls = around_kernel.calls()
        calls.update(self._collective_category())
        return {index: call for index, call in calls.items() if call.op not in _NOT_COLLECTIVES}

    def _kernels(self) -> Int64:
        wanted_names = [k for k, name in enumerate(self.names) if op_of_kernel(name)]
        return np.flatnonzero(
            np.isin(self.columns.name_id_E, wanted_names) & self._is_category("kernel")
        )

    def _launches(self, kernels: Int64) -> dict[int, int]:
        """Return for each kernel the host call that launched it, where the trace has it."""
        correlation_E = self.columns.correlation_E
        correlations = correlation_E[kernels]
        correlations = correlations[correlations >= 0]
        if not len(correlations):
            return {}
        calls = np.flatnonzero(self._is_category(*LAUNCH_CATEGORIES))
        calls = calls[np.isin(correlation_E[calls], correlations)]
        call_of = dict(zip(correlation_E[calls].tolist(), calls.tolist(), strict=True))
        pairs = zip(kernels.tolist(), correlation_E[kernels].tolist(), strict=True)
        return {kernel: call_of[c] for kernel, c in pairs if c in call_of}

    def _name_the_rest(self, calls: dict[int, CollectiveNote]) -> None:
        """Give kernels without a link the operation of linked ones of the same name, or its own."""
        ops_of_name: dict[int, set[str]] = {}
        for kernel, call in calls.items():
            if call.op:
                ops_of_name.setdefault(int(self.columns.name_id_E[kernel]), set()).add(call.op)
        for kernel, call in calls.items():
            if not call.op:
                ops = ops_of_name.get(int(self.columns.name_id_E[kernel]), set())
                own = op_of_kernel(self._name(kernel))
                call.op = next(iter(ops)) if len(ops) == 1 else own

    def _collective_category(self) -> dict[int, CollectiveNote]:
        """Return the events of category collective_comm, which MTIA writes."""
        if "collective_comm" not in self.categories:
            return {}
        found = np.flatnonzero(self._is_category("collective_comm"))
        return {
            index: self.told.get(index) or CollectiveNote(normalize_op(self._name(index)))
            for index in found.tolist()
        }

    # --- shared -----------------------------------------------------------------------------

    def _is_category(self, *wanted: str) -> NDArray[np.bool_]:
        ids = [k for k, name in enumerate(self.categories) if name in wanted]
        return np.isin(self.category_id_E, ids)

    def _name(self, index: int) -> str:
        return self.names[int(self.columns.name_id_E[index])]

    def _category(self, index: int) -> str:
        return self.categories[int(self.category_id_E[index])]

    def span(self, index: int) -> tuple[int, int, int]:
        """Return (track, start, end) of an event."""
        start = int(self.columns.start_ns_E[index])
        return (
            int(self.columns.track_id_E[index]),
            start,
            start + int(self.columns.duration_ns_E[index]),
        )

    def told_in(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, CollectiveNote]]:
        """Yield the events of some categories that tell of a collective."""
        for index, call in self.told.items():
            if self._category(index) in wanted:
                yield index, call


class _Cover:
    """The telling events of some categories, to be asked which of them are around an event."""

    def __init__(self, finder: _Finder, *categories: str) -> None:
        self._finder = finder
        self._told = dict(finder.told_in(categories))
        self._by_track: dict[int, list[tuple[int, int, int]]] = {}
        for index in self._told:
            track, start, end = finder.span(index)
            self._by_track.setdefault(track, []).append((start, end, index))
        for spans in self._by_track.values():
            spans.sort()

    def at(self, index: int) -> list[CollectiveNote]:
        """Return what is told around the middle of an event on its track, innermost first."""
        track, start, end = self._finder.span(index)
        middle = (start + end) // 2
        spans = self._by_track.get(track, [])
        last = bisect.bisect_right(spans, (middle, 2**63, 0))
        return [
            self._told[spans[k][2]]
            for k in range(last - 1, max(last - 1 - _MAX_NESTING, -1), -1)
            if spans[k][1] >= middle
        ]

    def calls(self) -> dict[int, CollectiveNote]:
        return self._told


def _merged(known: list[CollectiveNote]) -> CollectiveNote:
    """Return one call of what several sources tell; the first that knows a field wins.

    A barrier is an all_reduce inside: being called one anywhere makes it one.
    """
    op = next((call.op for call in known if call.op), "")
    return CollectiveNote(
        op="barrier" if any(call.op == "barrier" for call in known) else op,
        group=next((call.group for call in known if call.group), ""),
        sequence=next((call.sequence for call in known if call.sequence >= 0), -1),
        num_bytes=next((call.num_bytes for call in known if call.num_bytes >= 0), -1),
    )


def _to_columns(calls: dict[int, CollectiveNote], start_ns_E: Int64) -> CollectiveColumns:
    index_C = np.array(sorted(calls), np.int64)
    index_C = index_C[np.argsort(start_ns_E[index_C], kind="stable")]
    ordered = [calls[index] for index in index_C.tolist()]
    ops = tuple(sorted({call.op for call in ordered}))
    groups = ("", *sorted({call.group for call in ordered} - {""}))
    op_ids = {op: k for k, op in enumerate(ops)}
    group_ids = {group: k for k, group in enumerate(groups)}
    return CollectiveColumns(
        event_C=index_C,
        op_id_C=np.array([op_ids[call.op] for call in ordered], np.int32),
        group_id_C=np.array([group_ids[call.group] for call in ordered], np.int32),
        sequence_C=np.array([call.sequence for call in ordered], np.int64),
        num_bytes_C=np.array([call.num_bytes for call in ordered], np.int64),
        ops=ops,
        groups=groups,
    )
