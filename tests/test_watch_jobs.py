"""Whole jobs under watch: the answer, the exit code, and nobody left behind."""

import io
import os
import sys
import textwrap

import pytest

from eroica.collect import proc
from eroica.errors import InputError
from eroica.watch.command import Command, make_folder
from eroica.watch.run import watch

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.job, pytest.mark.timeout(240)]

HEAD = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
"""


def run(tmp_path, body, *, ranks=2, **options):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    output = io.BytesIO()
    result = watch([sys.executable, *torchrun, str(script)], output=output, **options)
    left = [pid for pid in proc.all_stats() if str(script) in " ".join(proc.read_command(pid))]
    assert left == []
    return result, output.getvalue().decode(errors="replace")


def places(thread):
    return [frame.name for frame in thread.frames]


def test_a_healthy_job_ends_as_without_us(tmp_path):
    result, output = run(tmp_path, "for _ in range(80): step()\nprint('sum', rank, flush=True)")
    assert (result.hint, result.exit_code) == ("healthy", 0)
    assert "sum 0" in output and "sum 1" in output
    assert [len(rank.steps.duration_ns) > 30 for rank in result.evidence.ranks] == [True, True]
    assert all(rank.flight is not None for rank in result.evidence.ranks)
    keys = {setting.key for setting in result.evidence.ranks[0].settings}
    assert {"ddp", "num_threads", "process_group", "torch.version"} <= keys
    assert result.evidence.backend == "gloo"


def test_a_barrier_on_one_rank_is_seen_as_stuck_and_ended(tmp_path):
    result, _ = run(
        tmp_path,
        """
        for i in range(200):
            step()
            if i == 40 and rank == 0:
                dist.barrier()
        """,
    )
    assert (result.hint, result.exit_code) == ("stuck", None)
    zero, one = result.evidence.ranks
    assert len(zero.stacks) == len(one.stacks) == 2
    main = {r.rank: next(t for t in r.stacks[-1].threads if t.is_main) for r in (zero, one)}
    assert "barrier" in places(main[0])[0]
    assert "step" in places(main[1])
    assert zero.flight.entries[-1].op == "barrier"
    assert one.flight.entries[-1].op == "all_reduce"
    assert zero.flight.entries[-1].frames


def test_an_exception_on_one_rank_is_a_failure_with_its_place(tmp_path):
    result, _ = run(
        tmp_path,
        """
        for i in range(200):
            step()
            if i == 40 and rank == 1:
                raise ValueError("bad batch")
        """,
    )
    assert result.hint == "failed"
    exit = result.evidence.ranks[1].exit
    assert (exit.error_type, exit.message) == ("ValueError", "bad batch")
    assert exit.frames[0].name == "<module>"


def test_a_killed_rank_is_a_failure_at_once(tmp_path):
    result, _ = run(
        tmp_path,
        """
        for i in range(2000):
            step()
            if i == 40 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert result.hint == "failed"
    assert result.seconds < 120


def test_a_stopped_rank_is_stuck(tmp_path):
    result, _ = run(
        tmp_path,
        """
        for i in range(2000):
            step()
            if i == 40 and rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
        """,
    )
    assert result.hint == "stuck"
    assert result.evidence.ranks[1].process.state == "T"


def test_a_rank_that_holds_the_gil_is_stuck_and_still_seen(tmp_path):
    result, _ = run(
        tmp_path,
        """
        import ctypes
        def hold():
            ctypes.PyDLL(None).sleep(100)
        for i in range(2000):
            step()
            if i == 40 and rank == 1:
                hold()
        """,
    )
    assert result.hint == "stuck"
    one = result.evidence.ranks[1]
    assert any("hold" in places(t) for s in one.stacks for t in s.threads)
    assert any("did not answer" in text for text in one.missing)


def test_training_off_the_main_thread_with_the_users_own_profiler(tmp_path):
    result, output = run(
        tmp_path,
        """
        from torch.profiler import ProfilerActivity, profile, schedule
        def train():
            plan = schedule(wait=10, warmup=2, active=5, repeat=6)
            with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
                for _ in range(200):
                    step()
                    profiler.step()
            print("profiled", len(profiler.events()) > 0, flush=True)
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """,
    )
    assert (result.hint, result.exit_code) == ("healthy", 0)
    assert output.count("profiled") == 2


def test_windows_give_patterns_of_every_rank(tmp_path):
    result, _ = run(
        tmp_path,
        """
        def slow_part():
            time.sleep(0.02)
        for _ in range(700):
            step()
            if rank == 1:
                slow_part()
        """,
        keep_traces=tmp_path / "traces",
    )
    assert result.hint == "healthy"
    assert [pattern.rank for pattern in result.patterns] == [0, 1]
    traces = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert {"rank-00000.0.json", "rank-00001.0.json"} <= set(traces)
    assert result.evidence.ranks[0].samples.num_samples > 10


def test_a_command_that_cannot_be_started_is_bad_input():
    with pytest.raises(InputError, match="cannot start"):
        watch(["/nonexistent/program"])


def test_a_command_without_ranks_keeps_its_exit_code():
    result = watch([sys.executable, "-c", "import sys; sys.exit(3)"], output=io.BytesIO())
    assert (result.hint, result.exit_code, result.evidence.ranks) == ("failed", 3, ())


def test_orphans_in_their_own_session_are_ended_too(tmp_path):
    code = (
        "import subprocess, sys;"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'],"
        " start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    )
    folder = make_folder()
    command = Command([sys.executable, "-c", code], folder, output=io.BytesIO())
    command.process.wait()
    left = command.members()
    assert len(left) == 1
    command.end(grace_s=0.5)
    assert not any(proc.is_alive(pid) for pid in left)
    assert os.getpid() not in left
    command.remove_folder()
    assert not folder.exists()
