"""Op-level timelines of pipeline-parallel jobs (ByteDance's StragglerAnalysis) -> Timeline.

They hold what each worker did by name (``forward-compute``, ``grads-reduce-scatter`` ...), step
and microbatch, as Parquet or as a list of trace events, with the job's sizes in a ``meta-*.yaml``
beside it. One worker stands for the ranks of a tensor-parallel group: Megatron's order, so that
worker (data rank d, stage s) is rank ``(s * dp_size + d) * tp_size``. ``read_timelines`` turns
each worker into the Timeline that summarize takes: compute as kernels, transfers as collectives
in the process groups they imply. Of a job that has both forms the table is the better one: its
transfers include the wait for the other side, the events do not. Source: github.com/ByteDance-Seed/StragglerAnalysis.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.columns import CollectiveColumns, Int32, Int64, Timeline, Track
from eroica.errors import InputError
from eroica.read.repair import load_json
from eroica.read.source import read_bytes
from eroica.records import Warning

MAX_BYTES = 1 << 30
_STEP_GAP_NS = 1_000_000
_COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
_THREAD = re.compile(r"PP rank (\d{1,6}), TP rank (\d{1,6}), (\S+)")
_SIZE = re.compile(r"^(\w+):\s*(\S+)\s*$", re.M)
_NEXT = "expected a table with dp_rank, stage, step, optype, start_ts and duration in seconds"
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
        dp_size = max(self.sizes.get("dp_size", 0), max(w[0] for w in self.workers) + 1)
        return (stage * dp_size + data_rank) * max(self.sizes.get("tp_size", 1), 1)

    def self_check(self) -> None:
        """Assert equal lengths, valid ids, no negative duration."""
        columns = (self.op_id_E, self.step_E, self.microbatch_E, self.start_ns_E)
        assert all(len(column) == len(self.worker_id_E) for column in columns)
        assert len(self.worker_id_E) and self.duration_ns_E.min() >= 0
        assert self.worker_id_E.max() < len(self.workers) and self.op_id_E.max() < len(self.ops)


def read_timelines(path: str | Path) -> list[Timeline]:
    """Read a file and give each worker's Timeline, in the order of ranks."""
    return to_timelines(read_op_timeline(path))


def read_op_timeline(path: str | Path) -> OpTimeline:
    """Read a Parquet or JSON timeline. InputError when it holds no operation."""
    path = Path(path)
    sizes = _sizes_beside(path)
    with path.open("rb") as stream:
        is_parquet = stream.read(4) == b"PAR1"
    return _read_parquet(path, sizes) if is_parquet else _read_json(path, sizes)


def _sizes_beside(path: Path) -> dict[str, int]:
    """The job's sizes from ``meta-NAME.yaml``, or from the only meta file in the folder."""
    job = path.name.partition(".")[0].partition("-")[2]
    found = [path.parent / f"meta-{job}.yaml"]
    if not found[0].is_file():
        found = sorted(path.parent.glob("meta*.y*ml"))
    if len(found) != 1:
        return {}
    text = found[0].read_bytes()[: 1 << 16].decode("utf-8", "replace")
    return {
        key: int(value) for key, value in _SIZE.findall(text) if re.fullmatch(r"\d{1,9}", value)
    }


# --- Parquet ----------------------------------------------------------------------------------


def _read_parquet(path: Path, sizes: dict[str, int]) -> OpTimeline:
    import pyarrow as pa
    from pyarrow import parquet as pq

    try:
        present = set(pq.read_schema(path).names)
        optional = [name for name in ("mb_id",) if name in present]
        table = pq.read_table(path, columns=[*_COLUMNS, *optional])
        op_column = table["optype"].cast(pa.string()).combine_chunks().dictionary_encode()
        numbers = {
            name: np.nan_to_num(
                np.asarray(table[name].to_numpy(zero_copy_only=False), np.float64), nan=-1
            )
            for name in table.column_names
            if name != "optype"
        }
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is no op-level timeline", str(error), _NEXT) from error
    ops = tuple(str(name) for name in op_column.dictionary.to_pylist())
    op_id = op_column.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
    step = numbers["step"].astype(np.int64)
    start = np.rint(numbers["start_ts"] * 1e9).astype(np.int64)
    duration = np.rint(numbers["duration"] * 1e9).astype(np.int64)
    return _make(
        path,
        sizes,
        places=np.stack([numbers["dp_rank"], numbers["stage"]], axis=1).astype(np.int64),
        op_id=op_id,
        step=step,
        microbatch=numbers.get("mb_id", np.full(len(step), -1.0)).astype(np.int64),
        start=_steps_in_a_row(step, start, duration),
        duration=duration,
        ops=ops,
    )


def _steps_in_a_row(step: Int64, start: Int64, duration: Int64) -> Int64:
    """Times are relative to each step's start: lay the steps one behind the other."""
    shifted, offset = start.copy(), 0
    for number in np.unique(step):
        of_step = step == number
        shifted[of_step] += offset
        offset = int((shifted[of_step] + duration[of_step]).max()) + _STEP_GAP_NS
    return shifted


# --- JSON -------------------------------------------------------------------------------------


class _Event(msgspec.Struct):
    name: str = ""
    ph: str = ""
    pid: int = -1
    tid: int | None = None
    ts: float = 0.0
    dur: float = -1.0
    args: dict[str, object] = {}


