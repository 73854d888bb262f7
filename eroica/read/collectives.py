"""Which events of a trace are collectives, and of what operation, group, sequence and size.

On devices the collective is its kernel. NCCL's kernel names tell little (an all_to_all runs as
SendRecv, RCCL calls everything Generic), so the operation comes, in this order, from metadata on
the kernel itself; from the c10d record around the call that launched it (same correlation, then
time on the launching thread); from the annotation that covers it on its stream; from linked
kernels of the same name; from its name. On the host (gloo, mpi) the collective is the backend's
annotation on its own thread.
"""

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eroica.columns import CollectiveColumns, Int16, Int64, Track
from eroica.read import scan
from eroica.read.kineto_columns import Marked
from eroica.read.kineto_info import TraceInfo, parse_event, rank_list, whole_number
from eroica.read.kineto_tracks import LAUNCH_CATEGORIES
from eroica.read.scan import Columns

_HOST_BACKENDS = frozenset(("gloo", "mpi"))
_BACKENDS = _HOST_BACKENDS | {"nccl", "rccl", "ucc", "xccl", "hccl", "mccl", "cncl", "eccl", "ccl"}
_KERNEL = re.compile(r"(?:nccl|rccl)(?:Sym|Symk)?(?:Dev)?Kernel\w*?_(\w+?)(?:_|\(|$)|oneccl_(\w+)")
_OWN_KERNELS = re.compile(r"cross_device_reduce|(?:multimem|one_shot|two_shot)_all_reduce")
_NOT_COLLECTIVES = frozenset(("init", "wait", "pg_init", "destroy", "abort", "start_coalescing"))
_SUFFIXES = ("_base", "_coalesced", "_tensor", "_into", "_single", "_out", "_sparse", "_object")
_SPELLINGS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_allv": "all_to_all",
    "alltoallv": "all_to_all",
    "all_reduce_barrier": "barrier",
    "sendrecv": "send_recv",
    "send": "send_recv",
    "recv": "send_recv",
    "isend": "send_recv",
    "irecv": "send_recv",
    "recvanysource": "send_recv",
    "recv_any_source": "send_recv",
    "batch_isend_irecv": "send_recv",
    "pointtopoint": "send_recv",
}
_DTYPE_BYTES = {
    **dict.fromkeys(("double", "long", "longint", "complexfloat", "int64", "float64"), 8),
    **dict.fromkeys(("float", "int", "float32", "int32", "complexhalf", "unsignedint"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "shortint", "float16", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "signedchar", "unsignedchar", "int8", "uint8"), 1),
    "complexdouble": 16,
}
_MAX_NESTING = 8


@dataclass
class _Call:
    """What is known of one collective."""

    op: str = ""
    group: str = ""
    sequence: int = -1
    num_bytes: int = -1


def normalize_op(name: str) -> str:
    """Return torch's word for a collective: ``_allgather_base`` becomes ``all_gather``.

    Takes names with or without backend (``nccl:all_reduce``); sends and receives become
    ``send_recv``, because they are two sides of one transfer.
    """
    op = name.rpartition(":")[2].split(" ")[0].strip().lower().strip("_")
    shortened = True
    while shortened:
        shortened = False
        for suffix in _SUFFIXES:
            if op.endswith(suffix):
                op, shortened = op[: -len(suffix)], True
    return _SPELLINGS.get(op, op)


def find_collectives(
    columns: Columns,
    category_id_E: Int16,
    *,
    names: tuple[str, ...],
    categories: tuple[str, ...],
    tracks: tuple[Track, ...],
    marked: Sequence[Marked],
    info: TraceInfo,
) -> tuple[CollectiveColumns, dict[str, tuple[int, ...]]]:
    """Return the collectives in the order they started, and the groups their metadata list."""
    finder = _Finder(columns, category_id_E, names, categories, tracks)
    finder.take_marked(marked)
    calls = {**finder.kernel_calls(), **finder.host_calls()}
    only_group = next(iter(info.groups)) if len(info.groups) == 1 else ""
    for call in calls.values():
        call.group = call.group or only_group
    return _to_columns(calls, columns.start_ns_E), finder.groups


