"""Ranks that end, are started again, or may not be traced: real processes, no training."""

import signal
import subprocess
import sys
import time

import pytest
from make_rank import finish, run_rank

from eroica.collect import proc, spy
from eroica.config import Parameters
from eroica.watch import live, profiles
from eroica.watch.exits import ExitAlarm
from eroica.watch.live import WatchedJob, needs_leave_to_trace
from eroica.watch.profiles import JobProfile, refusal
from eroica.watch.ranks import Ending, exit_of


def child(code):
    return subprocess.Popen([sys.executable, "-S", "-c", code])


# --- exits ------------------------------------------------------------------------------------


def test_an_exit_is_noticed_at_once_and_its_code_is_still_there():
    alarm = ExitAlarm()
    process = child("import time; time.sleep(0.2); raise SystemExit(3)")
    alarm.follow([process.pid])
    start = time.monotonic()
    assert alarm.wait(20) == [process.pid]
    assert time.monotonic() - start < 10
    stat = proc.read_stat(process.pid)
    assert (stat.state, stat.exit_code >> 8) == ("Z", 3)
    assert process.wait() == 3
    alarm.follow([process.pid])  # known to have ended: not waited for again
    start = time.monotonic()
    assert alarm.wait(0.05) == []
    assert time.monotonic() - start >= 0.05
    alarm.close()


def test_processes_that_are_gone_or_no_longer_followed_wake_nobody():
    alarm = ExitAlarm()
    gone, other = child("pass"), child("import time; time.sleep(0.1)")
    gone.wait()
    alarm.follow([gone.pid, other.pid])
    alarm.follow([])
    assert alarm.wait(0.3) == []
    other.wait()
    alarm.close()


def keeps_exit_codes():
    """Whether this kernel tells how a process ended that was collected (Linux 6.15)."""
    alarm, process = ExitAlarm(), child("pass")
    alarm.follow([process.pid])
    process.wait()
    status = alarm.collected_status(process.pid)
    alarm.close()
    return status is not None


needs_kept_exit_codes = pytest.mark.skipif(
    "not keeps_exit_codes()", reason="this kernel forgets how a collected process ended"
)


@needs_kept_exit_codes
def test_the_exit_code_of_a_collected_process_is_still_told():
    alarm = ExitAlarm()
    process = child("import time; time.sleep(60)")
    alarm.follow([process.pid])
    assert alarm.follows(process.pid)
    assert alarm.collected_status(process.pid) is None
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert alarm.wait(20) == [process.pid]
    assert not alarm.follows(process.pid)
    assert alarm.collected_status(process.pid) == signal.SIGTERM
    alarm.follow([])
    assert alarm.collected_status(process.pid) is None
    alarm.close()


def test_an_end_without_a_word_is_an_end():
    assert exit_of(None) is None
    assert exit_of(Ending(None, 7, None, is_silent=True)).time_ns == 7
    assert exit_of(Ending(None, 7, None)) is None  # its exit handlers ran: nothing to say
    assert exit_of(Ending(-9, 7, None)).signal == "SIGKILL"


# --- restarts ---------------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path):
    job = WatchedJob(0, tmp_path, Parameters())
    yield job
    job.close()


def begin(folder, **environment):
    process = run_rank(folder, "print('up', flush=True)\ninput()", **environment)
    assert process.stdout.readline() == "up\n"
    return process


def test_a_rank_started_again_after_it_was_killed_is_a_failure_until_it_is_followed(
    tmp_path, watched
):
    first = begin(tmp_path)
    watched.refresh()
    assert watched.ranks[3].live.pid == first.pid
    first.kill()
    first.communicate()
    second = begin(tmp_path)
    watched.refresh()
    watched.tick()
    assert watched.is_restarted and watched.has_failed
    ending = watched.ranks[3].ending
    assert watched.ranks[3].live.pid == first.pid
    assert (ending.exit_code, ending.is_silent) == (None, True)
    watched.follow()
    assert watched.ranks[3].live.pid == second.pid
    assert not watched.is_restarted and not watched.has_failed
    assert watched.num_restarts == 1
    finish(second)


