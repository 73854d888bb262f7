"""How often stacks are taken of stalling steps, by a clock that is given."""

import types

from hypothesis import given
from hypothesis import strategies as st

from eroica.config import Parameters
from eroica.watch.iteration import Step
from eroica.watch.stalls import Allowance, StallWatch


def test_a_burst_is_allowed_and_then_one_at_a_time():
    allowance = Allowance(burst=3, every_s=10)
    assert [allowance.take(0.1 * i) for i in range(5)] == [True, True, True, False, False]
    assert not allowance.take(5.0)
    assert allowance.take(11.0) and not allowance.take(11.1)
    assert [allowance.take(1000.0) for _ in range(4)] == [True, True, True, False]


@given(st.lists(st.floats(0, 30), max_size=200))
def test_no_more_than_the_burst_and_the_rate_are_ever_taken(gaps):
    allowance, now, taken = Allowance(burst=10, every_s=15), 0.0, 0
    for gap in gaps:
        now += gap
        taken += allowance.take(now)
    assert taken <= 10 + now / 15 + 1e-6


def watch_of(monkeypatch, allowance):
    """A job whose current step has run for ever; taking stacks is counted only."""
    iteration = types.SimpleNamespace(steps=[Step(i, i + 1) for i in range(10)], num_steps=10)
    rank = types.SimpleNamespace(rank=0, ring=object(), iteration=iteration)
    watch = StallWatch(types.SimpleNamespace(alive=[rank]), Parameters(), allowance)
    monkeypatch.setattr(watch, "_take", lambda elapsed_ns: None)
    return watch, iteration


def test_a_job_of_weeks_is_sampled_at_its_rate_and_never_stops_being(monkeypatch):
    watch, iteration = watch_of(monkeypatch, Allowance(burst=10, every_s=15))
    now = 0.0
    for _ in range(20_000):  # a late step each second
        now += 1.0
        iteration.num_steps += 1
        watch.poll(now)
    assert 1300 < watch.num_taken <= 10 + now / 15
    before = watch.num_taken
    iteration.num_steps += 1
    assert watch.poll(now + 15.0) and watch.num_taken == before + 1
    assert len(watch._of_step) <= 151


def test_a_short_watch_takes_as_many_as_it_holds(monkeypatch):
    watch, iteration = watch_of(monkeypatch, None)
    for number in range(400):
        iteration.num_steps += 1
        watch.poll(0.2 * number + 1)
    assert watch.num_taken == 150


def test_one_long_step_is_sampled_ever_more_rarely(monkeypatch):
    watch, _ = watch_of(monkeypatch, None)
    taken = [second / 10 for second in range(1, 200) if watch.poll(second / 10)]
    assert len(taken) == 3 and taken[2] - taken[1] > taken[1] - taken[0]
