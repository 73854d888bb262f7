"""Files made to harm: what they claim is not believed, and none takes the memory or the minutes."""

import json
import os
import time
import zipfile

import numpy as np
import pytest

from eroica import gathering, pipeline
from eroica.columns import HardwareSamples
from eroica.errors import InputError
from eroica.read import kineto_info, log_lines, names, stacks
from eroica.read.folder import find_inputs, load_evidence
from eroica.read.hardware import read_hardware, to_text
from eroica.read.kineto import read_timeline
from eroica.read.kineto_repair import repair_event
from eroica.read.logs import scan_log
from eroica.read.op_timeline import OpTimeline, to_timelines
from eroica.read.timelines import read_op_timeline
from eroica.records import JobEvidence, RankEvidence, Warning
from eroica.summarize import pack, summarize

HALF = "\ud800"
"""Half of a surrogate pair: JSON may escape it, UTF-8 cannot hold it."""


def event(name="aten::mm", ts=1, dur=5, cat="cpu_op", pid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 1, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def trace(path, events=(), rank=0, world_size=2, **more):
    info = {"backend": "nccl", "rank": rank, "world_size": world_size}
    events = [event(), *events]
    path.write_text(json.dumps({"distributedInfo": info, **more, "traceEvents": events}))
    return path


def seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


# --- ranks and worlds ---------------------------------------------------------------------------


def test_a_rank_is_a_number_below_the_largest_world():
    assert names.is_rank(0) and names.is_rank(names.LARGEST_WORLD - 1)
    assert not any(map(names.is_rank, (-1, names.LARGEST_WORLD, True, "3", 2.0, None)))


@pytest.mark.parametrize("size", [9_999_999, 10**15])
def test_a_world_that_no_job_has_is_not_counted_up_to(tmp_path, size):
    trace(tmp_path / "rank0.json", world_size=size)
    assert load_evidence(find_inputs([tmp_path])).world_size == 1


@pytest.mark.parametrize("rank", [-1, 300_000_000, 10**12])
def test_a_dump_whose_group_has_an_impossible_rank_keeps_the_others(tmp_path, rank):
    entry = {"profiling_name": "nccl:barrier", "state": "scheduled",
             "process_group": ["0", "default_pg"]}  # fmt: skip
    config = {"0": {"desc": "default_pg", "ranks": f"[0, 1, {rank}]"}}
    (tmp_path / "fr_0.json").write_text(json.dumps({"pg_config": config, "entries": [entry]}))
    evidence = load_evidence(find_inputs([tmp_path]))
    assert evidence.world_size == 2
    assert evidence.ranks[0].flight.groups == {"0": (0, 1)}


def test_a_number_before_a_stack_that_no_rank_has_is_no_prefix():
    (found,) = stacks.parse_stacks('12: Thread 1 (idle): "MainThread"\n12:     f (t.py:3)\n')
    assert found.rank == 12
    assert stacks.parse_stacks('999999999: Thread 1 (idle): "M"\n999999999:     f (t.py:3)\n') == []


def test_saved_evidence_of_impossible_ranks_is_used_without_them(tmp_path):
    from eroica.read.saved import believable

    warnings: list[Warning] = []
    ranks = tuple(RankEvidence(rank=n) for n in (-1, 0, 3, 10**12))
    kept = believable(JobEvidence(ranks=ranks, world_size=10**12), tmp_path, warnings)
    assert ([one.rank for one in kept.ranks], kept.world_size) == ([0, 3], 4)
    assert len(warnings) == 1
    honest = JobEvidence(ranks=(RankEvidence(rank=3),), world_size=8)
    assert believable(honest, tmp_path, warnings) is honest and len(warnings) == 1


def test_counters_that_name_an_impossible_rank_keep_the_one_of_the_file(tmp_path):
    head = {"eroica": "hardware", "version": 1, "host": "h", "rank": 10**12, "counters": ["a.b"]}
    (tmp_path / "rank3.jsonl").write_text(json.dumps(head) + "\n[1, 2]\n")
    assert read_hardware(tmp_path / "rank3.jsonl").rank == 3


def test_patterns_of_an_impossible_rank_are_left_out_with_a_warning(tmp_path):
    from dataclasses import replace

    one = summarize(read_timeline(trace(tmp_path / "rank0.json")))
    warnings: list[Warning] = []
    made = [replace(one, rank=rank) for rank in (0, -3, 10**9)]
    assert [p.rank for p in gathering._of_ranks(made, "p.parquet", warnings)] == [0]
    assert "rank -3" in warnings[0].what


def test_a_group_told_by_three_numbers_is_no_larger_than_a_world(tmp_path):
    told = {"Collective name": "allreduce", "Global rank start": 0, "Global rank stride": 1,
            "Process Group Ranks": "[0, 1, ...]"}  # fmt: skip
    sizes = [4, 999_999, 999_999, 999_999, 999_999, 999_999, 9_999_999]
    events = [
        event(
            "record_param_comms",
            10 * n,
            **told,
            **{"Process Group Name": f"g{n}", "Group size": size},
        )
        for n, size in enumerate(sizes)
    ]
    groups = read_timeline(trace(tmp_path / "rank0.json", events)).groups
    assert groups["g0"] == (0, 1, 2, 3)
    assert sum(map(len, groups.values())) <= 4 * names.LARGEST_WORLD
    assert groups["g6"] == ()


def test_tasks_of_srun_are_no_more_than_ranks_of_a_world():
    line = "srun: error: h: tasks 3-5,7,999999999: Exited with exit code 1"
    assert log_lines.match_line(line)[1]["ranks"] == [3, 4, 5, 7]
    many = ",".join(f"{n}-{n + 99_999}" for n in range(1000))
    found = log_lines.match_line(f"srun: error: h: tasks {many}: Exited")[1]["ranks"]
    assert len(found) <= names.LARGEST_WORLD


# --- numbers and texts that break what comes after ----------------------------------------------


def test_a_time_base_of_thousands_of_digits_is_none(tmp_path):
    assert read_timeline(trace(tmp_path / "a.json", baseTimeNanoseconds="1" * 5000)).base_ns == 0
    assert read_timeline(trace(tmp_path / "b.json", baseTimeNanoseconds="12")).base_ns == 12


@pytest.mark.parametrize("number", ["1e30", "1e999999", "-1e30", "NaN", "Infinity"])
def test_a_window_beyond_all_time_is_none(number):
    assert kineto_info.span_ns(b'{"ts": %s, "dur": 5}' % number.encode()) is None
    assert kineto_info.span_ns(b'{"ts": 1.5, "dur": 5}') == (1500, 5000)


def test_half_a_surrogate_pair_becomes_a_mark_and_the_rank_can_be_packed(tmp_path):
    events = [
        event(f"{HALF}abc"),
        event(f"t.py(3): {HALF}f", cat="python_function", **{"Python id": 1}),
        event("record_param_comms", **{"Collective name": "x", "Process Group Name": HALF}),
    ]
    timeline = read_timeline(trace(tmp_path / "rank0.json", events, host_name=f"{HALF}h"))
    assert "\ufffdabc" in timeline.names and timeline.host == "\ufffdh"
    pack(summarize(timeline))


def test_whole_surrogate_pairs_and_escaped_backslashes_stay():
    from eroica.read.json_strings import load_value

    assert load_value(r'["\ud83d\ude00", "\\ud800", "\ud800\ud83d\ude00"]') == [
        "\U0001f600", "\\ud800", "\ufffd\U0001f600",
    ]  # fmt: skip


def test_half_a_surrogate_pair_in_small_files_becomes_a_mark(tmp_path):
    frame = {"name": HALF, "filename": f"/x/{HALF}.py", "line": 3}
    thread = {"pid": 1, "thread_id": 1, "os_thread_id": 1, "owns_gil": True, "frames": [frame]}
    (tmp_path / "rank0.json").write_text(json.dumps([thread]))
    error = {"message": {"message": f"ValueError: {HALF}", "extraInfo": {"py_callstack": None}}}
    (tmp_path / "rank0_error.json").write_text(json.dumps(error))
    (tmp_path / "evidence.json").write_text('{"ranks": [{"rank": 0}], "world_size": 1}')
    evidence = load_evidence(find_inputs([tmp_path]))
    json.dumps(evidence.log_events[0].text, ensure_ascii=False).encode()
    assert evidence.ranks[0].stacks[0].threads[0].frames[0].file == "/x/\ufffd.py"


def test_a_trace_whose_name_is_no_utf8_is_diagnosed(tmp_path, monkeypatch):
    monkeypatch.setenv("EROICA_HOME", str(tmp_path / "home"))
    folder = tmp_path / "traces"
    folder.mkdir()
    trace(folder / os.fsdecode(b"rank0_\xff.json"), world_size=1)
    assert pipeline.diagnose_paths([folder]).read_incident().job.ranks == (0,)


@pytest.mark.parametrize(
    "text",
    [
        "time_ns,a\n9999999999999999999,1\n5,2\n",
        "time_s,a\n999999999999,1\n5,2\n",
        "timestamp,a\n9999-12-31 00:00:00,1\n1970-01-01 00:00:05,2\n",
    ],
)
def test_a_sample_at_a_time_beyond_int64_is_left_out(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    assert read_hardware(tmp_path / "a.csv").values_N["a"].tolist() == [2.0]


def test_arrays_without_a_dimension_or_with_an_endless_one_hold_no_samples(tmp_path):
    np.savez(tmp_path / "a.npz", time_ns=np.array(5), a=np.array(1.0))
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000000,), }"
    array = b"\x93NUMPY\x01\x00\x76\x00" + head.ljust(0x75) + b"\n"
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("time_ns.npy", array)
        archive.writestr("a.npy", array)
    for name in ("a.npz", "b.npz"):
        with pytest.raises(InputError, match="holds no samples"):
            read_hardware(tmp_path / name)


