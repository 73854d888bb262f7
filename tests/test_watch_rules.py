"""The rules of the agent, with a fake clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.config import Parameters
from eroica.watch.rules import (
    Activity,
    Progress,
    SlowRule,
    best_and_last_ms,
    is_stalling,
    is_stuck,
    progress_between,
    silence_limit_s,
)

S = 1_000_000_000
P = Parameters()


def look(second: float, **values) -> Activity:
    return Activity(time_ns=int(second * S), **values)


def test_a_rank_that_does_nothing_makes_no_progress():
    assert progress_between(look(0), look(1)) is Progress.NONE


def test_an_event_is_strong_progress():
    assert progress_between(look(0, position=4), look(1, position=5)) is Progress.STRONG


def test_waking_up_to_poll_is_no_progress():
    assert progress_between(look(0), look(1, training_cpu_ns=10_000_000)) is Progress.NONE


def test_computing_at_one_place_is_weak_progress():
    after = look(1, training_cpu_ns=S, places=("train.py:main",))
    assert progress_between(look(0, places=("train.py:main",)), after) is Progress.WEAK


def test_computing_at_changing_places_is_strong_progress():
    before = look(0, places=("train.py:main", "train.py:evaluate"))
    after = look(1, training_cpu_ns=S // 2, places=("train.py:main", "train.py:save"))
    assert progress_between(before, after) is Progress.STRONG


def test_a_heartbeat_alone_is_only_weak_progress():
    assert progress_between(look(0, retired=3), look(1, retired=4)) is Progress.WEAK


def test_a_working_child_is_weak_progress():
    assert progress_between(look(0), look(1, total_cpu_ns=S // 2)) is Progress.WEAK


def test_reading_a_file_is_weak_progress():
    assert progress_between(look(0), look(1, io_bytes=100_000)) is Progress.WEAK


@pytest.mark.parametrize(
    ("mean_ms", "limit_s"), [(10, 5.0), (1000, 5.0), (2000, 10.0), (None, 20.0)]
)
def test_silence_is_five_mean_steps_but_at_least_five_seconds(mean_ms, limit_s):
    assert silence_limit_s(mean_ms and mean_ms * 1e6, P) == limit_s


def test_stuck_needs_silence_and_no_progress_on_any_rank():
    nothing = [Progress.NONE, Progress.NONE]
    assert is_stuck(5.0, 5.0, nothing)
    assert not is_stuck(4.9, 5.0, nothing)
    assert not is_stuck(10.0, 5.0, [Progress.NONE, Progress.WEAK])
    assert is_stuck(20.0, 5.0, [Progress.NONE, Progress.WEAK])
    assert not is_stuck(1e6, 5.0, [Progress.NONE, Progress.STRONG])
    assert not is_stuck(1e6, 5.0, [])


def test_a_job_that_turns_slow_by_ten_percent_is_seen_within_fifty_steps():
    rule = SlowRule(P)
    assert not any(rule.add(100_000_000) for _ in range(300))
    late = [rule.add(110_000_000) for _ in range(60)]
    assert late.index(True) < 50


@given(st.lists(st.integers(95, 105), min_size=50, max_size=300))
def test_even_jitter_of_five_percent_is_never_slow(values):
    rule = SlowRule(P)
    assert not any(rule.add(value * 1_000_000) for value in values)


def test_slow_first_steps_are_no_alarm():
    rule = SlowRule(P)
    steps = [3_000_000_000, 900_000_000, *[100_000_000] * 200]
    assert not any(rule.add(step) for step in steps)


def test_one_long_step_is_a_stall_and_not_a_slow_job():
    rule = SlowRule(P)
    said = [rule.add(100_000_000) for _ in range(100)]
    said += [rule.add(4_000_000_000)]
    said += [rule.add(100_000_000) for _ in range(100)]
    assert not any(said)
    assert is_stalling(400_000_000, [100_000_000] * 50, P)
    assert not is_stalling(290_000_000, [100_000_000] * 50, P)
    assert not is_stalling(10**12, [1, 1], P)


def test_best_and_last_mean():
    assert best_and_last_ms([1_000_000] * 20 + [3_000_000] * 20) == (1.0, 3.0)
    assert best_and_last_ms([2_000_000, 4_000_000]) == (2.0, 4.0)


def test_a_rank_that_waits_for_a_core_is_not_stuck():
    after = look(1, total_cpu_ns=S // 20, waiting_ns=int(0.9 * S))
    assert progress_between(look(0), after) is Progress.WEAK


def test_the_pause_of_our_own_window_is_not_a_stuck_job():
    assert progress_between(look(0), look(1, is_profiled=True)) is Progress.WEAK


def test_a_rank_on_its_way_out_is_given_time_to_end():
    assert progress_between(look(0), look(1, is_leaving=True)) is Progress.WEAK
