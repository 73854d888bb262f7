"""Finding what lies below a path and joining it by rank."""

import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.read.flight_groups import known_groups
from eroica.read.folder import find_inputs, load_evidence
from eroica.read.identify import identify
from eroica.records import JobEvidence, RankEvidence, Setting, Warning

DATA = Path(__file__).parent / "data" / "read"
SHARED = Path(os.environ.get("EROICA_SHARED", Path(__file__).parents[2] / "shared")) / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not there")


def trace(path, rank=None, world_size=4, **more):
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
    info = {"distributedInfo": {"rank": rank, "world_size": world_size, "backend": "gloo"}}
    document = {"schemaVersion": 1, **(info if rank is not None else {}), **more}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**document, "traceEvents": [event]}))
    return path


def flight(path, sequence=1, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = {"profiling_name": "nccl:all_reduce", "state": "started", "collective_seq_id": sequence}
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": [entry], **more}, protocol=2))
    return path


def dump(pid, name="work", line=3):
    return (
        f'Process {pid}: python t.py\nPython v3.11.7\n\nThread {pid} (idle): "MainThread"\n'
        f"    {name} (t.py:{line})\n    <module> (t.py:9)\n"
    )


def whats(inputs_or_evidence):
    return " | ".join(warning.what for warning in inputs_or_evidence.warnings)


# --- kinds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "rank"),
    [
        ("_dump_fr_trace_rank0.pickle", "flight", 0),
        ("_dump_fr_trace_json_rank1.json", "flight", 1),
        ("nccl_lock_gil_dump_9", "flight", 9),
        ("31_fr_pickle_with_reduce_0", "flight", 0),
        ("pyspy_rank0.json", "stacks", 0),
        ("pyspy_rank0.native.txt", "stacks", 0),
        ("faulthandler_sigusr1_rank1.txt", "stacks", 1),
        ("current_frames_rank1.txt", "stacks", 1),
        ("proc_tasks_rank0.txt", "tasks", 0),
        ("log_timeout.txt", "log", None),
        ("healthy_1pct.710487.sqlite", "nsys", None),
        ("README.md", "other", None),
    ],
)
def test_real_files_are_told_apart_by_content(name, kind, rank):
    found = identify(DATA / name)
    assert (found.kind, found.rank) == (kind, rank)


def test_content_counts_before_the_name(tmp_path):
    shutil.copy(DATA / "pyspy_rank0.txt", tmp_path / "trace.json")
    shutil.copy(DATA / "_dump_fr_trace_rank0.pickle", tmp_path / "x.log")
    trace(tmp_path / "stacks.txt", 2)
    kinds = {path.name: identify(path).kind for path in tmp_path.iterdir()}
    assert kinds == {"trace.json": "stacks", "x.log": "flight", "stacks.txt": "trace"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"", "is empty"),
        ("b.json.gz", b"version https://git-lfs.github.com/spec/v1\noid x\n", "Git LFS pointer"),
        ("c.parquet", b"PAR1junk", "damaged Parquet"),
        ("d.json", b'{"loss": 1}', "no trace, dump or stacks"),
        ("model.pt", b"PK\x03\x04", "a zip archive"),
        ("weights.pkl", pickle.dumps([1.5] * 9), "a pickle, and no Flight Recorder dump"),
        ("train.py", b"print(1)\n", "source or documentation"),
        ("e", b"\0\1\2" * 100, "binary data"),
        ("f.csv", b"rank,value\n0,1\n", "without a time column"),
    ],
)
def test_what_is_no_evidence_is_said_in_words(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    inputs = find_inputs([tmp_path])
    assert words in whats(inputs) and inputs.unknown == (tmp_path / name,)


def test_strangers_are_counted_in_one_warning(tmp_path):
    trace(tmp_path / "rank0.json", 0, 1)
    for number in range(5):
        (tmp_path / f"m{number}.py").write_text("pass\n")
    (tmp_path / "x.json").write_text("{}")
    inputs = find_inputs([tmp_path])
    assert len(inputs.traces) == 1
    assert [w.what for w in inputs.warnings] == [
        "6 files are not read: 5 source or documentation; 1 JSON, but no trace, dump or stacks"
    ]


def test_notes_about_a_planted_fault_are_no_evidence(tmp_path):
    (tmp_path / "fault_injection.log").write_text(
        "Fault ranks: [9]\nRank 9, fault_type: LOCK_GIL\n"
    )
    (tmp_path / "case.json").write_text(json.dumps({"guilty_ranks": [1], "expected_category": "x"}))
    (tmp_path / "README.md").write_text("rank 1 is guilty: NCCL WARN, Out of memory\n")
    flight(tmp_path / "_dump_0")
    evidence = load_evidence(find_inputs([tmp_path]))
    assert not evidence.log_events and [one.rank for one in evidence.ranks] == [0]


# --- the walk ---------------------------------------------------------------------------------


def test_a_path_that_does_not_exist_is_an_input_error_with_a_next_step(tmp_path):
    with pytest.raises(InputError) as caught:
        find_inputs([tmp_path / "nothing"])
    assert str(tmp_path / "nothing") in caught.value.what and "eroica" in caught.value.next_step


def test_a_file_named_twice_or_through_a_link_is_one(tmp_path):
    path = trace(tmp_path / "d" / "rank0.json", 0)
    (tmp_path / "d" / "again.json").symlink_to(path)
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "dangling").symlink_to(tmp_path / "nowhere")
    inputs = find_inputs([tmp_path, path, tmp_path / "d"])
    assert len(inputs.traces) == 1


