"""Learning the iteration from sequences seen with real loops (n/N next, s/S step, M mark)."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.collect.hook.layout import MARK, NEXT_IN, NEXT_OUT, STEP_IN, STEP_OUT
from eroica.collect.rings import Event
from eroica.watch.iteration import Iteration, find_period

KINDS = {"n": NEXT_IN, "N": NEXT_OUT, "s": STEP_IN, "S": STEP_OUT, "M": MARK}
MS = 1_000_000


def events(text: str, owners: str = "") -> list[Event]:
    """One event each ms; ``owners`` gives digits beside the letters, default 0."""
    digits = owners or "0" * len(text)
    return [
        Event(i * MS, KINDS[letter], int(digit))
        for i, (letter, digit) in enumerate(zip(text, digits, strict=True))
    ]


@pytest.mark.parametrize(
    ("one", "events_per_step"),
    [
        ("nNsS", 4),  # plain loop, Lightning
        ("sS", 2),  # no loader
        ("nNnNsS", 6),  # accumulation of 2
        ("nNnNnNnNsS", 10),  # of 4
        ("M", 1),  # eroica.step()
        ("nN", 2),  # inference
    ],
)
def test_loops_are_learned_after_ten_repeats(one, events_per_step):
    iteration = Iteration()
    iteration.add(events(one * 12))
    assert iteration.is_learned
    if "s" in one or "M" in one:
        assert len(iteration.steps) == 11
        assert {step.duration_ns for step in iteration.steps} == {events_per_step * MS}


def test_nothing_is_learned_from_nine_repeats():
    iteration = Iteration()
    iteration.add(events("nNsS" * 9))
    assert not iteration.is_learned
    assert len(iteration.steps) == 8


def test_a_loop_one_batch_ahead_is_learned():
    iteration = Iteration()
    iteration.add(events("nN" + "nNsS" * 12))
    assert iteration.is_learned and len(iteration.steps) == 11


def test_two_optimizers_are_one_iteration():
    iteration = Iteration()
    iteration.add(events("nNsSsS" * 14, "000011" * 14))
    assert iteration.period == 3
    assert iteration.borders_per_step == 2
    iteration.add(events("nNsSsS" * 10, "000011" * 10))
    assert [step.duration_ns for step in list(iteration.steps)[-5:]] == [6 * MS] * 5


def test_an_optimizer_in_backward_is_folded_to_one_step():
    one = "sS" * 30
    owners = "".join(str(i // 2 % 10) for i in range(60))
    iteration = Iteration()
    iteration.add(events(one * 25, owners * 25))
    last = [step.duration_ns for step in list(iteration.steps)[-3:]]
    assert last == [last[0]] * 3
    assert iteration.is_learned


def test_an_evaluation_between_epochs_does_not_unlearn():
    iteration = Iteration()
    iteration.add(events("nNsS" * 20))
    iteration.add(events("nN" * 40, "11" * 40))
    assert iteration.is_learned
    iteration.add(events("nNsS" * 20))
    assert iteration.num_steps == 40


def test_an_evaluation_loader_alone_is_not_taken_for_the_iteration():
    assert find_period([(STEP_OUT, 0)] + [(NEXT_OUT, 1)] * 40, 10) is None


def test_two_hundred_strays_unlearn():
    iteration = Iteration()
    iteration.add(events("nNsS" * 20))
    first = iteration.border
    iteration.add(events("sS" * 260, "11" * 260))
    assert iteration.is_learned
    assert iteration.border == (STEP_OUT, 1) != first


def test_time_in_loader_and_optimizer_is_told_apart():
    iteration = Iteration()
    iteration.add(events("nNsS" * 12))
    assert {step.data_ns for step in list(iteration.steps)[1:]} == {MS}
    assert {step.optimizer_ns for step in list(iteration.steps)[1:]} == {MS}


@settings(max_examples=60)
@given(st.text("nNsSM", max_size=300), st.integers(1, 7))
def test_any_order_of_events_gives_ordered_steps(text, chunk):
    iteration = Iteration()
    every = events(text)
    for i in range(0, len(every), chunk):
        iteration.add(every[i : i + chunk])
    steps = list(iteration.steps)
    assert all(step.duration_ns > 0 for step in steps)
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(steps))


@pytest.mark.parametrize("num_optimizers", [2, 3, 9])
@pytest.mark.parametrize("has_loader", [False, True])
def test_several_optimizers_are_counted_once_an_iteration_from_the_first(
    num_optimizers, has_loader
):
    one = ("nN" if has_loader else "") + "sS" * num_optimizers
    owners = ("00" if has_loader else "") + "".join(2 * str(i) for i in range(num_optimizers))
    iteration = Iteration()
    iteration.add(events(one * 40, owners * 40))
    assert iteration.is_learned
    assert iteration.num_steps == 40
    assert {step.duration_ns for step in list(iteration.steps)[15:]} == {len(one) * MS}


def test_an_optimizer_for_each_of_700_parameters_is_learned():
    one = [Event(0, kind, owner) for owner in range(700) for kind in (STEP_IN, STEP_OUT)]
    iteration = Iteration()
    for number in range(14):
        iteration.add(Event(number * MS, event.kind, event.owner) for event in one)
    assert iteration.period == 700
    assert iteration.num_steps == 14
    assert iteration.borders_per_step == 700


def test_a_step_that_calls_its_parents_step_counts_once():
    iteration = Iteration()
    iteration.add(events("ssSS" * 30))
    assert (iteration.num_steps, iteration.borders_per_step) == (30, 2)
    assert {step.optimizer_ns for step in list(iteration.steps)[1:]} == {3 * MS}


def test_a_step_that_raised_costs_one_iteration_and_no_more():
    iteration = Iteration()
    iteration.add(events("sS" * 20 + "s" + "sS" * 20))
    assert iteration.num_steps == 39


def test_a_loader_read_inside_a_step_leaves_the_step_whole():
    iteration = Iteration()
    iteration.add(events("snNS" * 20))
    assert iteration.num_steps == 20


def test_an_optimizer_that_steps_twice_an_iteration_counts_once_from_the_first():
    iteration = Iteration()
    iteration.add(events("nNsSsSsS" * 40, "00000011" * 40))
    assert (iteration.num_steps, iteration.period) == (40, 4)
    steps = list(iteration.steps)
    assert len(steps) == 39
    assert {step.duration_ns for step in steps} == {8 * MS}
    assert {step.data_ns for step in steps} == {MS}
    assert {step.optimizer_ns for step in steps} == {3 * MS}


@given(st.integers(0, 30), st.integers(1, 3), st.integers(1, 4))
def test_what_came_before_the_loop_does_not_change_its_count(num_before, per_step, num_optimizers):
    """An evaluation first, as frameworks do to see whether it works."""
    one = "nN" * per_step + "sS" * num_optimizers
    owners = "00" * per_step + "".join(2 * str(i) for i in range(num_optimizers))
    iteration = Iteration()
    iteration.add(events("nN" * num_before, "99" * num_before))
    iteration.add(events(one * 30, owners * 30))
    assert (iteration.num_steps, len(iteration.steps)) == (30, 29)
    assert [step.duration_ns for step in list(iteration.steps)] == [len(one) * MS] * 29


def test_a_job_of_weeks_keeps_a_bounded_history_and_learns_anew_from_it():
    iteration = Iteration()
    iteration.add(events("nNsS" * 25_000))
    assert iteration.num_steps == 25_000
    assert len(iteration.steps) == 20_000
    assert iteration.steps[-1].end_ns == 99_999 * MS
    assert len(iteration._tokens) == len(iteration._parts) <= 4096
    other = "nNnNsSsSsS" * 120  # of another loader and optimizer
    later = events(other, "1" * len(other))
    iteration.add(event._replace(time_ns=event.time_ns + 100_000 * MS) for event in later)
    assert iteration.period == 5
    assert iteration.steps[-1].duration_ns == 10 * MS