@dataclass
class _Finder:
    columns: Columns
    category_id_E: Int16
    names: tuple[str, ...]
    categories: tuple[str, ...]
    tracks: tuple[Track, ...]
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    told: dict[int, _Call] = field(default_factory=dict)
    """Event index to what its own text tells, for every marked event that is a collective's."""

    def take_marked(self, marked: Sequence[Marked]) -> None:
        """Parse the events the scanner set aside."""
        for item in marked:
            if item.mark == scan.MARK_COLLECTIVE:
                event = parse_event(item.text)
                name, args = str(event.get("name", "")), event.get("args", {})
                backend, colon, op = name.partition(":")
                if "Collective name" in args:
                    self.told[item.index] = self._from_metadata(args)
                elif colon and backend in _BACKENDS:
                    self.told[item.index] = _Call(normalize_op(op), num_bytes=_input_bytes(args))

    def _from_metadata(self, args: dict[str, Any]) -> _Call:
        group = args.get("Process Group Name", args.get("Process Group ID"))
        group = "" if group is None else str(group)
        if group and group not in self.groups:
            self.groups[group] = _group_ranks(args)
        sizes = [args.get(f"{side} msg nelems") for side in ("In", "Out")]
        counts = [size for size in sizes if isinstance(size, int) and size >= 0]
        width = _DTYPE_BYTES.get(_plain_dtype(args.get("dtype")), 0)
        sequence = args.get("Seq")
        return _Call(
            op=normalize_op(str(args["Collective name"])),
            group=group,
            sequence=sequence if isinstance(sequence, int) and 0 <= sequence < 2**63 else -1,
            num_bytes=min(max(counts) * width, 2**62) if counts and width else -1,
        )

    # --- on the host ------------------------------------------------------------------------

    def host_calls(self) -> dict[int, _Call]:
        """Return the annotations of backends that run on the host, by event index."""
        return {
            index: call
            for index, call in self.told.items()
            if self._name(index).partition(":")[0] in _HOST_BACKENDS
            and self._category(index) == "user_annotation"
            and call.op not in _NOT_COLLECTIVES
        }

    # --- on devices -------------------------------------------------------------------------

    def kernel_calls(self) -> dict[int, _Call]:
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
        wanted_names = [k for k, name in enumerate(self.names) if _kernel_op(name)]
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

    def _name_the_rest(self, calls: dict[int, _Call]) -> None:
        """Give kernels without a link the operation of linked ones of the same name, or its own."""
        ops_of_name: dict[int, set[str]] = {}
        for kernel, call in calls.items():
            if call.op:
                ops_of_name.setdefault(int(self.columns.name_id_E[kernel]), set()).add(call.op)
        for kernel, call in calls.items():
            if not call.op:
                ops = ops_of_name.get(int(self.columns.name_id_E[kernel]), set())
                call.op = next(iter(ops)) if len(ops) == 1 else _kernel_op(self._name(kernel))

    def _collective_category(self) -> dict[int, _Call]:
        """Return the events of category collective_comm, which MTIA writes."""
        if "collective_comm" not in self.categories:
            return {}
        found = np.flatnonzero(self._is_category("collective_comm"))
        return {i: self.told.get(i) or _Call(normalize_op(self._name(i))) for i in found.tolist()}

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

    def told_in(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, _Call]]:
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

    def at(self, index: int) -> list[_Call]:
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

    def calls(self) -> dict[int, _Call]:
        return self._told


def _merged(known: list[_Call]) -> _Call:
    """Return one call of what several sources tell; the first that knows a field wins.

    A barrier is an all_reduce inside: being called one anywhere makes it one.
    """
    op = next((call.op for call in known if call.op), "")
    return _Call(
        op="barrier" if any(call.op == "barrier" for call in known) else op,
        group=next((call.group for call in known if call.group), ""),
        sequence=next((call.sequence for call in known if call.sequence >= 0), -1),
        num_bytes=next((call.num_bytes for call in known if call.num_bytes >= 0), -1),
    )


def _kernel_op(name: str) -> str:
    """Return the operation a kernel's name tells, empty for what is no collective kernel."""
    if found := _KERNEL.match(name):
        return normalize_op(found[1] or found[2] or "")
    return "all_reduce" if _OWN_KERNELS.search(name) else ""


def _to_columns(calls: dict[int, _Call], start_ns_E: Int64) -> CollectiveColumns:
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


def _group_ranks(args: dict[str, Any]) -> tuple[int, ...]:
    """Return the global ranks of a group; long lists are cut by c10d, the pattern may be told."""
    ranks = rank_list(args.get("Process Group Ranks"))
    pattern = ("Global rank start", "Global rank stride", "Group size")
    start, stride, size = (whole_number(args.get(key)) for key in pattern)
    if ranks or start is None or not stride or not size:
        return ranks
    return tuple(range(start, start + stride * size, stride))


def _input_bytes(args: dict[str, Any]) -> int:
    """Return the size of an annotation's inputs, -1 where dimensions or type are not told."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(dims, list) and isinstance(types, list)):
        return -1
    total = -1
    for shape, dtype in zip(dims, types, strict=False):
        width = _DTYPE_BYTES.get(_plain_dtype(dtype), 0)
        if width and isinstance(shape, list) and all(isinstance(n, int) for n in shape) and shape:
            total = max(total, 0) + min(width * int(np.prod(np.array(shape, float))), 2**60)
    return total


def _plain_dtype(value: object) -> str:
    return str(value).lower().replace("c10::", "").replace(" ", "") if value else ""