def test_pipes_are_not_opened_and_unreadable_files_are_said(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    secret = trace(tmp_path / "rank1.json", 1, 2)
    secret.chmod(0)
    trace(tmp_path / "rank0.json", 0, 2)
    inputs = find_inputs([tmp_path])
    assert 0 in [found.rank for found in inputs.traces]
    assert "is a pipe, socket or device" in whats(inputs)
    if os.geteuid():  # root reads everything
        assert "Permission denied" in whats(inputs)


def test_hidden_files_and_incident_folders_are_not_entered(tmp_path):
    trace(tmp_path / ".hidden" / "rank0.json", 0)
    trace(tmp_path / "inc" / "evidence" / "rank-00001" / "t.json", 1)
    (tmp_path / "inc" / "incident.json").write_text("{}")
    inputs = find_inputs([tmp_path])
    assert inputs.traces == () and inputs.incidents == (tmp_path / "inc",)


def test_ranks_and_hosts_come_from_folders(tmp_path):
    flight(tmp_path / "host-n1" / "rank0" / "dump.pickle")
    flight(tmp_path / "host-n2" / "rank1" / "dump.pickle")
    evidence = load_evidence(find_inputs([tmp_path]))
    assert [(one.rank, one.host) for one in evidence.ranks] == [(0, "n1"), (1, "n2")]


# --- ranks ------------------------------------------------------------------------------------


def test_the_rank_inside_a_trace_counts_before_its_name(tmp_path):
    trace(tmp_path / "rank0.json", 3)
    (found,) = find_inputs([tmp_path]).traces
    assert (found.rank, found.world_size, found.backend) == (3, 4, "gloo")


def test_traces_without_a_rank_are_numbered_and_it_is_said(tmp_path):
    trace(tmp_path / "a10.json")
    trace(tmp_path / "a9.json")
    inputs = find_inputs([tmp_path])
    assert [(t.path.name, t.rank, t.is_rank_guessed) for t in inputs.traces] == [
        ("a9.json", 0, True),
        ("a10.json", 1, True),
    ]
    assert "tells no rank; taken as rank 0" in whats(inputs)


def test_of_two_windows_of_a_rank_the_later_is_taken_and_it_is_said(tmp_path):
    old = trace(tmp_path / "w0.1694128201545.pt.trace.json", 0)
    new = trace(tmp_path / "a0.1694128301545.pt.trace.json", 0)
    inputs = find_inputs([tmp_path])
    assert [found.path for found in inputs.traces] == [new]
    assert inputs.warnings[0].file == str(old) and "the later one is used" in whats(inputs)


def test_many_windows_are_told_in_one_line(tmp_path):
    for step in range(30):
        trace(tmp_path / f"rank0.17000000000{step:02}.json", 0)
    inputs = find_inputs([tmp_path])
    assert len(inputs.traces) == 1 and whats(inputs).startswith("29 traces of ranks")


def test_missing_ranks_are_said(tmp_path):
    trace(tmp_path / "rank0.json", 0, world_size=8)
    trace(tmp_path / "rank5.json", 5, world_size=8)
    evidence = load_evidence(find_inputs([tmp_path]))
    assert evidence.world_size == 8 and evidence.backend == "gloo"
    assert "evidence of 2 of 8 ranks is here; nothing of ranks 1-4,6-7" in whats(evidence)


def test_folders_of_different_jobs_are_not_mixed(tmp_path):
    for job in ("a", "b"):
        flight(tmp_path / job / "_dump_0")
        flight(tmp_path / job / "_dump_1")
    with pytest.raises(InputError, match="2 folders hold the same ranks") as caught:
        find_inputs([tmp_path])
    assert caught.value.next_step == f"eroica diagnose {tmp_path / 'a'}"


def test_a_job_spread_over_folders_by_kind_is_one(tmp_path):
    flight(tmp_path / "fr" / "_dump_0")
    trace(tmp_path / "traces" / "rank0.json", 0, 1)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "rank0.txt").write_text(dump(7))
    evidence = load_evidence(find_inputs([tmp_path]))
    (rank,) = evidence.ranks
    assert rank.flight is not None and rank.stacks and rank.pid == 7


