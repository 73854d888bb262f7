"""When a rank came to each collective, and what kept it since the one before.

A collective ends on all its ranks within microseconds but starts on each when it arrives, so the
starts tell who was late once the ends are aligned; no clocks are compared. A key names the same
collective on every rank: ``group|op|k`` with the trace's own sequence number where it has one, else
k counts the collectives of that group and op from 0. A trace without metadata names no group:
on a device the stream stands for it, numbered by stream id, as communicators get their streams
in the same order on all ranks; gloo's threads share one queue and stand for one group.
"""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from eroica.columns import Arrivals, Int32, Int64, Timeline
from eroica.summarize.names import strip_addresses

_ANNOTATION = re.compile(r"^(?P<backend>\w+):(?P<op>\w+)")
_KERNEL_OPS = (
    (re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"send_?recv", re.IGNORECASE), "send_recv"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
    (re.compile(r"barrier", re.IGNORECASE), "barrier"),
)


@dataclass(frozen=True)
class CollectiveFacts:
    """Op, group, sequence and size of every event of the collective lane, in order of start."""

    event_C: Int32
    op_C: tuple[str, ...]
    group_C: tuple[str, ...]
    sequence_C: Int64
    num_bytes_C: Int64


def collective_op(name: str) -> str:
    """Return torch's name of the collective that a kernel or an annotation carries out."""
    match = _ANNOTATION.match(name)
    if match:
        return match["op"]
    for pattern, op in _KERNEL_OPS:
        if pattern.search(name):
            return op
    return strip_addresses(name)[:60] if "eneric" not in name else "collective"


def collect_facts(timeline: Timeline, collective_E: Int32) -> CollectiveFacts:
    """Return what is known of the collectives at ``collective_E``."""
    columns = timeline.collectives
    row_of = {int(event): row for row, event in enumerate(columns.event_C)}
    stream_of = _number_streams(timeline, collective_E)
    ops, groups = [], []
    sequence_C = np.full(len(collective_E), -1, np.int64)
    num_bytes_C = np.full(len(collective_E), -1, np.int64)
    for i, event in enumerate(collective_E):
        row = row_of.get(int(event), -1)
        op = group = ""
        if row >= 0:
            op = columns.ops[columns.op_id_C[row]]
            group = columns.groups[columns.group_id_C[row]] if columns.group_id_C[row] > 0 else ""
            sequence_C[i] = columns.sequence_C[row]
            num_bytes_C[i] = columns.num_bytes_C[row]
        ops.append(op or collective_op(timeline.names[timeline.name_id_E[event]]))
        groups.append(group or stream_of[int(timeline.track_id_E[event])])
    return CollectiveFacts(collective_E, tuple(ops), tuple(groups), sequence_C, num_bytes_C)


def _number_streams(timeline: Timeline, collective_E: Int32) -> dict[int, str]:
    """Return the stand-in group of each track that runs collectives."""
    tracks = np.unique(timeline.track_id_E[collective_E])
    names: dict[int, str] = {}
    streams = []
    for track_id in tracks:
        track = timeline.tracks[track_id]
        stream = track.stream
        if stream is None and (track.is_device or track.name.strip().startswith("stream")):
            digits = re.search(r"\d+", track.tid)
            stream = int(digits[0]) if digits else 0
        if stream is None:
            names[int(track_id)] = "host"
        else:
            streams.append((track.device or 0, stream, int(track_id)))
    for number, (_, _, stream_track) in enumerate(sorted(streams)):
        names[stream_track] = f"stream{number}"
    return names


def build_arrivals(
    timeline: Timeline, facts: CollectiveFacts, culprit_C: Int32, function_ids: tuple[str, ...]
) -> Arrivals:
    """Return the arrivals; ``culprit_C`` numbers ``function_ids``, -1 for none."""
    counts: Counter[tuple[str, str]] = Counter()
    keys = []
    for group, op, sequence in zip(facts.group_C, facts.op_C, facts.sequence_C, strict=True):
        k = counts[group, op]
        counts[group, op] += 1
        keys.append(f"{group}|{op}|{int(sequence) if sequence >= 0 else k}")
    start = timeline.start_ns_E[facts.event_C]
    return Arrivals(
        key_C=tuple(keys),
        start_ns_C=start,
        end_ns_C=start + timeline.duration_ns_E[facts.event_C],
        num_bytes_C=facts.num_bytes_C,
        culprit_C=tuple(function_ids[i] if i >= 0 else "" for i in culprit_C),
    )