def _read_json(path: Path, sizes: dict[str, int]) -> OpTimeline:
    data, packing_defects = read_bytes(path, MAX_BYTES)
    defects = list(packing_defects)
    try:
        events = msgspec.json.decode(data, type=list[_Event])
    except (msgspec.DecodeError, UnicodeDecodeError):
        loaded = load_json(data, str(path))
        defects.extend(loaded.defects)
        events = _convert(loaded.value)
    stages: dict[tuple[int, int], int] = {}
    for event in events:
        if event.ph == "M" and event.tid is not None:
            found = _THREAD.match(str(event.args.get("name", "")))
            if found:
                stages[event.pid, event.tid] = int(found[1])
    rows = [e for e in events if e.ph == "X" and e.tid is not None and e.dur >= 0]
    if not rows:
        raise InputError(f"{path} holds no operation", "; ".join(defects), _NEXT)
    ops = {name: number for number, name in enumerate(dict.fromkeys(e.name for e in rows))}
    # without thread names: the track number, five tracks a rank
    stage = [stages.get((e.pid, e.tid or 0), -1) for e in rows]
    start = np.rint(np.array([e.ts for e in rows]) * 1000).astype(np.int64)
    return _make(
        path,
        sizes,
        places=np.stack([np.array([e.pid for e in rows]), np.array(stage)], axis=1),
        op_id=np.array([ops[e.name] for e in rows], np.int32),
        step=np.array([_whole(e.args.get("step")) for e in rows], np.int64),
        microbatch=np.array([_whole(e.args.get("mb_id")) for e in rows], np.int64),
        start=start - start.min(),
        duration=np.rint(np.array([e.dur for e in rows]) * 1000).astype(np.int64),
        ops=tuple(ops),
        defects=defects,
    )


def _convert(value: object) -> list[_Event]:
    events = []
    for item in value if isinstance(value, list) else ():
        try:
            events.append(msgspec.convert(item, _Event))
        except msgspec.ValidationError:
            continue
    return events


def _whole(value: object) -> int:
    return value if isinstance(value, int) and abs(value) < 1 << 62 else -1


def _make(
    path: Path,
    sizes: dict[str, int],
    *,
    places: Int64,
    op_id: Int32,
    step: Int64,
    microbatch: Int64,
    start: Int64,
    duration: Int64,
    ops: tuple[str, ...],
    defects: Sequence[str] = (),
) -> OpTimeline:
    good = (duration >= 0) & (places >= 0).all(axis=1)
    notes = list(defects)
    if not good.all():
        notes.append(f"{int((~good).sum())} operations without a worker or duration are dropped")
    if not good.any():
        raise InputError(f"{path} holds no operation", "; ".join(notes), _NEXT)
    workers, worker_id = np.unique(places[good], axis=0, return_inverse=True)
    return OpTimeline(
        path=str(path),
        worker_id_E=worker_id.reshape(-1).astype(np.int32),
        op_id_E=op_id[good],
        step_E=step[good],
        microbatch_E=microbatch[good],
        start_ns_E=start[good],
        duration_ns_E=duration[good],
        ops=ops,
        workers=tuple((int(dp), int(stage)) for dp, stage in workers),
        sizes=sizes,
        warnings=tuple(Warning(file=str(path), what=note) for note in notes),
    )


# --- as traces --------------------------------------------------------------------------------


def to_timelines(job: OpTimeline) -> list[Timeline]:
    """Give each worker's operations as a Timeline of kernels, collectives and steps."""
    transfers = [_transfer(op) for op in job.ops]
    timelines = [_timeline(job, worker, transfers) for worker in range(len(job.workers))]
    return sorted(timelines, key=lambda timeline: timeline.rank or 0)


def _transfer(op: str) -> str:
    """The collective an operation's name ends in, empty for compute."""
    return next((name for end, name in _TRANSFERS.items() if op.endswith("-" + end)), "")


def _timeline(job: OpTimeline, worker: int, transfers: Sequence[str]) -> Timeline:
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
        groups=_groups(job, worker, transfers),
        metadata={"source": "op timeline", "dp_rank_stage": job.workers[worker]},
        warnings=job.warnings,
        num_bytes=Path(job.path).stat().st_size // len(job.workers),
    )


def _step_spans(step: Int64, start: Int64, end: Int64) -> list[tuple[int, int, int]]:
    """(step, start, end) in order."""
    spans = []
    for number in np.unique(step):
        of_step = step == number
        spans.append((int(number), int(start[of_step].min()), int(end[of_step].max())))
    return spans


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


def _groups(job: OpTimeline, worker: int, transfers: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The worker's groups and the ranks in each, by what the workers really did."""
    pairs = zip(job.ops, transfers, strict=True)
    is_transfer = {number for number, (_, name) in enumerate(pairs) if name}
    members: dict[str, set[int]] = defaultdict(set)
    mine: set[str] = set()
    done = np.unique(np.stack([job.worker_id_E, job.op_id_E]), axis=1)
    for other, op_id in done.T.tolist():
        if op_id in is_transfer:
            name = _group(job, other, job.ops[op_id])
            members[name].add(job.rank(other))
            if other == worker:
                mine.add(name)
    return {name: tuple(sorted(members[name])) for name in sorted(mine)}