# --- joining ----------------------------------------------------------------------------------


def test_a_pickle_is_used_before_json_and_json_where_the_pickle_is_damaged(tmp_path):
    shutil.copy(DATA / "_dump_fr_trace_rank1.pickle", tmp_path / "_dump_rank1.pickle")
    shutil.copy(DATA / "_dump_fr_trace_json_rank1.json", tmp_path / "_dump_rank1.json")
    (rank,) = load_evidence(find_inputs([tmp_path])).ranks
    assert rank.flight is not None and rank.flight.entries[0].frames
    whole = (tmp_path / "_dump_rank1.pickle").read_bytes()
    (tmp_path / "_dump_rank1.pickle").write_bytes(whole[:2000])
    (rank,) = load_evidence(find_inputs([tmp_path])).ranks
    assert rank.flight is not None and len(rank.flight.entries) == 11


def test_a_refused_dump_does_not_stop_the_good_ones(tmp_path):
    shutil.copy(DATA / "31_fr_pickle_with_reduce_0", tmp_path / "_dump_0")
    flight(tmp_path / "_dump_1")
    evidence = load_evidence(find_inputs([tmp_path]))
    assert [one.rank for one in evidence.ranks] == [1]
    assert "os.getenv" in whats(evidence)


def test_dumps_of_a_rank_are_sorted_so_that_the_fullest_is_the_newest(tmp_path):
    for name in ("pyspy_rank0.json", "pyspy_rank0.txt", "pyspy_rank0.locals.txt",
                 "pyspy_rank0.native.txt"):  # fmt: skip
        shutil.copy(DATA / name, tmp_path / name)
    (rank,) = load_evidence(find_inputs([tmp_path])).ranks
    assert rank.pid == 5674 and len(rank.stacks) == 3  # text and locals are the same
    assert rank.stacks[-1].threads[1].frames[0].file.startswith("/opt/venv/")


def test_loader_workers_are_children_of_their_rank(tmp_path):
    text = dump(101, "_worker_loop") + dump(100, "step") + dump(102, "_worker_loop")
    (tmp_path / "stacks_rank2.txt").write_text(text)
    (rank,) = load_evidence(find_inputs([tmp_path])).ranks
    assert (rank.rank, rank.pid, len(rank.stacks)) == (2, 100, 1)
    assert [child.pid for child in rank.children] == [101, 102]