def test_samples_without_a_counter_can_be_written():
    text = to_text(HardwareSamples(np.array([1, 2]), {}))
    assert [json.loads(line) for line in text.splitlines()[1:]] == [[1], [2]]


def test_sizes_beside_a_timeline_are_not_waited_for(tmp_path):
    row = {"name": "forward-compute", "ph": "X", "pid": 0, "tid": 0, "ts": 1, "dur": 5}
    stage = {"ph": "M", "pid": 0, "tid": 0, "args": {"name": "PP rank 0, TP rank 0, compute"}}
    (tmp_path / "t.json").write_text(json.dumps([stage, row | {"args": {"step": 1}}]))
    os.mkfifo(tmp_path / "meta.yaml")
    assert read_op_timeline(tmp_path / "t.json").sizes == {}
    with pytest.raises(InputError, match="cannot be opened"):
        read_op_timeline(tmp_path / "nowhere.json")


# --- minutes ------------------------------------------------------------------------------------

LONG = 1 << 14


@pytest.mark.parametrize(
    "line",
    [
        "a" * LONG + "NCCL WARN x",
        "a." * (LONG // 2) + "NCCL INFO x",
        "Killed process " + "[PG " * (LONG // 4),
        "EDAC " * (LONG // 5),
        "AER:" + "a" * LONG,
        "a" * LONG + "AER:",
        "Link DOWN " + "a: " * (LONG // 3),
        "clock throttled " + "a" * LONG,
    ],
    ids=lambda line: line[:20],
)
def test_a_line_made_to_be_tried_at_every_place_takes_no_second(line):
    line = line[:LONG]
    assert seconds(lambda: (log_lines.match_line(line), log_lines.own_rank(line))) < 0.6


def test_the_bounded_patterns_still_read_what_is_written():
    warn = "node-7:123:456 [3] transport/net_ib.cc:42 NCCL WARN Call to connect failed"
    found = log_lines.match_line(warn)
    assert found[0] == "nccl_warning"
    assert (found[1]["host"], found[1]["device"]) == ("node-7", 3)
    assert log_lines.match_line("node-7:1:2 [0] NCCL INFO Using network IB")[1]["network"] == "IB"
    assert log_lines.own_rank("[PG ID 0 PG GUID 0(default_pg) Rank 3] Watchdog") == 3
    assert log_lines.own_rank("[rank1]:[E] [PG 0 Rank 12] x") == 12
    link = "mlx5_core 0000:b1:00.0 eth0: Link DOWN for 3 s"
    assert log_lines.match_line(link)[1]["device"] == "eth0"


@pytest.mark.parametrize("tail", ["1" * 60_000 + "x", " " * 60_000 + "x"])
def test_a_long_line_is_no_header_of_a_thread(tail):
    assert seconds(lambda: stacks.is_stack_text("# Thread " + tail)) < 0.5


def test_many_threads_of_a_dump_are_told_apart_in_time():
    head = 'Thread 0x{:x} (most recent call first):\n  File "a.py", line 1 in f\n'
    text = "".join(map(head.format, range(1, 20_001)))
    assert seconds(lambda: stacks.parse_stacks(text)) < 3


@pytest.mark.parametrize(
    "tail", [b'"name":"' * 12_000, b'"name": "x" }' + b" " * 100_000, b'"cat":"' * 12_000]
)
def test_a_damaged_event_made_to_be_tried_in_every_split_takes_no_second(tail):
    raw = b'{"ph":"X","ts":1,"dur":1,"name":"a","pid":1,' + tail + b"z"
    assert seconds(lambda: repair_event(raw)) < 0.6


def test_spaces_between_members_are_passed_over_at_once(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text('{"a": 1,' + " " * 8_000_000 + '"traceEvents": [' + json.dumps(event()) + "]}")
    assert seconds(lambda: read_timeline(path)) < 0.8


def test_groups_of_a_thousand_workers_are_made_once():
    ops = ("forward-compute", "grads-reduce-scatter", "forward-send", "forward-recv")
    workers = tuple((data, stage) for stage in range(8) for data in range(32))
    worker_id = np.repeat(np.arange(len(workers)), len(ops)).astype(np.int32)
    count = len(worker_id)
    job = OpTimeline(
        path=__file__,
        worker_id_E=worker_id,
        op_id_E=np.tile(np.arange(len(ops)), len(workers)).astype(np.int32),
        step_E=np.zeros(count, np.int64),
        microbatch_E=np.full(count, -1),
        start_ns_E=np.arange(count) * 10,
        duration_ns_E=np.full(count, 5),
        ops=ops,
        workers=workers,
    )
    made: list = []
    assert seconds(lambda: made.extend(to_timelines(job))) < 1.5
    assert made[0].groups["data stage0"] == tuple(range(32))
    assert made[33].groups["forward dp1 stage0-1"] == (1, 33)


def test_many_folders_of_one_job_are_compared_at_once(tmp_path):
    from eroica.read.choose import Found
    from eroica.read.folder import _refuse_several_jobs

    found = [Found("flight", tmp_path / f"part{n}" / "d", n) for n in range(4000)]
    assert seconds(lambda: _refuse_several_jobs(found)) < 1.0
    found.append(Found("flight", tmp_path / "other" / "d", 7))
    with pytest.raises(InputError, match="2 folders hold the same ranks"):
        _refuse_several_jobs(found)


# --- lines --------------------------------------------------------------------------------------


def test_a_progress_bar_is_one_line_as_in_an_editor(tmp_path):
    path = tmp_path / "rank0.log"
    bar = "".join(f"\r{n}%|" for n in range(50))
    path.write_bytes(f"first\n{bar}\nCUDA error: an illegal access\r\nlast\n".encode())
    (found,) = scan_log(path).events
    assert (found.kind, found.line) == ("cuda_error", 3)
    assert scan_log(path).tail.endswith("CUDA error: an illegal access\r\nlast\n")


def test_text_behind_a_link_out_of_the_folder_is_no_log(tmp_path):
    secret = tmp_path / "history"
    secret.write_text("CUDA error: mine\n")
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / "real.log").write_text("CUDA error: x\n")
    (folder / "rank0.log").symlink_to(folder / "real.log")
    (folder / "rank1.log").symlink_to(secret)
    inputs = find_inputs([folder])
    assert [log.path.name for log in inputs.logs] == ["rank0.log"]
    assert any("leads out of the folder" in one.what for one in inputs.warnings)
    evidence = load_evidence(inputs)
    assert "mine" not in str(evidence.ranks) and "mine" not in str(evidence.log_events)
    assert [log.path.name for log in find_inputs([folder / "rank1.log"]).logs] == ["rank1.log"]
    trace(tmp_path / "elsewhere.json")
    (folder / "rank0.json").symlink_to(tmp_path / "elsewhere.json")
    assert [one.path.name for one in find_inputs([folder]).traces] == ["rank0.json"]
