"""Watching a job for its whole life."""

import sys
import textwrap

import pytest

from eroica.collect import proc
from eroica.config import Parameters
from eroica.watch.rules import WindowPolicy
from eroica.watch.run import watch


def test_windows_come_after_ten_minutes_or_a_further_five_percent():
    policy = WindowPolicy(Parameters())
    assert policy.allows(0.0, 100e6)
    policy.note(0.0, 100e6)
    assert not policy.allows(300.0, 104e6)
    assert policy.allows(300.0, 106e6)
    assert policy.allows(600.0, 100e6)


def test_six_windows_a_day_and_no_more():
    policy = WindowPolicy(Parameters())
    for number in range(6):
        assert policy.allows(number * 700.0, 1e6)
        policy.note(number * 700.0, 1e6)
    assert not policy.allows(5000.0, 1e9)
    assert policy.allows(86_400.1, 1e6)


@pytest.mark.job
@pytest.mark.timeout(240)
def test_a_job_that_turns_slow_is_caught_and_runs_on_to_its_end(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    done = tmp_path / "done"
    script.write_text(
        textwrap.dedent(
            f"""
            import time
            import torch, torch.distributed as dist
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
            rank = dist.get_rank()
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            def load(i):
                time.sleep(0.02 if i < 200 or rank == 0 else 0.09)
            for i in range(480):
                load(i)
                model(torch.randn(4, 8)).sum().backward()
                optimizer.step()
            open({str(done)!r} + str(rank), "w").close()
            """
        )
    )
    incidents = []
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    result = watch(
        [sys.executable, *torchrun, str(script)], once=False, on_incident=incidents.append
    )
    assert (result.exit_code, result.hint) == (0, "healthy")
    assert (tmp_path / "done0").exists() and (tmp_path / "done1").exists()
    slow = [incident for incident in incidents if incident.hint == "slow"]
    assert slow
    evidence = slow[0].evidence
    assert evidence.step_ms_now > 1.5 * evidence.step_ms_before
    assert [pattern.rank for pattern in slow[0].patterns] == [0, 1]
    assert [rank.samples is not None for rank in evidence.ranks] == [True, True]
    left = [pid for pid in proc.all_stats() if str(script) in " ".join(proc.read_command(pid))]
    assert left == []