def test_dumps_named_by_pid_find_their_rank_by_pid_file_or_order(tmp_path):
    for pid in (31, 9, 25):
        (tmp_path / f"dump_of_{pid}.txt").write_text(dump(pid))
    evidence = load_evidence(find_inputs([tmp_path]))
    assert [(one.rank, one.pid) for one in evidence.ranks] == [(0, 9), (1, 25), (2, 31)]
    assert "tells no rank of process 9; taken as rank 0" in whats(evidence)
    (tmp_path / "pid_rank5").write_text("25")
    evidence = load_evidence(find_inputs([tmp_path]))
    assert [(one.rank, one.pid) for one in evidence.ranks] == [(0, 9), (1, 31), (5, 25)]


def test_the_log_gives_ranks_their_exits_and_pids(tmp_path):
    shutil.copy(DATA / "log_timeout.txt", tmp_path / "log.txt")
    evidence = load_evidence(find_inputs([tmp_path]))
    assert [one.rank for one in evidence.ranks] == [0, 1, 2, 3]
    first = evidence.ranks[0]
    assert first.pid == 7683 and first.exit is not None and first.exit.exit_code == 1
    assert first.exit.error_type == "RuntimeError" and first.exit.frames[2].line == 12
    assert evidence.world_size == 4


def test_a_silent_log_is_said(tmp_path):
    (tmp_path / "train.log").write_text("step 1 loss 2\n")
    evidence = load_evidence(find_inputs([tmp_path]))
    assert "without anything in it that is known to matter" in whats(evidence)


def test_logs_of_torchrun_folders_belong_to_their_rank(tmp_path):
    path = tmp_path / "none_x1" / "attempt_0" / "2" / "stderr.log"
    path.parent.mkdir(parents=True)
    path.write_text("OSError: [Errno 28] No space left on device\n")
    evidence = load_evidence(find_inputs([tmp_path]))
    assert [(event.kind, event.rank) for event in evidence.log_events] == [("no_space", 2)]
    assert evidence.ranks[0].log_tail.startswith("OSError")


def test_threads_of_proc_are_joined():
    evidence = load_evidence(find_inputs([DATA / "proc_tasks_rank0.txt"]))
    (rank,) = evidence.ranks
    assert rank.process is not None and rank.process.pid == 5674
    thread = rank.process.threads[2]
    assert (thread.name, thread.state, thread.wait_channel) == (
        "pt_gloo_runloop",
        "S",
        "futex_do_wait",
    )
    assert rank.process.threads[0].cpu_ns == 2_540_000_000


def test_evidence_of_several_hosts_that_collect_wrote_is_merged(tmp_path):
    for host, ranks in (("a", (0, 1)), ("b", (2, 3))):
        (tmp_path / host).mkdir()
        evidence = JobEvidence(
            ranks=tuple(RankEvidence(rank=rank, host=host) for rank in ranks),
            world_size=4,
            backend="nccl",
            warnings=(Warning(file=None, what=f"from {host}"),),
        )
        (tmp_path / host / "evidence.json").write_bytes(msgspec.json.encode(evidence))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "evidence.json").write_text('{"ranks": 3}')
    flight(tmp_path / "_dump_2")
    evidence = load_evidence(find_inputs([tmp_path]))
    assert [(one.rank, one.host) for one in evidence.ranks] == [
        (0, "a"),
        (1, "a"),
        (2, "b"),
        (3, "b"),
    ]
    assert evidence.ranks[2].flight is not None and evidence.backend == "nccl"
    assert "from a" in whats(evidence) and "is no evidence that can be read" in whats(evidence)


def test_the_hook_tells_the_members_that_gloo_does_not(tmp_path):
    groups = {"backend": "gloo", "groups": {"0": [0, 1, 2], "1": [1, 2]}}
    told = Setting(key="process_group", value=groups)
    ranks = tuple(RankEvidence(rank=rank, settings=(told,)) for rank in range(3))
    evidence = JobEvidence(ranks=ranks, world_size=3)
    (tmp_path / "evidence.json").write_bytes(msgspec.json.encode(evidence))
    entry = {"profiling_name": "gloo:all_reduce", "state": "s", "process_group": ("1", "undefined")}
    data = pickle.dumps({"version": "2.10", "entries": [entry]}, protocol=2)
    (tmp_path / "_dump_2").write_bytes(data)
    joined = load_evidence(find_inputs([tmp_path]))
    assert joined.ranks[2].flight is not None
    assert joined.ranks[2].flight.groups == {"1": (1, 2)}
    assert known_groups(joined.ranks) == {"0": (0, 1, 2), "1": (1, 2)}


