"""torch's worker server in a rank: it answers while the interpreter lock is held, and is quiet."""

import socket
import textwrap
import threading
import time

import pytest
from make_rank import finish, run_rank

from eroica.collect.asking import NoAnswer, Silent, ask, ask_torch
from eroica.collect.gather import gather
from eroica.collect.processes import LiveJob, LiveRank
from eroica.read.flight import parse_flight

JOB = """
    import ctypes, sys
    import torch, torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    print("ready", flush=True)
    {then}
    dist.destroy_process_group()
"""
HOLD = "ctypes.PyDLL(None).sleep(1000)"
READ = "sys.stdin.readline()"

STUB = {
    "torch/__init__.py": "from .distributed import distributed_c10d\n",
    "torch/_C/__init__.py": "",
    "torch/_C/_distributed_c10d.py": """
        import os
        class _WorkerServer:
            def __init__(self, path):
                os.write(2, b"[W1129] WorkerServer.cpp:113] listening\\nanother line\\n")
                {body}
            def shutdown(self): os.write(2, b"[W1129] WorkerServer.cpp:144] shutting down\\n")
        """,
    "torch/distributed/__init__.py": "from .distributed_c10d import *\n",
    "torch/distributed/distributed_c10d.py": """
        import torch._C._distributed_c10d
        def init_process_group(): return 7
        def is_initialized(): return False
        """,
}
SCRIPT = "import torch.distributed as dist\nassert dist.init_process_group() == 7\n"


def start(tmp_path, then):
    code = textwrap.dedent(JOB).format(store=tmp_path / "store", then=then)
    return run_rank(tmp_path / "run", code, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")


def live(tmp_path, process):
    return LiveJob(
        key="x",
        ranks={0: LiveRank(0, process.pid, 0, 0)},
        world_size=1,
        launcher_pid=None,
        command=(),
        directory=None,
        folder=str(tmp_path / "run"),
    )


@pytest.mark.job
def test_a_rank_that_holds_the_lock_for_ever_still_gives_its_flight_recorder(tmp_path):
    process = start(tmp_path, HOLD)
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        with pytest.raises(Silent):
            ask(tmp_path / "run", 0, "ping", limit_s=0.5)
        record = parse_flight(ask_torch(tmp_path / "run", 0, "fr_trace_json"), rank=0)
        assert [entry.op for entry in record.entries] == ["all_reduce"] * 3
        began = time.monotonic()
        capture = gather(live(tmp_path, process), num_samples=1, answer_s=0.5)[0]
        assert time.monotonic() - began < 3
        assert capture.flight_json is not None and capture.flight_pickle is None
        assert capture.stacks or capture.fault_text
    finally:
        process.kill()
        process.communicate()


@pytest.mark.job
def test_the_server_leaves_nothing_in_the_jobs_output_and_its_exit_code_alone(tmp_path):
    process = start(tmp_path, READ)
    assert process.stdout.readline() == "ready\n"
    assert ask_torch(tmp_path / "run", 0, "ping") == b"pong"
    code, _, err = finish(process)
    assert code == 0 and "WorkerServer" not in err
    with pytest.raises(NoAnswer):
        ask_torch(tmp_path / "run", 0, "ping")


def stub_of(tmp_path, body):
    root = tmp_path / "stub"
    for name, text in STUB.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).replace("{body}", body))
    return root


def test_what_else_is_written_meanwhile_is_passed_on(tmp_path):
    code, _, err = finish(run_rank(tmp_path / "run", SCRIPT, stub_of(tmp_path, "pass")))
    assert code == 0 and "another line\n" in err and "WorkerServer" not in err


def test_a_server_that_cannot_start_is_said_once_and_costs_nothing(tmp_path):
    stub = stub_of(tmp_path, "raise RuntimeError('address in use')")
    code, _, err = finish(run_rank(tmp_path / "run", SCRIPT + "dist.init_process_group()\n", stub))
    assert code == 0 and err.count("torch's worker server is off") == 1
    assert "address in use" in err


@pytest.mark.parametrize("case", ["no server", "switched off", "path too long"])
def test_where_there_can_be_no_server_nothing_is_said(tmp_path, case):
    stub = stub_of(tmp_path, "pass")
    folder, given = tmp_path / "run", {}
    if case == "no server":
        (stub / "torch/_C/_distributed_c10d.py").write_text("")
    elif case == "switched off":
        given = {"EROICA_WORKER_SERVER": "0"}
    else:
        given = {"TMPDIR": str(tmp_path)}
        folder = tmp_path / ("x" * 60) / ("y" * 12)
        folder.mkdir(parents=True)
    process = run_rank(folder, SCRIPT, stub, **given)
    code, _, err = finish(process)
    assert code == 0 and "worker server" not in err and "WorkerServer" not in err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "cannot be asked"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be asked"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "knows no ping"),
    ],
    ids=["nobody listens", "no HTTP", "no such handler"],
)
def test_a_server_that_answers_nonsense_is_no_answer(tmp_path, answer, said):
    listener = socket.socket(socket.AF_UNIX)
    if answer is not None:
        listener.bind(str(tmp_path / "rank-00000.torch"))
        listener.listen()
        threading.Thread(target=_serve, args=(listener, answer), daemon=True).start()
    with pytest.raises(NoAnswer, match=said):
        ask_torch(tmp_path, 0, "ping", limit_s=2)
    listener.close()


def _serve(listener, answer):
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)
