"""What raises an alarm and what never does: whole phases of a job before a fake clock."""

import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.config import Parameters
from eroica.watch.rules import Activity, SlowRule, is_varied
from eroica.watch.stuck import StuckWatch

S = 1_000_000_000
STEP_NS = 100_000_000
TICK_S = 0.1

# --- slow -------------------------------------------------------------------------------------


@st.composite
def healthy_series(draw, *, max_noise=0.3, num_steps=1500):
    """Step durations in ns: noise, evaluation pauses, epoch gaps, slow or quick first steps."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps = np.exp(generator.normal(0, draw(st.floats(0, max_noise)), num_steps))
    for shortest, longest, most in ((20, 500, 100.0), (50, 1000, 50.0)):
        every = draw(st.integers(shortest, longest))
        steps[every - 1 :: every] += draw(st.floats(0, most))
    first = draw(st.integers(0, 30))
    steps[:first] *= np.linspace(draw(st.floats(0.3, 50)), 1, first)
    return (steps * STEP_NS).astype(np.int64)


def first_alarm(steps):
    rule = SlowRule(Parameters())
    return next((i for i, step in enumerate(steps) if rule.add(int(step))), None)


# The examples are always the same: a rule of chance may fail on one in thousands.
@settings(max_examples=60, derandomize=True)
@given(healthy_series())
def test_a_healthy_job_is_never_called_slow(steps):
    assert first_alarm(steps) is None


@settings(max_examples=40, derandomize=True)
@given(healthy_series(max_noise=0.05), st.integers(300, 1200))
def test_ten_percent_slower_is_found_within_a_hundred_steps(steps, onset):
    steps[onset:] = (steps[onset:] * 1.1).astype(np.int64)
    found = first_alarm(steps)
    assert found is not None and onset <= found <= onset + 100


@settings(max_examples=30, derandomize=True)
@given(healthy_series(max_noise=0.1), st.integers(300, 700))
def test_a_third_slower_is_found_where_steps_scatter_more(steps, onset):
    steps[onset:] = (steps[onset:] * 1.33).astype(np.int64)
    found = first_alarm(steps)
    assert found is not None and onset <= found <= onset + 100


def test_stalls_that_become_frequent_make_a_slow_job():
    steps = np.full(1000, STEP_NS)
    steps[500::5] *= 8
    assert 500 < first_alarm(steps) < 650


# --- stuck ------------------------------------------------------------------------------------


def silent_job(script, *, mean_ns=STEP_NS):
    """A job of two ranks that is silent from second 0; ``script(rank, now)`` is what they do."""
    ranks = [types.SimpleNamespace(rank=number, ending=None) for number in range(2)]
    clock = types.SimpleNamespace(now=0.0)

    def activity(*, are_places_wanted=False):
        looks = {rank.rank: script(rank.rank, clock.now) for rank in ranks}
        return {
            rank: Activity(time_ns=int(clock.now * S), **values) for rank, values in looks.items()
        }

    return types.SimpleNamespace(
        clock=clock,
        alive=ranks,
        ranks={rank.rank: rank for rank in ranks},
        mean_step_ns=lambda: mean_ns,
        silent_since_ns=lambda: 1,
        activity=activity,
    )


def alarm_after(script, *, seconds, is_patient=True, mean_ns=STEP_NS):
    """Return when a job is called stuck, None where it is not within ``seconds``."""
    job = silent_job(script, mean_ns=mean_ns)
    watch = StuckWatch(job, Parameters(), lambda text: None, is_patient=is_patient)
    watch._progress_at = 0.0
    for tick in range(int(seconds / TICK_S)):
        job.clock.now = tick * TICK_S
        if watch.poll(job.clock.now):
            return job.clock.now
    return None


def waits(now):
    return {"places": ("train.py:main",), "stack": 7}


def only_rank_0(what):
    return lambda rank, now: what(now) if rank == 0 else waits(now)


def evaluates(now):
    return {
        "training_cpu_ns": int(now * 0.9 * S),
        "total_cpu_ns": int(now * 0.9 * S),
        "places": ("train.py:main", "train.py:evaluate"),
        "stack": hash(round(now, 3)),
    }


def saves(now):
    return {"io_bytes": int(now * 50e6), **waits(now)}


def syncs(now):
    return {"is_in_storage": True, **waits(now)}


def starts_workers(now):
    return {"children_cpu_ns": int(now * 0.8 * S), "total_cpu_ns": int(now * 0.8 * S), **waits(now)}


def spins(now):
    cpu = {"training_cpu_ns": int(now * S), "total_cpu_ns": int(now * S)}
    return {**cpu, "places": ("train.py:main", "train.py:poll"), "stack": 1 + int(now) % 2}


@pytest.mark.parametrize(
    "phase", [evaluates, saves, syncs, starts_workers], ids=lambda phase: phase.__name__
)
@pytest.mark.parametrize("is_everyone", [True, False], ids=["all ranks", "rank 0 alone"])
def test_a_long_phase_of_a_healthy_job_is_no_alarm(phase, is_everyone):
    script = (lambda rank, now: phase(now)) if is_everyone else only_rank_0(phase)
    assert alarm_after(script, seconds=240) is None


@pytest.mark.parametrize("phase", [evaluates, saves, starts_workers, spins])
def test_a_slow_first_iteration_is_no_alarm(phase):
    assert alarm_after(only_rank_0(phase), seconds=600, mean_ns=None) is None


def test_a_job_that_does_nothing_is_stuck_two_looks_after_the_limit():
    found = alarm_after(lambda rank, now: waits(now), seconds=60)
    assert 5.0 <= found <= 5.5


def test_a_job_that_never_did_anything_is_stuck_after_twenty_seconds():
    found = alarm_after(lambda rank, now: waits(now), seconds=60, mean_ns=None)
    assert 20.0 <= found <= 21.5


def test_a_rank_that_spins_holds_the_others_no_longer_than_four_limits():
    assert 20.0 <= alarm_after(only_rank_0(spins), seconds=60) <= 21.5


def test_work_without_an_end_is_stuck_in_the_end():
    assert 300.0 <= alarm_after(only_rank_0(evaluates), seconds=400) <= 302.0


def test_a_watch_for_one_verdict_has_less_patience():
    found = alarm_after(only_rank_0(evaluates), seconds=60, is_patient=False)
    assert 20.0 <= found <= 21.5


def test_a_loop_has_few_stacks_and_work_has_many():
    assert is_varied([1, 2, 3, 4])
    assert not is_varied([1, 2, 3])
    assert not is_varied([1, 2, 1, 2, 1, 2])
    assert not is_varied([0, 0, 0, 0, 5])
