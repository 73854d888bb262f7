"""Finding jobs from /proc, reading kernel states, and gathering from ranks without the hook."""

import os
import signal
import subprocess
import sys
import time

import pytest

from eroica.collect import proc, spy
from eroica.collect.gather import gather
from eroica.collect.processes import find_job_of, find_jobs

LAUNCHER = """
import os, subprocess, sys, time
ranks = []
for rank in range(2):
    given = dict(os.environ, RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank),
                 MASTER_ADDR="127.0.0.1", MASTER_PORT="29999", TORCHELASTIC_RUN_ID="eroica-test")
    ranks.append(subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=given))
print("up", flush=True)
for rank in ranks: rank.wait()
"""

RANK = """
import os, subprocess, sys, time
def train():
    time.sleep(120)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
train()
"""


@pytest.fixture
def job():
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, RANK],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    launcher.stdout.readline()
    until = time.monotonic() + 20
    while len(proc.descendants(launcher.pid)) < 4 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    yield launcher
    for pid in [*proc.descendants(launcher.pid), launcher.pid]:
        os.kill(pid, signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()


def test_ranks_are_found_and_their_children_are_not(job):
    (found,) = find_jobs(below=job.pid)
    assert list(found.ranks) == [0, 1]
    assert (found.world_size, found.missing_ranks) == (3, (2,))
    assert found.folder is None
    assert found.directory == os.getcwd()
    assert all(rank.is_alive for rank in found.ranks.values())


def test_a_job_is_found_from_any_of_its_processes(job):
    (found,) = find_jobs(below=job.pid)
    child = proc.descendants(found.ranks[1].pid)[0]
    for pid in (job.pid, found.ranks[0].pid, child):
        assert find_job_of(pid).key == found.key
    assert find_job_of(os.getpid()) is None or find_job_of(os.getpid()).key == found.key


def test_a_job_without_the_hook_gives_stacks_children_and_kernel_states(job):
    (found,) = find_jobs(below=job.pid)
    if isinstance(spy.dump_all([found.ranks[0].pid])[found.ranks[0].pid], str):
        pytest.skip("py-spy may not trace here")
    captures = gather(found, num_samples=2, gap_s=0.2)
    assert [capture.rank for capture in captures] == [0, 1]
    for capture in captures:
        assert len(capture.stacks) == 2
        assert capture.stacks[0].taken_ns < capture.stacks[1].taken_ns
        names = [frame["name"] for frame in capture.stacks[1].threads[0]["frames"]]
        assert names == ["train", "<module>"]
        assert len(capture.children) == len(capture.child_processes) == 1
        assert capture.process.threads[0].syscall
        assert "without eroica's hook" in capture.missing[0]


def test_a_stopped_rank_is_seen_as_stopped(job):
    (found,) = find_jobs(below=job.pid)
    pid = found.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.1)
    assert proc.read_stat(pid).state == "T"
    (_, capture) = gather(found, num_samples=1)
    assert capture.process.state == "T"
    assert capture.stacks
    os.kill(pid, signal.SIGCONT)


def test_a_dead_process_is_no_error():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert proc.read_stat(process.pid) is None
    assert proc.read_process(process.pid) is None
    assert proc.process_cpu_ns(process.pid) == (0, 0)
    assert proc.read_environment(process.pid) == {}
    assert isinstance(spy.dump_all([process.pid])[process.pid], str)


def test_own_kernel_state_adds_up():
    state = proc.read_process(os.getpid())
    assert state.state == "R"
    assert state.cpu_ns > 0 and state.resident_bytes > 1 << 20
    assert any(thread.os_thread_id == os.getpid() for thread in state.threads)
    busy = time.process_time() + 0.05
    while time.process_time() < busy:
        pass
    assert proc.process_cpu_ns(os.getpid())[0] - state.cpu_ns > 30_000_000


def test_a_missing_permission_names_its_remedy():
    text = spy._remedy(7, "Error: Failed\nReason: Permission denied (os error 13)\n")
    assert "pid 7" in text and "CAP_SYS_PTRACE" in text


SHELL_IN_CONTAINER = """
import os, subprocess, sys
from eroica.collect.processes import find_jobs
print(len(find_jobs(below=int(sys.argv[1]))), flush=True)
"""


def _as_rank(**more):
    return os.environ | {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0"} | more


def test_the_one_who_looks_and_its_shell_are_no_ranks():
    # An interpreter in between, so that it is not the shell's name that leaves it out.
    outer = "import subprocess, sys; subprocess.check_call([sys.executable, '-c', *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", outer, SHELL_IN_CONTAINER, str(os.getpid())],
        env=_as_rank(EROICA="0"), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize(
    "command",
    [
        # A container's command in a shell: the training below it is the rank.
        ["bash", "-c", f"{sys.executable} -c 'import time; time.sleep(60)'; true"],
        # A container that runs torchrun: its RANK is the node's, not a rank's.
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys;"
            "subprocess.call([sys.executable, '-c', 'import time; time.sleep(60)'],"
            " env=dict(os.environ, LOCAL_RANK='0'))",
        ],
    ],
)
def test_a_shell_or_a_launcher_with_the_jobs_rank_is_none(command):
    process = subprocess.Popen(command, env=_as_rank(), start_new_session=True)
    try:
        until = time.monotonic() + 20
        while not proc.descendants(process.pid) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.2)
        (found,) = find_jobs(below=os.getpid())
        assert found.pids == proc.descendants(process.pid)[:1]
    finally:
        for pid in [*proc.descendants(process.pid), process.pid]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
