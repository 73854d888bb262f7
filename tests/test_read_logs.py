"""Logs: what torchrun, c10d, NCCL, gloo, Python and the kernel say, told apart by rank."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.read.exits import exit_of
from eroica.read.logs import parse_log, read_log, scan_log
from eroica.read.needles import Needles
from eroica.records import LogEvent, Place

DATA = Path(__file__).parent / "data" / "read"
MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=5, OpType=BARRIER), but Rank 1 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[10], "
    "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu))."
    "Collectives differ in the following aspects: \t Op type: BARRIERvs ALLREDUCE"
)
LINES = [
    (
        "[rank3]:[E1129 13:28:13 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=11, OpType=ALLREDUCE, NumelIn=4225, NumelOut=4225, "
        "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
        "watchdog_timeout",
        3,
        {"sequence": 11, "op": "ALLREDUCE", "numel_in": 4225, "timeout_ms": 600000},
    ),
    (
        "[E ProcessGroupNCCL.cpp:632] [PG ID 2 PG GUID 5(tp) Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=7, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=8, "
        "Timeout(ms)=10) ran for 12 milliseconds before timing out.",
        "watchdog_timeout",
        1,
        {"op": "_ALLGATHER_BASE", "group": "5", "group_description": "tp", "elapsed_ms": 12},
    ),
    (
        "[rank1]:[E1] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an error or "
        "timeout) detected by watchdog at work: 11, last enqueued NCCL work: 12, last completed "
        "NCCL work: 10.",
        "watchdog_work",
        1,
        {"sequence": 11, "last_enqueued": 12, "last_completed": 10},
    ),
    (
        "[rank0]: [PG 0 Rank 0] Received a dump signal due to a collective timeout from  rank 3 "
        "and we will try our best to dump the debug info.",
        "dump_signal",
        0,
        {"source_rank": 3},
    ),
    (
        "[rank5]:[E] [PG 0 Rank 5] Heartbeat monitor timed out! Process will be terminated after "
        "dumping debug info. workMetaList_.size()=2",
        "heartbeat_timeout",
        5,
        {"num_pending": 2},
    ),
    (
        "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 18000ms "
        "for recv operation to complete",
        "gloo_timeout",
        None,
        {"timeout_ms": 18000, "direction": "recv"},
    ),
    (
        "[rank2]: RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[127.0.0.1]:31231",
        "connection_closed",
        2,
        {"peer": "127.0.0.1", "port": 31231},
    ),
    (
        "DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0",
        "store_timeout",
        None,
        {"timeout_ms": 300000, "keys": "/default_pg/0//cuda//0"},
    ),
    (
        MISMATCH,
        "collective_mismatch",
        None,
        {"rank_a": 0, "op_a": "BARRIER", "rank_b": 1, "op_b": "ALLREDUCE", "sequence_b": 5},
    ),
    (
        "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 30000 ms",
        "monitored_barrier",
        0,
        {"ranks": [1, 2], "timeout_ms": 30000},
    ),
    (
        " - To our best knowledge, ranks [1, 4] are the lagging ranks that caused this timeout. "
        "They never joined any collectives",
        "desync",
        None,
        {"ranks": [1, 4]},
    ),
    (
        "   - [0] finished collective #1, but didn't join collective #2 (count from 1)",
        "desync",
        None,
        {"ranks": [0], "finished": 1, "number": 2},
    ),
    (
        "node7:123:456 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed",
        "nccl_warning",
        None,
        {"host": "node7", "pid": 123, "device": 0, "what": "Call to ibv_reg_mr failed"},
    ),
    (
        "node7:123:456 [1] NCCL INFO Using network Socket",
        "nccl_network",
        None,
        {"network": "Socket", "device": 1},
    ),
    (
        "[12345.6] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "xid",
        None,
        {"device": "PCI:0000:3b:00", "xid": 79, "meaning": "GPU has fallen off the bus"},
    ),
    (
        "NVRM: Xid (PCI:0000:3b:00): 74, pid=1234, name=python, NVLink: fatal error on link 3",
        "xid",
        None,
        {"xid": 74, "pid": 1234, "meaning": "NVLink error"},
    ),
    (
        "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 12028, Non-fatal, Link 32 egress error",
        "sxid",
        None,
        {"sxid": 12028, "switch": "nvidia-nvswitch0"},
    ),
    (
        "kernel: Out of memory: Killed process 1234 (python) total-vm:9kB, anon-rss:456kB, x",
        "oom_kill",
        None,
        {"pid": 1234, "command": "python", "resident_kb": 456},
    ),
    (
        "Memory cgroup out of memory: Killed process 99 (pt_main_thread) total-vm:1kB",
        "oom_kill",
        None,
        {"pid": 99, "command": "pt_main_thread"},
    ),
    (
        "INFO: task python:777 blocked for more than 120 seconds.",
        "hung_task",
        None,
        {"pid": 777, "seconds": 120},
    ),
    (
        "mlx5_core 0000:5e:00.0: Port module event: Link DOWN",
        "link_down",
        None,
        {"what": "Link DOWN"},
    ),
    (
        "3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a",
        "cuda_out_of_memory",
        3,
        {"size": "2.00 GiB", "device": 1},
    ),
    ("OSError: [Errno 28] No space left on device: '/ckpt'", "no_space", None, {}),
    (
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed.",
        "worker_killed",
        None,
        {"pid": 4242, "signal": "Killed"},
    ),
    ("srun: error: node12: tasks 3-5,7: Killed", "task_failed", None, {"ranks": [3, 4, 5, 7]}),
    (
        "[rank0]:[W] Warning: find_unused_parameters=True was specified in DDP constructor, but "
        "did not find any unused parameters in the forward pass.",
        "unused_parameters_not_needed",
        0,
        {"setting": "find_unused_parameters"},
    ),
]


@pytest.mark.parametrize(("line", "kind", "rank", "fields"), LINES)
def test_a_line_that_matters_is_read(line, kind, rank, fields):
    (event,) = parse_log("step 1 loss 2.5\n" + line + "\nstep 2 loss 2.4\n")
    assert (event.kind, event.rank, event.line) == (kind, rank, 2)
    assert {key: event.fields.get(key) for key in fields} == fields


def test_ordinary_output_gives_nothing():
    text = "\n".join(
        f"epoch 1 step {n}/900 loss={1 / (n + 1):.4f} 12:00:{n % 60:02}" for n in range(900)
    )
    assert parse_log(text) == ()
    assert parse_log("Fault ranks: [9, 14]\nRank 9, fault_type: GPU_ERROR\n") == ()


def test_the_table_of_torchrun_names_the_first_to_fail():
    events = read_log(DATA / "log_timeout.txt")
    rows = [event for event in events if event.kind == "torchrun_failure"]
    assert sorted(row.rank for row in rows) == [0, 1, 2, 3]
    (root,) = [row for row in rows if row.fields["is_root_cause"]]
    assert (root.rank, root.host, root.fields["exit_code"], root.fields["pid"]) == (
        0,
        "localhost",
        1,
        7683,
    )


def test_tracebacks_of_interleaved_ranks_come_out_whole():
    events = read_log(DATA / "log_timeout.txt")
    by_rank = {e.rank: e for e in events if e.kind == "traceback" and e.rank is not None}
    assert sorted(by_rank) == [0, 1, 2, 3]
    assert by_rank[0].frames[0].name == "barrier"
    assert by_rank[0].frames[2] == Place(name="evaluate_and_log", file="/srv/job/dead.py", line=12)
    assert by_rank[1].fields["error_type"] == "RuntimeError"
    (launcher,) = [e for e in events if e.kind == "traceback" and e.rank is None]
    assert launcher.fields["program"] == "torchrun"


def found(name, kind):
    return [event for event in read_log(DATA / name) if event.kind == kind]


def test_a_real_crash_is_of_the_rank_that_torchrun_names():
    events = read_log(DATA / "log_segv.txt")
    ended = exit_of(1, None, events)
    assert ended is not None and ended.signal == "SIGSEGV"
    assert [place.name for place in ended.frames] == ["string_at", "<module>"]
    victim = exit_of(0, None, events)
    assert victim is not None and "Connection reset by peer" in (victim.message or "")


def test_a_real_chained_exception_under_tee_is_of_its_global_rank():
    (first, *_) = found("log_tee_chain.txt", "traceback")
    assert (first.rank, first.text) == (1, "RuntimeError: cannot load")
    assert first.fields["is_uncaught"] and first.fields["chain"][0]["line"] == 21


def test_real_mismatch_reports_name_both_sides():
    by_rank = {
        event.rank: event.fields for event in found("log_mismatch.txt", "collective_mismatch")
    }
    assert sorted(by_rank) == [0, 1]
    assert by_rank[0]["op_a"] == "BARRIER" and by_rank[1]["op_a"] == "ALLREDUCE"


def test_a_real_monitored_barrier_names_who_is_late():
    for event in found("log_monitored_barrier.txt", "monitored_barrier"):
        assert (event.rank, event.fields["ranks"], event.fields["timeout_ms"]) == (0, [1], 5000)


def test_signals_in_the_table_are_named():
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_13:28:13\n"
        "  host      : n1\n  rank      : 6 (local_rank: 2)\n  exitcode  : {} (pid: 99)\n"
        "  error_file: <N/A>\n  traceback : {}\n" + "=" * 60 + "\n"
    )
    for text in (
        table.format(-9, "Signal 9 (SIGKILL) received by PID 99"),
        table.format(-9, "To enable traceback see: https://example.org"),
    ):
        row = next(e for e in parse_log(text) if e.kind == "torchrun_failure")
        assert (row.rank, row.fields["signal"], row.fields["local_rank"]) == (6, "SIGKILL", 2)


CHAINED = """Traceback (most recent call last):
  File "/srv/a.py", line 3, in load
    open(path)
