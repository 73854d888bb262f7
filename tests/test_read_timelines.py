"""Op-level timelines of pipeline jobs, Parquet and JSON."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from eroica.errors import InputError
from eroica.read.timelines import read_op_timeline, read_timelines

SHARED = Path(os.environ.get("EROICA_SHARED", Path(__file__).parents[2] / "shared")) / "data"
JOB = SHARED / "straggler_jobs"
needs_job = pytest.mark.skipif(not JOB.is_dir(), reason="the shared data is not there")

ROWS = [
    # dp_rank, stage, step, op, start s, duration s, microbatch
    (0, 0, 10, "forward-compute", 0.0, 2.0, 0),
    (0, 0, 10, "forward-send", 2.0, 0.5, 0),
    (0, 1, 10, "forward-recv", 0.5, 2.0, 0),
    (0, 1, 10, "forward-compute", 2.5, 1.0, 0),
    (0, 1, 10, "backward-send", 3.5, 0.25, 0),
    (0, 0, 10, "backward-recv", 3.0, 0.75, 0),
    (0, 0, 10, "grads-reduce-scatter", 4.0, 1.0, -1),
    (1, 0, 10, "grads-reduce-scatter", 3.0, 2.0, -1),
    (0, 0, 11, "forward-compute", 0.0, 2.0, 0),
]


def write_parquet(path, rows=ROWS):
    columns = list(zip(*rows, strict=True))
    names = ["dp_rank", "stage", "step", "optype", "start_ts", "duration", "mb_id"]
    pq.write_table(pa.table(dict(zip(names, map(list, columns), strict=True))), path)
    return path


def write_json(path, rows=ROWS):
    events = [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": dp,
            "tid": stage * 10,
            "args": {"name": f"PP rank {stage}, TP rank 0, compute"},
        }
        for dp, stage in {(row[0], row[1]) for row in rows}
    ]
    for dp, stage, step, op, start, duration, microbatch in rows:
        args = {"step": step, "mb_id": microbatch}
        times = {"ts": (start + (step - 10) * 6) * 1e6, "dur": duration * 1e6}
        events.append(
            {"name": op, "cat": op, "ph": "X", "pid": dp, "tid": stage * 10, **times, "args": args}
        )
    path.write_text(json.dumps(events))
    return path


@pytest.fixture
def meta(tmp_path):
    (tmp_path / "meta-J.yaml").write_text("trial_name: J\ndp_size: 2\ntp_size: 4\nworld_size: 16\n")


def test_parquet_and_json_of_the_same_job_agree(tmp_path, meta):
    table = read_op_timeline(write_parquet(tmp_path / "trace-J.parquet"))
    events = read_op_timeline(write_json(tmp_path / "timeline-J.json"))
    for job in (table, events):
        job.self_check()
        assert job.workers == ((0, 0), (0, 1), (1, 0))
        assert job.sizes["tp_size"] == 4 and job.sizes["world_size"] == 16
        assert [job.rank(worker) for worker in range(3)] == [0, 8, 4]
    assert table.duration_ns_E.tolist() == events.duration_ns_E.tolist()
    assert [table.ops[i] for i in table.op_id_E] == [events.ops[i] for i in events.op_id_E]
    assert table.microbatch_E.tolist() == events.microbatch_E.tolist()


def test_steps_of_a_table_lie_one_behind_the_other(tmp_path):
    job = read_op_timeline(write_parquet(tmp_path / "trace-J.parquet"))
    assert job.start_ns_E.tolist()[:2] == [0, 2_000_000_000]
    assert job.start_ns_E.tolist()[-1] == 5_000_000_000 + 1_000_000


def test_workers_become_timelines_with_steps_groups_and_collectives(tmp_path, meta):
    first, second, third = read_timelines(write_parquet(tmp_path / "trace-J.parquet"))
    for timeline in (first, second, third):
        timeline.self_check()
    assert [first.rank, second.rank, third.rank] == [0, 4, 8] and first.world_size == 16
    assert first.groups == {
        "backward dp0 stage0-1": (0, 8),
        "data stage0": (0, 4),
        "forward dp0 stage0-1": (0, 8),
    }
    assert third.groups == {"backward dp0 stage0-1": (0, 8), "forward dp0 stage0-1": (0, 8)}
    calls = first.collectives
    named = [
        (calls.ops[op], calls.groups[group])
        for op, group in zip(calls.op_id_C, calls.group_id_C, strict=True)
    ]
    assert named == [
        ("send_recv", "forward dp0 stage0-1"),
        ("send_recv", "backward dp0 stage0-1"),
        ("reduce_scatter", "data stage0"),
    ]
    assert [name for name in first.names if name.startswith("Profiler")] == [
        "ProfilerStep#10",
        "ProfilerStep#11",
    ]


def test_rows_without_a_worker_or_with_negative_time_are_dropped_with_a_count(tmp_path):
    rows = [*ROWS, (-1, 0, 10, "gc", 0.0, 1.0, -1), (0, 0, 10, "gc", 0.0, -1.0, -1)]
    job = read_op_timeline(write_parquet(tmp_path / "trace-J.parquet", rows))
    assert len(job.op_id_E) == len(ROWS)
    assert job.warnings[0].what.startswith("2 operations")


def test_what_is_no_timeline_is_refused(tmp_path):
    empty = tmp_path / "a.json"
    empty.write_text("[]")
    other = tmp_path / "b.parquet"
    pq.write_table(pa.table({"x": [1]}), other)
    cut = tmp_path / "c.parquet"
    cut.write_bytes(write_parquet(tmp_path / "d.parquet").read_bytes()[:200])
    for path in (empty, other, cut):
        with pytest.raises(InputError):
            read_op_timeline(path)


def test_cut_off_json_gives_what_is_whole(tmp_path):
    path = write_json(tmp_path / "timeline-J.json")
    path.write_bytes(path.read_bytes()[:-150])
    job = read_op_timeline(path)
    assert 0 < len(job.op_id_E) < len(ROWS) and "broken at byte" in job.warnings[0].what


@needs_job
def test_the_slow_worker_of_the_real_job_computes_twice_as_long():
    job = read_op_timeline(JOB / "trace-AR.parquet")
    job.self_check()
    assert len(job.op_id_E) == 117_216 and len(job.workers) == 16
    backward = job.op_id_E == job.ops.index("backward-compute")
    means = [
        float(job.duration_ns_E[backward & (job.worker_id_E == worker)].mean())
        for worker in range(16)
    ]
    assert job.workers[int(np.argmax(means))] == (0, 0)
    assert max(means) / float(np.median(means)) > 1.9


@needs_job
def test_computation_of_the_real_job_is_the_same_in_both_forms():
    table = read_op_timeline(JOB / "trace-AR.parquet")
    events = read_op_timeline(JOB / "timeline-AR.json.gz")
    assert table.workers == events.workers and len(table.op_id_E) == len(events.op_id_E)
    for op in ("backward-compute", "forward-compute", "optimizer"):
        durations = [
            sorted(job.duration_ns_E[job.op_id_E == job.ops.index(op)].tolist())
            for job in (table, events)
        ]
        assert durations[0] == durations[1]
    timelines = read_timelines(JOB / "trace-AR.parquet")
    assert [timeline.rank for timeline in timelines] == list(range(0, 64, 4))
    assert timelines[0].groups["data stage0"] == (0, 4, 8, 12)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_flipped_files_end_in_a_timeline_or_an_input_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("flip")
    make, name = data.draw(
        st.sampled_from([(write_parquet, "trace-J.parquet"), (write_json, "timeline-J.json")])
    )
    path = make(folder / name)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        for timeline in read_timelines(path):
            timeline.self_check()
    except InputError:
        return


def test_a_damaged_name_of_an_operation_is_kept_as_far_as_it_can_be_read(tmp_path):
    path = write_parquet(tmp_path / "trace-J.parquet")
    raw = path.read_bytes()
    name = read_op_timeline(path).ops[0].encode()
    assert name in raw
    path.write_bytes(raw.replace(name, b"\x80" + name[1:]))
    damaged = "\N{REPLACEMENT CHARACTER}" + name[1:].decode()
    assert damaged in read_op_timeline(path).ops
