"""Op-level timelines of pipeline-parallel jobs (ByteDance's StragglerAnalysis) -> Timeline.

They hold what each worker did by name (``forward-compute``, ``grads-reduce-scatter`` ...), step
and microbatch, as Parquet or as a list of trace events, with the job's sizes in a ``meta-*.yaml``
beside it. One worker stands for the ranks of a tensor-parallel group: Megatron's order, so that
worker (data rank d, stage s) is rank ``(s * dp_size + d) * tp_size``. ``read_timelines`` turns
each worker into the Timeline that summarize takes: compute as kernels, transfers as collectives
in the process groups they imply. Of a job that has both forms the table is the better one: its
transfers include the wait for the other side, the events do not.
Source: github.com/ByteDance-Seed/StragglerAnalysis.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from eroica.columns import Int32, Int64, Timeline
from eroica.errors import InputError
from eroica.files import read_plain
from eroica.read.op_timeline import OpTimeline, to_timelines
from eroica.read.repair import load_json
from eroica.read.source import read_bytes, read_head
from eroica.records import Warning

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 30
_LARGEST_META = 1 << 20
_STEP_GAP_NS = 1_000_000
_COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
_THREAD = re.compile(r"PP rank (\d{1,6}), TP rank (\d{1,6}), (\S+)")
_SIZE = re.compile(r"^(\w+):\s*(\S+)\s*$", re.M)
_NEXT = "expected a table with dp_rank, stage, step, optype, start_ts and duration in seconds"


def read_timelines(path: str | Path) -> list[Timeline]:
    """Read a file and give each worker's Timeline, in the order of ranks."""
    return to_timelines(read_op_timeline(path))


def read_op_timeline(path: str | Path) -> OpTimeline:
    """Read a Parquet or JSON timeline. InputError when it holds no operation."""
    path = Path(path)
    sizes = _sizes_beside(path)
    is_parquet = read_head(path, 4) == b"PAR1"
    return _read_parquet(path, sizes) if is_parquet else _read_json(path, sizes)


def _sizes_beside(path: Path) -> dict[str, int]:
    """The job's sizes from ``meta-NAME.yaml``, or from the only meta file in the folder."""
    job = path.name.partition(".")[0].partition("-")[2]
    found = [path.parent / f"meta-{job}.yaml"]
    if not found[0].is_file():
        found = sorted(path.parent.glob("meta*.y*ml"))
    if len(found) != 1:
        return {}
    try:
        text = read_plain(found[0], _LARGEST_META).decode("utf-8", "replace")
    except OSError as error:
        logger.warning("the sizes of the job are not read: %s", error)
        return {}
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
    # Parquet checks no encoding: a damaged name is kept as far as it can be read.
    names = op_column.dictionary.cast(pa.binary()).to_pylist()
    ops = tuple(name.decode(errors="replace") for name in names)
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
    _, place_E = np.unique(step, return_inverse=True)
    lengths = np.full(int(place_E.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(lengths, place_E, start + duration)
    ends = np.cumsum(lengths + _STEP_GAP_NS)
    return np.asarray(start + np.concatenate([[0], ends])[place_E], np.int64)


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