FileNotFoundError: [Errno 2] No such file: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/train.py", line 30, in <module>
    main()
  File "/srv/train.py", line 10, in main
    raise RuntimeError("cannot load") from error
RuntimeError: cannot load
"""


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("", None),
        ("[rank4]: ", 4),
        ("[default4]:", 4),
        ("4: ", 4),
        (" 4: ", 4),
        ("[default0]:[rank4]: ", 4),
        ("1: [trainer0]:[rank4]: ", 4),
        ("[1,4]<stderr>:", 4),
    ],
)
def test_chained_exceptions_are_one_event_in_every_prefix(prefix, rank):
    text = "".join(f"{prefix}{line}\n" for line in CHAINED.splitlines())
    (event,) = parse_log(text)
    assert (event.kind, event.rank, event.text) == ("traceback", rank, "RuntimeError: cannot load")
    assert [place.line for place in event.frames] == [10, 30]
    (cause,) = event.fields["chain"]
    assert (cause["error_type"], cause["relation"], cause["line"]) == (
        "FileNotFoundError",
        "cause",
        3,
    )


def test_two_tracebacks_in_a_row_are_two():
    one = 'Traceback (most recent call last):\n  File "/s.py", line {}, in f\nValueError: {}\n'
    events = parse_log(one.format(1, "a") + one.format(2, "b"))
    assert [event.text for event in events] == ["ValueError: a", "ValueError: b"]


def test_a_traceback_cut_off_by_the_end_keeps_its_frames():
    (event,) = parse_log('Traceback (most recent call last):\n  File "/s.py", line 4, in f\n')
    assert event.frames[0].line == 4 and event.text == "a traceback that is cut off"


def test_a_crash_takes_the_stack_of_its_thread():
    text = (
        "Fatal Python error: Segmentation fault\n\nThread 0x01 (most recent call first):\n"
        '  File "/threading.py", line 3 in wait\n\n'
        "Current thread 0x02 (most recent call first):\n"
        '  File "/srv/x.py", line 7 in crash\n  File "/srv/x.py", line 9 in <module>\n\n'
        "Extension modules: numpy\n"
    )
    (event,) = parse_log(text, rank=3)
    assert event.kind == "fatal_python_error"
    assert [place.line for place in event.frames] == [7, 9]
    ended = exit_of(3, None, [event])
    assert ended is not None and ended.signal == "SIGSEGV"


def test_a_crash_without_rank_is_of_the_only_rank_that_died_of_its_signal():
    crash = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x02 (most recent call first):\n"
    )
    frame = '  File "/srv/x.py", line 7 in crash\n\nExtension modules: numpy\n'
    table = "Root Cause (first observed failure):\n" + "".join(
        f"[{rank}]:\n  rank      : {rank} (local_rank: 0)\n  exitcode  : {code} (pid: 1)\n"
        for rank, code in ((1, -11), (0, -15))
    )
    events = parse_log("W1129 some warning\n" + crash + frame + table)
    died, victim = exit_of(1, None, events), exit_of(0, None, events)
    assert died is not None and died.signal == "SIGSEGV" and died.frames[0].line == 7
    assert victim is not None and victim.signal == "SIGTERM" and not victim.frames


def test_a_recompile_limit_is_joined_by_function_and_reason():
    head = "[rank0]:W1129 12:00:00 99 torch/_dynamo/convert_frame.py:1016] [0/8] "
    text = (
        head + "torch._dynamo hit config.recompile_limit (8)\n"
        + head + "   function: 'forward' (/srv/job/train.py:12)\n"
        + head + "   last reason: 0/7: tensor 'x' size mismatch at index 0\n"
    )  # fmt: skip
    (event,) = parse_log(text)
    assert event.frames == (Place(name="forward", file="/srv/job/train.py", line=12),)
    assert event.fields["limit"] == 8 and event.fields["reason"].startswith("0/7: tensor")


def test_repeats_are_counted_not_kept():
    line = "n1:{0}:{0} [0] NCCL WARN NET/IB : Got completion with error {0}\n"
    (event,) = parse_log("".join(line.format(number) for number in range(100, 5100)))
    assert event.fields["count"] == 5000


def test_color_codes_carriage_returns_and_bad_bytes_do_not_matter(tmp_path):
    path = tmp_path / "train.log"
    bar = b"\r".join(b"%d%%|###" % n for n in range(100))
    line = b"\x1b[31m[rank1]: \x1b[0mOSError: [Errno 28] No space \x1b[1mleft on device\xff\xfe\n"
    path.write_bytes(bar + b"\r" + line)
    (event,) = read_log(path)
    assert (event.kind, event.rank) == ("no_space", 1)


def test_a_caught_and_logged_exception_is_no_exit():
    logged = parse_log(CHAINED, rank=2)
    assert exit_of(2, None, logged) is None
    uncaught = parse_log("".join(f"[rank2]: {line}\n" for line in CHAINED.splitlines()))
    ended = exit_of(2, None, uncaught)
    assert ended is not None and ended.error_type == "RuntimeError"


def test_the_out_of_memory_killer_ends_the_rank_of_its_pid():
    events = parse_log("Out of memory: Killed process 1234 (python) total-vm:1kB\n")
    assert exit_of(0, 77, events) is None
    ended = exit_of(0, 1234, events)
    assert ended is not None and ended.signal == "SIGKILL"


def test_the_error_file_of_torchrun_is_read(tmp_path):
    path = tmp_path / "rank3" / "error.json"
    path.parent.mkdir()
    extra = {"py_callstack": CHAINED, "timestamp": "1700000000"}
    path.write_text(
        json.dumps({"message": {"message": "RuntimeError: cannot load", "extraInfo": extra}})
    )
    (event,) = read_log(path)
    assert event.rank == 3 and event.frames[0].line == 10


def test_a_large_log_costs_no_memory_and_little_time(tmp_path):
    """17 MB of losses around one line; the reader holds a block, not the file."""
    import tracemalloc

    path = tmp_path / "stdout.log.gz"
    block = b"".join(b"step %d loss 1.2345 lr 0.001\n" % n for n in range(20_000))
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(15):
            stream.write(block)
        stream.write(b"[rank7]: OSError: [Errno 28] No space left on device\n")
        for _ in range(15):
            stream.write(block)
    tracemalloc.start()
    log = scan_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(event.kind, event.rank, event.line) for event in log.events] == [
        ("no_space", 7, 300_001)
    ]
    assert peak < 8_000_000 and log.tail.endswith("lr 0.001\n")


def test_a_line_without_end_does_not_grow(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"x" * 5_000_000 + b"\nNo space left on device\n")
    (event,) = read_log(path)
    assert event.kind == "no_space"


def test_a_missing_log_is_an_input_error(tmp_path):
    with pytest.raises(InputError):
        read_log(tmp_path / "none.log")


def test_a_cut_off_gz_gives_what_is_there(tmp_path):
    path = tmp_path / "x.log.gz"
    text = b"No space left on device\n" + bytes(range(256)) * 4000
    path.write_bytes(gzip.compress(text)[:-200])
    log = scan_log(path)
    assert log.defects and "breaks off" in log.defects[0]


@given(
    st.lists(st.binary(min_size=4, max_size=8), min_size=1, max_size=5),
    st.binary(max_size=60),
    st.binary(max_size=60),
    st.integers(0, 4),
)
def test_needles_find_what_searching_one_by_one_finds(needles, before, after, choice):
    search = Needles(needles)
    for block in (before, before + needles[choice % len(needles)] + after):
        assert search.any_in(block) == any(needle in block for needle in needles)


words = st.sampled_from(
    [line for line, *_ in LINES]
    + CHAINED.splitlines()
    + ["[rank1]: ", "Failures:", "[0]:", "  rank      : 1 (local_rank: 1)", "=====", "", "\x1b[0m"]
)


@settings(deadline=None, max_examples=150)
@given(st.lists(words | st.text(max_size=40), max_size=40), st.binary(max_size=20))
def test_any_mixture_of_lines_is_read(lines, junk):
    text = "\n".join(lines) + junk.decode("latin-1")
    events = parse_log(text)
    assert all(1 <= (event.line or 1) <= len(text.encode().splitlines()) + 1 for event in events)


def test_a_traceback_counts_for_a_rank_that_torchrun_says_failed():
    """A caught and logged one alone says nothing; beside torchrun's row it is why."""
    traceback = LogEvent(
        kind="traceback", text="ValueError: x", rank=1,
        fields={"error_type": "ValueError", "message": "x", "program": ""},
    )  # fmt: skip
    row = LogEvent(
        kind="torchrun_failure", text="", rank=1, fields={"exit_code": 1, "signal": None}
    )
    assert exit_of(1, None, [traceback]) is None
    ended = exit_of(1, None, [traceback, row])
    assert (ended.exit_code, ended.error_type, ended.message) == (1, "ValueError", "x")