def test_many_cores_give_what_one_gives(tmp_path):
    for rank in range(6):
        flight(tmp_path / f"_dump_{rank}", sequence=rank)
    inputs = find_inputs([tmp_path])
    with ThreadPoolExecutor(3) as pool:
        assert load_evidence(inputs, run=pool.map) == load_evidence(inputs)


def test_evidence_survives_the_disk(tmp_path):
    flight(tmp_path / "_dump_0")
    shutil.copy(DATA / "pyspy_rank0.json", tmp_path)
    shutil.copy(DATA / "log_timeout.txt", tmp_path)
    evidence = load_evidence(find_inputs([tmp_path]))
    assert msgspec.json.decode(msgspec.json.encode(evidence), type=JobEvidence) == evidence


# --- all of the real data ---------------------------------------------------------------------


@needs_shared
def test_every_real_file_alone_is_identified_or_declined_in_words():
    files = [path for path in sorted(SHARED.rglob("*")) if path.is_file()]
    assert len(files) > 150
    for path in files:
        try:
            inputs = find_inputs([path])
            evidence = load_evidence(inputs)
        except InputError as error:
            assert error.found, path
            continue
        used = sum(
            len(getattr(inputs, name))
            for name in ("traces", "flights", "stacks", "logs", "nsys", "timelines", "hardware",
                         "patterns", "pids", "tasks")
        )  # fmt: skip
        assert used + len(inputs.unknown) >= 1, path
        assert used or evidence.warnings, path


@needs_shared
@pytest.mark.parametrize(
    ("folder", "num_ranks", "world_size"),
    [
        ("stuck/gloo_4ranks_barrier_in_rank0", 4, 4),
        ("stuck/gloo_4ranks_barrier_timeout", 4, 4),
        ("stuck/gloo_4ranks_stuck_checkpoint_rank3", 4, 4),
        ("flight_recorder/nccl_16ranks_lock_gil_1st", 16, 16),
        ("flight_recorder/nccl_16ranks_gpu_error_2nd", 16, 16),
    ],
)
def test_real_hangs_are_joined(folder, num_ranks, world_size):
    evidence = load_evidence(find_inputs([SHARED / folder]))
    assert len(evidence.ranks) == num_ranks and evidence.world_size == world_size
    assert all(one.flight is not None for one in evidence.ranks)
    if folder.startswith("stuck"):
        assert evidence.backend == "gloo" and all(one.stacks for one in evidence.ranks)
        assert len({one.pid for one in evidence.ranks}) == 4


@needs_shared
def test_real_traces_tell_their_ranks():
    inputs = find_inputs([SHARED / "kineto" / "dlrm_8ranks_v100"])
    assert [found.rank for found in inputs.traces] == list(range(8))
    assert not inputs.warnings and inputs.world_size == 8
    sampled = load_evidence(find_inputs([SHARED / "kineto" / "sampled_2_of_128_ranks"]))
    assert "evidence of 2 of 128 ranks is here; nothing of ranks 2-127" in whats(sampled)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["_dump_0", "rank1.json", "x.txt", "y.log", "pid_rank0", "t.csv",
                             "z.sqlite", "a.parquet", "b.npz", "evidence.json", "rank2.txt"]),
            st.sampled_from([b"", b"\x80\x02}", b"[{", b'{"traceEvents":[', b"PAR1", b"PK\x03\x04",
                             b"SQLite format 3\0", b"Thread 1 (idle)\n", b"time_ns,a\n", b"12",
                             b'{"pg_status": {', b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd",
                             b"1 a state=S "]),
            st.binary(max_size=60),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_any_folder_ends_in_evidence_or_an_input_error(tmp_path, files):
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    for name, head, raw in files:
        (tmp_path / name).write_bytes(head + raw)
    try:
        evidence = load_evidence(find_inputs([tmp_path]))
    except InputError:
        return
    assert isinstance(evidence, JobEvidence)
