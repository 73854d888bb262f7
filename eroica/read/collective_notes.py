"""What the text of one event tells of a collective: operation, group, sequence, size.

Taken from c10d's metadata (``Collective name`` and its neighbors, on ``record_param_comms`` and,
where linked, on the kernel) or from the backend's annotation (``nccl:all_reduce``, with input
dimensions at best). Kept small: a long trace has hundreds of thousands of them.
"""

import math
from dataclasses import dataclass
from typing import Any

from eroica.read.kineto_info import parse_event, rank_list, whole_number
from eroica.read.names import LARGEST_WORLD

HOST_BACKENDS = frozenset(("gloo", "mpi"))
BACKENDS = HOST_BACKENDS | {"nccl", "rccl", "ucc", "xccl", "hccl", "mccl", "cncl", "eccl", "ccl"}
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
_LARGEST_BYTES = 2**62
_MOST_MEMBERS = 4 * LARGEST_WORLD
"""Of all groups that one trace names: three numbers of an event may stand for a million ranks."""


@dataclass(slots=True)
class CollectiveNote:
    """What is known of one collective; empty or -1 where it is not told."""

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


def note_of(text: bytes, groups: dict[str, tuple[int, ...]]) -> CollectiveNote | None:
    """Return what one event tells, None if it is no collective's; add its group to ``groups``."""
    event = parse_event(text)
    args = event.get("args", {})
    if "Collective name" in args:
        note = _from_metadata(args)
        if note.group and not groups.get(note.group):
            ranks = _group_ranks(args)
            is_room = sum(map(len, groups.values())) + len(ranks) <= _MOST_MEMBERS
            groups[note.group] = ranks if is_room else ()
        return note
    backend, colon, op = str(event.get("name", "")).partition(":")
    if colon and backend in BACKENDS:
        return CollectiveNote(normalize_op(op), num_bytes=_input_bytes(args))
    return None


def _from_metadata(args: dict[str, Any]) -> CollectiveNote:
    group = args.get("Process Group Name", args.get("Process Group ID"))
    sizes = [args.get(f"{side} msg nelems") for side in ("In", "Out")]
    counts = [size for size in sizes if isinstance(size, int) and size >= 0]
    width = _DTYPE_BYTES.get(_plain_dtype(args.get("dtype")), 0)
    sequence = args.get("Seq")
    return CollectiveNote(
        op=normalize_op(str(args["Collective name"])),
        group="" if group is None else str(group),
        sequence=sequence if isinstance(sequence, int) and 0 <= sequence < 2**63 else -1,
        num_bytes=min(max(counts) * width, _LARGEST_BYTES) if counts and width else -1,
    )


def _group_ranks(args: dict[str, Any]) -> tuple[int, ...]:
    """Return the global ranks of a group; long lists are cut by c10d, the pattern may be told."""
    ranks = rank_list(args.get("Process Group Ranks"))
    pattern = ("Global rank start", "Global rank stride", "Group size")
    start, stride, size = (whole_number(args.get(key)) for key in pattern)
    if ranks or start is None or not stride or not size or start + stride * size > LARGEST_WORLD:
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
        if width and isinstance(shape, list) and shape and all(isinstance(n, int) for n in shape):
            total = min(max(total, 0) + width * max(math.prod(shape), 0), _LARGEST_BYTES)
    return total


def _plain_dtype(value: object) -> str:
    return str(value).lower().replace("c10::", "").replace(" ", "") if value else ""
