"""Which rank, which moment, which number: choices that a watch makes from several."""

import os
import time
from types import SimpleNamespace

import pytest

from eroica.collect.processes import LiveRank
from eroica.collect.rings import Event
from eroica.config import Parameters
from eroica.errors import InputError
from eroica.records import Place, SampledStack
from eroica.watch.evidence import build
from eroica.watch.exchange import Exchange
from eroica.watch.iteration import Iteration, Step
from eroica.watch.live import WatchedJob
from eroica.watch.ranks import Ending, WatchedRank, ending_of
from eroica.watch.rules import Activity
from eroica.watch.sampling import _num_samples
from eroica.watch.stalls import StallWatch
from eroica.watch.stuck import StuckWatch
from eroica.watch.windows import find_starts
from eroica.watch.wire import Orders, Report, Status, decode_report, encode_report, job_secret

MS = 1_000_000
GONE = 4_000_000_000  # no pid is as large


@pytest.fixture
def job(tmp_path):
    found = WatchedJob(0, tmp_path, Parameters())
    yield found
    found.ranks.clear()  # their rings are made up
    found.close()


def rank_of(number, ends_ns=(), *, last_ns=None, is_exiting=False, pid=GONE):
    """A rank that took steps which ended then, behind a ring that is made up."""
    iteration = Iteration(num_steps=len(ends_ns), period=1)
    starts = [ends_ns[0] - 10 * MS, *ends_ns] if ends_ns else []
    iteration.steps.extend(map(Step, starts, ends_ns))
    ring = SimpleNamespace(
        last_event=lambda: None if last_ns is None else Event(last_ns, 0, 0),
        is_exiting=is_exiting,
        thread=None,
    )
    return WatchedRank(LiveRank(number, pid), iteration, ring)


# --- ranks ------------------------------------------------------------------------------------


def test_a_job_has_been_silent_since_the_newest_event_of_its_living_ranks(job):
    job.ranks = {0: rank_of(0, last_ns=5), 1: rank_of(1, last_ns=9), 2: rank_of(2, last_ns=12)}
    job.ranks[2].ending = Ending(0, 0)
    assert job.silent_since_ns() == 9
    job.ranks = {0: rank_of(0)}
    assert job.silent_since_ns() is None


def test_the_mean_step_is_that_of_the_last_fifty(job):
    slow, fast = [20 * MS * (i + 1) for i in range(60)], []
    fast = [slow[-1] + 10 * MS * (i + 1) for i in range(50)]
    job.ranks = {0: rank_of(0, slow + fast)}
    assert job.mean_step_ns() == 10 * MS


def test_an_end_that_exit_handlers_saw_is_not_one_without_a_word():
    assert ending_of(rank_of(0), None).is_silent
    assert not ending_of(rank_of(0, is_exiting=True), None).is_silent
    ending = ending_of(rank_of(0), None, lambda pid: 256 if pid == GONE else None)
    assert (ending.exit_code, ending.is_silent) == (1, False)


def test_the_rank_that_has_been_longest_in_its_step_stalls(job):
    now_ns = time.monotonic_ns()

    def late(number, by_ms):
        return rank_of(number, [now_ns - by_ms * MS - 10 * MS * i for i in range(9, -1, -1)])

    job.ranks = {0: late(0, 1000), 1: late(1, 3000), 2: late(2, 2000), 3: late(3, 5)}
    rank, step, elapsed_ns = StallWatch(job, Parameters())._stalled()
    assert (rank, step) == (1, 10)
    assert elapsed_ns >= 3000 * MS


@pytest.mark.parametrize(
    ("counts", "starts"),
    [
        ({0: 100, 1: 102}, {0: 112, 1: 112}),  # in step: at one count
        ({0: 100, 1: 103}, {0: 110, 1: 113}),  # uneven: each as many steps from now
    ],
)
def test_windows_begin_at_one_count_where_ranks_are_in_step(counts, starts):
    assert find_starts(counts, 10) == starts


