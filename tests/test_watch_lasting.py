"""What a watch of days keeps is bounded, and what it looks for in vain it looks for ever less."""

import time

import pytest

from eroica.collect.processes import LiveJob, LiveRank
from eroica.config import Parameters
from eroica.watch import live, stalls, stuck
from eroica.watch.evidence import build
from eroica.watch.exchange import Exchange
from eroica.watch.iteration import Iteration, Step
from eroica.watch.live import WatchedJob
from eroica.watch.membership import Membership
from eroica.watch.ranks import WatchedRank
from eroica.watch.reporting import collect_reports
from eroica.watch.result import WatchResult
from eroica.watch.rules import Activity
from eroica.watch.stalls import Allowance, StallWatch
from eroica.watch.stuck import StuckWatch
from eroica.watch.wire import Orders, Status

MS = 1_000_000


@pytest.fixture
def job(tmp_path):
    found = WatchedJob(0, tmp_path, Parameters())
    yield found
    found.close()


# --- scans of /proc ---------------------------------------------------------------------------


class Clock:
    def __init__(self, monkeypatch):
        self.now_ns = 0
        monkeypatch.setattr(live.time, "monotonic_ns", lambda: self.now_ns)

    def run(self, job, seconds):
        for _ in range(2 * seconds):
            self.now_ns += MS * 500
            job.refresh()


def found_by_scan(ranks):
    return LiveJob("k", {r: LiveRank(r, 4_000_000 + r) for r in ranks}, world_size=16)


def test_ranks_of_other_hosts_are_looked_for_ever_less(tmp_path, monkeypatch):
    clock, scans, there = Clock(monkeypatch), [], []

    def find_jobs(below):
        scans.append(clock.now_ns / 1e9)
        return [found_by_scan(there)] if there else []

    monkeypatch.setattr(live, "find_jobs", find_jobs)
    job = WatchedJob(1, tmp_path, Parameters())
    clock.run(job, 20)
    assert len(scans) > 8, "before the first rank each second"
    there += [0, 1]
    clock.run(job, 5)
    assert list(job.ranks) == [0, 1]
    scans.clear()
    clock.run(job, 3600)
    assert 115 <= len(scans) <= 130, "then every half minute"
    there += [2]
    clock.run(job, 31)
    assert list(job.ranks) == [0, 1, 2]
    scans.clear()
    clock.run(job, 10)
    assert len(scans) >= 2, "where one came, others may be coming"
    job.close()


# --- stacks -----------------------------------------------------------------------------------


def test_looks_at_a_silence_in_which_work_is_done_are_not_all_kept(job, monkeypatch):
    job.ranks[0] = WatchedRank(LiveRank(0, 4_000_000), Iteration())
    monkeypatch.setattr(stuck, "_MAX_LOOKS", 5)
    watch = StuckWatch(job, Parameters(), lambda text: None)
    monkeypatch.setattr(job, "activity", lambda **options: {0: Activity(time_ns=1, stack=number)})
    for number in range(12):
        watch._look(float(number))
    assert watch._stacks == {0: [7, 8, 9, 10, 11]}


@pytest.mark.parametrize(("allowance", "kept"), [(None, 150), (Allowance(), 40)])
def test_stacks_of_stalls_are_the_last_ones(job, monkeypatch, allowance, kept):
    iteration = Iteration(num_steps=0, period=1)
    job.ranks[0] = WatchedRank(LiveRank(0, 4_000_000), iteration)
    monkeypatch.setattr(
        stalls, "take_stacks", lambda captures, *a, **k: captures[0].stacks.append(None)
    )
    from eroica.records import ProcessStacks

    monkeypatch.setattr(stalls, "read_stack_sample", lambda *a: ProcessStacks(threads=()))
    watch = StallWatch(job, Parameters(), allowance)
    for number in range(200):
        iteration.num_steps = number
        watch._take(number)
    assert [sample.step for sample in watch.samples[0]] == list(range(200 - kept, 200))


# --- reports of other hosts -------------------------------------------------------------------


def test_reports_that_were_read_are_not_kept_until_the_next_incident():
    exchange = Exchange(Orders(host="h0"))
    exchange.take_status(Status(first_rank=8, host="h1"))
    exchange.announce(phase="collect", incident=1, hint="stuck")
    assert exchange.take_report(1, 8, b"x" * 1000) is None
    membership = Membership("k" * 64, "h0", 0, 16)
    result = WatchResult(evidence=build([], world_size=16))
    collect_reports(
        result, exchange, membership, host="h0", problems=(), wait=lambda: time.sleep(0)
    )
    assert exchange.reports == {(1, 8): b""}, "that it came is still known"


# --- memory -----------------------------------------------------------------------------------


def test_steps_are_held_in_little_room():
    """Eight ranks with full histories: some 30 MB."""
    step = Step(1, 2)
    with pytest.raises(AttributeError):
        step.more = 1
    assert not hasattr(step, "__dict__")
