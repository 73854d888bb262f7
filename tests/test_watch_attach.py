"""A look at jobs that others started: found, looked at, left alone."""

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from eroica.collect import proc, spy
from eroica.errors import InputError
from eroica.records import JobEvidence
from eroica.watch.attach import look, output_tail
from eroica.watch.collecting import collect_to

RANKS = """
import os, subprocess, sys
given = dict(os.environ, WORLD_SIZE="2", TORCHELASTIC_RUN_ID="eroica-attach", MASTER_PORT="1")
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=dict(given, RANK=str(rank)))
         for rank in range(2)]
print("up", flush=True)
for rank in ranks: rank.wait()
"""
WAIT = "import time\ndef wait_for_peer():\n    time.sleep(200)\nwait_for_peer()"
WORK = "def work():\n    return sum(range(1000))\ndef train():\n    while True: work()\ntrain()"


def start(code):
    launcher = subprocess.Popen(
        [sys.executable, "-c", RANKS, code],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    launcher.stdout.readline()
    time.sleep(0.5)
    if isinstance(spy.dump_all([launcher.pid])[launcher.pid], str):
        end(launcher)
        pytest.skip("py-spy may not trace here")
    return launcher


def end(launcher):
    for pid in [*proc.descendants(launcher.pid), launcher.pid]:
        os.kill(pid, signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()


def test_a_waiting_job_without_the_hook_is_stuck_and_left_alone():
    launcher = start(WAIT)
    try:
        found = look(launcher.pid)
        assert found.hint == "stuck"
        assert [rank.rank for rank in found.evidence.ranks] == [0, 1]
        for rank in found.evidence.ranks:
            names = [frame.name for frame in rank.stacks[-1].threads[0].frames]
            assert names == ["wait_for_peer", "<module>"]
        assert len(proc.descendants(launcher.pid)) == 2
    finally:
        end(launcher)


def test_a_working_job_without_the_hook_gives_sampled_patterns(tmp_path):
    launcher = start(WORK)
    try:
        found = look(launcher.pid, seconds=1.5)
        assert found.hint == "healthy"
        assert [pattern.is_sampled for pattern in found.patterns] == [True, True]
        top = max(found.patterns[0].functions, key=lambda f: f.name in ("work", "train"))
        assert top.name in ("work", "train")
        said = collect_to(tmp_path / "out", pid=launcher.pid)
        assert "ranks 0-1 of 2" in said
        (path,) = (tmp_path / "out").glob("host-*/evidence.json")
        saved = msgspec.json.decode(path.read_bytes(), type=JobEvidence)
        assert [rank.rank for rank in saved.ranks] == [0, 1]
    finally:
        end(launcher)


def test_a_process_that_is_no_rank_is_named():
    with pytest.raises(InputError, match=f"pid {os.getpid()} belongs to no training job"):
        look(os.getpid())
    with pytest.raises(InputError, match="there is no such process"):
        look(4_194_000)


def test_the_output_of_a_process_is_read_where_it_is_a_file(tmp_path):
    path = tmp_path / "train.log"
    with path.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; print('loss 1.0', flush=True); time.sleep(60)"],
            stdout=stream,
            stderr=subprocess.DEVNULL,
        )
    until = time.monotonic() + 20
    while not path.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert output_tail(process.pid) == "loss 1.0\n"
    process.kill()
    process.wait()
