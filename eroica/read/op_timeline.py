"""Operations of a pipeline-parallel job by worker, and the same as traces of ranks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eroica.columns import CollectiveColumns, Int32, Int64, Timeline, Track
from eroica.records import Warning

_TRANSFERS = {
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-gather": "all_gather",
    "send": "send_recv",
    "recv": "send_recv",
}
_COMPUTE_TRACK, _COMMUNICATION_TRACK = 0, 1


@dataclass(frozen=True)
class OpTimeline:
    """All workers' operations; rows are equally long, in file order. E operations, W workers."""

    path: str
    worker_id_E: Int32
    """Index into ``workers``."""
    op_id_E: Int32
    """Index into ``ops``."""
    step_E: Int64
    microbatch_E: Int64
    """-1 where an operation belongs to none."""
    start_ns_E: Int64
    """Since the first step's start; steps that were not recorded are left out."""
    duration_ns_E: Int64
    ops: tuple[str, ...]
    workers: tuple[tuple[int, int], ...]
    """(data-parallel rank, pipeline stage)."""
    sizes: dict[str, int] = field(default_factory=dict)
    """``dp_size``, ``pp_size``, ``tp_size``, ``world_size`` as far as they are known."""
    warnings: tuple[Warning, ...] = ()

    def rank(self, worker_id: int) -> int:
        """The first global rank of a worker."""
        data_rank, stage = self.workers[worker_id]
        return (stage * self._dp_size + data_rank) * max(self.sizes.get("tp_size", 1), 1)

    @cached_property
    def _dp_size(self) -> int:
        return max(self.sizes.get("dp_size", 0), max(w[0] for w in self.workers) + 1)

    def self_check(self) -> None:
        """Assert equal lengths, valid ids, no negative duration."""
        columns = (self.op_id_E, self.step_E, self.microbatch_E, self.start_ns_E)
        assert all(len(column) == len(self.worker_id_E) for column in columns)
        assert len(self.worker_id_E) and self.duration_ns_E.min() >= 0
        assert self.worker_id_E.max() < len(self.workers) and self.op_id_E.max() < len(self.ops)


def to_timelines(job: OpTimeline) -> list[Timeline]:
    """Give each worker's operations as a Timeline of kernels, collectives and steps."""
    transfers = [_transfer(op) for op in job.ops]
    groups = _groups(job, transfers)
    timelines = [
        _timeline(job, worker, transfers, groups[worker]) for worker in range(len(job.workers))
    ]
    return sorted(timelines, key=lambda timeline: timeline.rank or 0)


def _transfer(op: str) -> str:
    """The collective an operation's name ends in, empty for compute."""
    return next((name for end, name in _TRANSFERS.items() if op.endswith("-" + end)), "")


def _timeline(
    job: OpTimeline, worker: int, transfers: Sequence[str], groups: dict[str, tuple[int, ...]]
) -> Timeline:
    rows = np.flatnonzero(job.worker_id_E == worker)
    rows = rows[np.argsort(job.start_ns_E[rows], kind="stable")]
    op_id = job.op_id_E[rows]
    is_transfer = np.array([bool(name) for name in transfers])[op_id]
    start, duration, names = job.start_ns_E[rows], job.duration_ns_E[rows], list(job.ops)
    steps = _step_spans(job.step_E[rows], start, start + duration)
    names += [f"ProfilerStep#{number}" for number, _, _ in steps]
    num_ops, num_steps = len(rows), len(steps)
    step_names = np.arange(len(job.ops), len(names), dtype=np.int32)
    minus_one = np.full(num_ops + num_steps, -1, np.int64)
    return Timeline(
        path=job.path,
        rank=job.rank(worker),
        world_size=job.sizes.get("world_size"),
        start_ns_E=np.concatenate([start, np.array([s for _, s, _ in steps], np.int64)]),
        duration_ns_E=np.concatenate([duration, np.array([e - s for _, s, e in steps], np.int64)]),
        name_id_E=np.concatenate([op_id, step_names]),
        category_id_E=np.repeat(np.array([0, 1], np.int16), [num_ops, num_steps]),
        track_id_E=np.concatenate(
            [
                np.where(is_transfer, _COMMUNICATION_TRACK, _COMPUTE_TRACK),
                np.full(num_steps, 2),
            ]
        ).astype(np.int32),
        python_id_E=minus_one,
        python_parent_E=minus_one,
        correlation_E=minus_one,
        names=tuple(names),
        categories=("kernel", "user_annotation"),
        tracks=(
            Track("0", "compute", "compute", is_device=True, device=0, stream=0),
            Track("0", "communication", "communication", is_device=True, device=0, stream=1),
            Track("worker", "main", "main"),
        ),
        collectives=_collectives(job, worker, np.flatnonzero(is_transfer), op_id, transfers),
        groups=groups,
        metadata={"source": "op timeline", "dp_rank_stage": job.workers[worker]},
        warnings=job.warnings,
        num_bytes=Path(job.path).stat().st_size // len(job.workers),
    )