def test_the_ring_of_a_failed_rank_is_not_taken_for_its_successors(tmp_path, watched):
    """Its peer is back before it is."""
    ranks = {"3": begin(tmp_path), "2": begin(tmp_path, RANK="2")}
    watched.refresh()
    for process in ranks.values():
        process.kill()
        process.communicate()
    second = begin(tmp_path, RANK="2")
    watched.refresh()
    assert watched.is_restarted
    watched.follow()
    watched.refresh()
    watched.tick()
    assert list(watched.ranks) == [2] and not watched.has_failed
    third = begin(tmp_path)
    watched.refresh()
    assert {rank: one.live.pid for rank, one in watched.ranks.items()} == {
        2: second.pid,
        3: third.pid,
    }
    finish(second)
    finish(third)


def test_one_program_after_another_is_no_failure(tmp_path, watched):
    """``bash -c 'python prepare.py; python train.py'`` as a rank."""
    first = begin(tmp_path)
    watched.refresh()
    finish(first)
    second = begin(tmp_path)
    watched.refresh()
    watched.tick()
    assert not watched.is_restarted and not watched.has_failed
    assert watched.ranks[3].live.pid == second.pid
    finish(second)


def test_a_killed_rank_has_its_signal_while_its_parent_has_not_collected_it(tmp_path, watched):
    process = begin(tmp_path)
    watched.refresh()
    process.send_signal(signal.SIGKILL)
    watched.wait(20)
    assert watched.ranks[3].ending.exit_code == -9
    assert watched.has_failed
    process.communicate()


@needs_kept_exit_codes
def test_a_killed_rank_has_its_signal_also_where_its_launcher_collected_it_first(tmp_path, watched):
    process = begin(tmp_path)
    watched.refresh()
    watched.wait(0.01)
    process.kill()
    process.communicate()
    watched.wait(20)
    ending = watched.ranks[3].ending
    assert (ending.exit_code, ending.is_silent) == (-9, False)
    assert watched.has_failed


# --- rights -----------------------------------------------------------------------------------


def test_the_kernel_asks_for_leave_only_where_yama_says_so(tmp_path):
    scope = tmp_path / "ptrace_scope"
    assert not needs_leave_to_trace(scope)
    scope.write_text("0\n")
    assert not needs_leave_to_trace(scope)
    scope.write_text("1\n")
    assert needs_leave_to_trace(scope)


def test_each_rank_is_asked_once_for_leave_to_trace_it(tmp_path, watched, monkeypatch):
    monkeypatch.setattr(live, "needs_leave_to_trace", lambda: True)
    process = run_rank(
        tmp_path, "import eroica_hook\neroica_hook.step()\nprint('up', flush=True)\ninput()"
    )
    process.stdout.readline()
    watched.refresh()
    assert watched.ranks[3].is_leave_asked
    asked = []
    monkeypatch.setattr(live, "ask", lambda *words, **options: asked.append(words))
    watched.refresh()
    assert asked == []
    assert finish(process)[0] == 0


def test_without_py_spy_a_rank_samples_itself(tmp_path, watched, monkeypatch):
    monkeypatch.setattr(spy, "find_spy", lambda: None)
    process = run_rank(tmp_path, "def wait():\n    input()\nprint('up', flush=True)\nwait()")
    process.stdout.readline()
    watched.refresh()
    assert "pip install py-spy" in refusal(watched.alive)
    profile = JobProfile(watched, tmp_path, seconds=30)
    profile.start()
    time.sleep(0.5)
    samples = profile.stop()
    (problem,) = profile.problems
    assert "pip install py-spy" in problem and "sampled from inside" in problem
    assert samples[3].num_samples > 5
    assert {frame.name for stack in samples[3].stacks for frame in stack.frames} == {
        "wait",
        "<module>",
    }
    watched.take_samples()
    assert watched.ranks[3].stacks[-1].threads
    assert finish(process)[0] == 0
    assert not list(tmp_path.glob("inside-*"))


def test_without_py_spy_and_without_the_hook_the_reason_is_all_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "refusal", lambda ranks: "py-spy may not read pid 1")
    job = WatchedJob(0, tmp_path, Parameters())
    profile = JobProfile(job, tmp_path)
    profile.start()
    assert profile.problems == ["sampling profile: py-spy may not read pid 1"]
    assert profile.stop() == {}
    job.close()
