"""The borders of the watch's rules: how often a slow job is looked at, when a step is a stall."""

import pytest

from eroica.collect.hook.layout import NEXT_IN, NEXT_OUT, STEP_IN, STEP_OUT
from eroica.collect.rings import Event
from eroica.config import Parameters
from eroica.watch import rules
from eroica.watch.iteration import Iteration
from eroica.watch.rules import SlowRule, WindowPolicy, best_and_last_ms, is_stalling

DAY_S = 86_400.0


def test_the_first_window_is_always_allowed():
    assert WindowPolicy(Parameters()).allows(0.0, 1.0)


def test_the_next_window_waits_ten_minutes_or_for_a_further_five_percent():
    policy = WindowPolicy(Parameters())
    policy.note(1000.0, 100.0)
    assert not policy.allows(1599.9, 105.0)
    assert policy.allows(1600.0, 105.0)
    assert policy.allows(1000.1, 105.1)


def test_a_window_counts_from_the_last_one_taken():
    policy = WindowPolicy(Parameters())
    policy.note(0.0, 100.0)
    policy.note(500.0, 200.0)
    assert not policy.allows(700.0, 209.9)
    assert policy.allows(700.0, 210.1)
    assert policy.allows(1100.0, 100.0)


def test_a_day_has_six_windows_and_the_next_day_six_more():
    policy = WindowPolicy(Parameters())
    for number in range(6):
        now = number * 1000.0
        assert policy.allows(now, 1.0)
        policy.note(now, 1.0)
    assert not policy.allows(6000.0, 1000.0), "not even where it is far slower"
    assert not policy.allows(DAY_S - 0.1, 1.0)
    assert policy.allows(DAY_S, 1.0), "the first of them is a day old"
    policy.note(DAY_S, 1.0)
    assert not policy.allows(DAY_S + 700.0, 1.0)
    assert policy.allows(DAY_S + 1000.0, 1.0)


@pytest.mark.parametrize(
    ("elapsed_ns", "is_stall"), [(0, False), (300, False), (301, True), (10_000, True)]
)
def test_a_stall_is_longer_than_three_medians(elapsed_ns, is_stall):
    assert is_stalling(elapsed_ns, [100, 90, 110, 100, 5000], Parameters()) is is_stall


def test_four_steps_are_too_few_to_call_anything_a_stall():
    assert not is_stalling(10**9, [1, 1, 1, 1], Parameters())
    assert is_stalling(10**9, [1, 1, 1, 1, 1], Parameters())


def fed(rule, *values):
    return [rule.add(value) for value in values]


def test_exactly_the_settling_steps_are_left_out():
    rule = SlowRule(Parameters(slow_mean_steps=10), num_settling=3)
    fed(rule, *[10_000] * 3, *[100] * 9)
    assert rule.mean_ns is None, "nine steps are no mean of ten"
    fed(rule, 100)
    assert rule.mean_ns == 100
    assert rule.best_ns == 100


def test_the_mean_is_of_the_last_steps():
    rule = SlowRule(Parameters(slow_mean_steps=10), num_settling=0)
    fed(rule, *[100] * 10, *[200] * 5)
    assert rule.mean_ns == 150
    fed(rule, *[200] * 5)
    assert rule.mean_ns == 200
    assert rule.best_ns == 100


def test_a_best_time_out_of_reach_of_memory_is_forgotten():
    parameters = Parameters(slow_mean_steps=10, recent_steps=30)
    rule = SlowRule(parameters, num_settling=0)
    fed(rule, *[100] * 10, *[200] * 20)
    assert rule.best_ns == 100
    fed(rule, *[200] * 10)
    assert rule.best_ns == 200


def test_slow_is_more_than_five_percent_over_the_best():
    for late, is_slow in ((105, False), (106, True)):
        rule = SlowRule(Parameters(), num_settling=0)
        assert not any(fed(rule, *[100] * 50))
        assert any(fed(rule, *[late] * 50)) is is_slow


def test_means_of_few_steps_are_of_half_of_them():
    assert best_and_last_ms([1_000_000, 3_000_000]) == (1.0, 3.0)
    assert best_and_last_ms([4_000_000, 2_000_000, 2_000_000, 6_000_000]) == (3.0, 4.0)


def test_stacks_are_varied_where_most_looks_saw_a_new_one_and_there_were_enough():
    few = rules._FEW_LOOKS
    assert rules.is_varied(range(1, few + 1))
    assert not rules.is_varied(range(1, few)), "too few looks"
    assert not rules.is_varied([1, 2] * few), "a loop that polls"
    assert not rules.is_varied([0] * few), "no stack was taken"
    quarter = [*range(1, 3 * few + 1), *[1] * few]
    assert rules.is_varied(quarter), "three of four are new"
    assert not rules.is_varied([*quarter, 1])


def test_an_optimizer_that_steps_twice_an_iteration_ends_one_step():
    """As adversarial training does: once learned, only the last of the two is its end."""
    kinds = [NEXT_IN, NEXT_OUT, STEP_IN, STEP_OUT, STEP_IN, STEP_OUT]
    iteration = Iteration()
    iteration.add([Event(time_ns, kinds[time_ns % 6], 0) for time_ns in range(6 * 30)])
    assert iteration.is_learned
    assert {step.duration_ns for step in list(iteration.steps)[-15:]} == {6}