def _step_spans(step: Int64, start: Int64, end: Int64) -> list[tuple[int, int, int]]:
    """(step, start, end) in order."""
    numbers, place_E = np.unique(step, return_inverse=True)
    firsts = np.full(len(numbers), np.iinfo(np.int64).max)
    lasts = np.full(len(numbers), np.iinfo(np.int64).min)
    np.minimum.at(firsts, place_E, start)
    np.maximum.at(lasts, place_E, end)
    return list(zip(numbers.tolist(), firsts.tolist(), lasts.tolist(), strict=True))


def _collectives(
    job: OpTimeline,
    worker: int,
    event: NDArray[np.intp],
    op_id: Int32,
    transfers: Sequence[str],
) -> CollectiveColumns:
    ops = tuple(dict.fromkeys(name for name in transfers if name))
    group_of_op = [
        _group(job, worker, op) if t else "" for op, t in zip(job.ops, transfers, strict=True)
    ]
    groups = ("", *dict.fromkeys(name for name in group_of_op if name))
    op_number = np.array([ops.index(name) if name else 0 for name in transfers], np.int32)
    group_number = np.array([groups.index(name) for name in group_of_op], np.int32)
    return CollectiveColumns(
        event_C=event.astype(np.int64),
        op_id_C=op_number[op_id[event]],
        group_id_C=group_number[op_id[event]],
        sequence_C=np.full(len(event), -1, np.int64),
        num_bytes_C=np.full(len(event), -1, np.int64),
        ops=ops,
        groups=groups,
    )


def _group(job: OpTimeline, worker: int, op: str) -> str:
    """The process group an operation of a worker runs in.

    Gradients and parameters go over the data-parallel group of a stage, shared embeddings between
    first and last stage, layer norms within the tensor-parallel group, activations and their
    gradients from stage to stage.
    """
    data_rank, stage = job.workers[worker]
    if op.endswith(("-send", "-recv")):
        is_ahead = op.startswith("forward") == op.endswith("-send")  # to or from the next stage
        first = stage if is_ahead else stage - 1
        direction = op.partition("-")[0]
        return f"{direction} dp{data_rank} stage{first}-{first + 1}"
    if op.startswith("embedding"):
        return f"embedding dp{data_rank}"
    if op.startswith("layernorm"):
        return f"tensor dp{data_rank} stage{stage}"
    return f"data stage{stage}"


def _groups(job: OpTimeline, transfers: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
    """Each worker's groups and the ranks in each, by what the workers really did."""
    members: dict[str, set[int]] = defaultdict(set)
    names: list[set[str]] = [set() for _ in job.workers]
    done = np.unique(np.stack([job.worker_id_E, job.op_id_E]), axis=1)
    for worker, op_id in done.T.tolist():
        if transfers[op_id]:
            name = _group(job, worker, job.ops[op_id])
            members[name].add(job.rank(worker))
            names[worker].add(name)
    ranks = {name: tuple(sorted(group)) for name, group in members.items()}
    return [{name: ranks[name] for name in sorted(own)} for own in names]