def test_samples_are_counted_by_the_main_thread():
    def stack(thread, count, process=""):
        place = Place(name="f")
        return SampledStack(frames=(place,), count=count, thread=thread, process=process)

    others = [stack("pin", 50), stack("MainThread", 70, "loader worker")]
    assert _num_samples([stack("MainThread", 10), stack("MainThread", 5), *others]) == 15
    assert _num_samples(others) == 50
    assert _num_samples([]) == 0


# --- the stuck rule on a job ------------------------------------------------------------------


def test_once_a_rank_has_left_the_others_are_not_waited_for_long(job):
    job.ranks = {0: rank_of(0), 1: rank_of(1)}
    watch = StuckWatch(job, Parameters(), lambda text: None)
    assert watch._silence(100.0)[1] == Parameters().stuck_unlearned_s
    job.ranks[1].ending = Ending(0, 0)
    assert watch._silence(101.0)[1] == Parameters().stuck_unlearned_s, "it may end as a whole"
    assert watch._silence(105.0)[1] == Parameters().stuck_min_s


def test_a_job_is_stuck_since_its_last_event(job, monkeypatch):
    monkeypatch.setattr(job, "activity", lambda **options: {0: Activity(time_ns=1)})
    watch = StuckWatch(job, Parameters(), lambda text: None)
    watch._look(0.0)
    assert watch._judge(1.0, 30.0, 5.0)
    assert watch.onset_ns == pytest.approx(time.time_ns() - 30e9, abs=5e9)


# --- hosts ------------------------------------------------------------------------------------


def test_orders_are_held_back_until_there_are_newer_ones():
    exchange = Exchange(Orders(sequence=4, host="h0"))
    started = time.monotonic()
    assert exchange.wait_orders(8, 3, 20.0).sequence == 4
    assert time.monotonic() - started < 10
    started = time.monotonic()
    assert exchange.wait_orders(8, 4, 0.2).sequence == 4
    assert time.monotonic() - started >= 0.2


def test_an_older_word_of_a_host_does_not_replace_a_newer_one():
    exchange = Exchange(Orders(host="h0"))
    exchange.take_status(Status(first_rank=8, host="h1", serial=5, hint="stuck"))
    exchange.take_status(Status(first_rank=8, host="h1", serial=4, hint=""))
    assert [one.hint for one in exchange.living(time.monotonic())] == ["stuck"]
    assert exchange.living(time.monotonic() + exchange.orders.hold_s + 6.5) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_token_that_a_group_or_all_may_read_or_write_is_refused(tmp_path, monkeypatch, mode):
    path = tmp_path / "token"
    path.write_text("secret")
    monkeypatch.delenv("EROICA_TOKEN", raising=False)
    monkeypatch.setenv("EROICA_TOKEN_FILE", str(path))
    path.chmod(0o600)
    assert len(job_secret("key")) == 32
    path.chmod(mode)
    with pytest.raises(InputError, match="can be read by others"):
        job_secret("key")


def test_a_report_whose_checksum_is_cut_off_is_refused():
    evidence = build([], world_size=2)
    data = encode_report(Report(first_rank=1, host="h1", incident=1, evidence=evidence))
    assert decode_report(data).host == "h1"
    with pytest.raises(InputError, match="cut off"):
        decode_report(data[:-1])


def test_a_launcher_that_shows_each_rank_its_own_device_is_understood():
    from eroica.collect.nvml import gpu_of

    class Gpus:
        count = staticmethod(lambda: 4)
        pids = staticmethod(lambda index: [])
        uuid = staticmethod(lambda index: f"GPU-{index}")

    own = {"CUDA_VISIBLE_DEVICES": "2"}
    assert gpu_of(Gpus(), os.getpid(), 3, own) == 2
    assert gpu_of(Gpus(), os.getpid(), 1, {"CUDA_VISIBLE_DEVICES": "3,2"}) == 2
    assert gpu_of(Gpus(), os.getpid(), 0, {"CUDA_VISIBLE_DEVICES": ""}) is None
