"""Who comes last to the collectives, by hand: stays of ranks, point-to-point calls, ranks apart."""

from dataclasses import replace

import numpy as np
import pytest
from make_patterns import make_patterns

from eroica.columns import Arrivals
from eroica.localize.arrival import arrival_table, is_point_to_point, late_ranks
from eroica.localize.counterfactual import slowest, without


def arrived(*stays, culprit=()):
    """Arrivals of one rank: (key, ns from its coming to the common end)."""
    keys, lengths = zip(*stays, strict=True)
    end = (np.arange(len(keys)) + 1) * 1000
    return Arrivals(
        key_C=keys,
        start_ns_C=end - np.array(lengths),
        end_ns_C=end,
        num_bytes_C=np.full(len(keys), 8),
        culprit_C=culprit,
    )


def job(*arrivals):
    blank = make_patterns(len(arrivals), ())
    return [
        replace(one, arrivals=own, window_ns=1000) for one, own in zip(blank, arrivals, strict=True)
    ]


A, B = "dp|all_reduce|0", "dp|all_reduce|1"


def test_lateness_is_how_much_shorter_a_rank_stayed_than_the_first_to_come():
    table = arrival_table(
        job(arrived((A, 90), (B, 10)), arrived((A, 30), (B, 70)), arrived((A, 50), (B, 70)))
    )
    assert table.keys == (A, B)
    assert table.late_ns_CR.tolist() == [[0, 60, 40], [60, 0, 0]]
    first, second = late_ranks(table)
    assert (first.rank, first.times_last, first.out_of) == (0, 1, 2)
    assert (second.rank, second.times_last) == (1, 1)


def test_what_the_last_rank_did_before_is_the_function_that_held_the_most():
    culprit = ("loader", "loader")
    table = arrival_table(
        job(arrived((A, 90), (B, 90)), arrived((A, 10), (B, 20), culprit=culprit))
    )
    (late,) = late_ranks(table)
    assert (late.rank, late.times_last, late.function_id) == (1, 2, "loader")


def test_ranks_that_share_no_collective_have_no_table():
    assert arrival_table(job(arrived((A, 90)), arrived((B, 30)))) is None
    assert arrival_table(job(arrived((A, 90)))) is None
    assert arrival_table([]) is None


def test_a_collective_of_one_rank_is_left_out():
    table = arrival_table(job(arrived((A, 90), (B, 10)), arrived((A, 30))))
    assert table.keys == (A,)


SEND = "pp|send|0"


def test_in_a_pipeline_only_what_all_ranks_meet_in_tells():
    """Whoever comes after a slow stage is late as well."""
    inside = "dp_0|all_reduce|0"
    everybody = "world|all_reduce|0"
    with_all = job(
        arrived((SEND, 5), (inside, 90), (everybody, 60)),
        arrived((SEND, 7), (inside, 10), (everybody, 20)),
        arrived((everybody, 50)),
    )
    assert arrival_table(with_all).keys == (everybody,)
    without = job(arrived((SEND, 5), (inside, 90)), arrived((inside, 10)), arrived((SEND, 3)))
    assert arrival_table(without) is None
    plain = job(arrived((inside, 90)), arrived((inside, 10)), arrived((A, 3)))
    assert arrival_table(plain).keys == (inside,)


@pytest.mark.parametrize(
    ("key", "is_it"),
    [("pp|send|0", True), ("pp|recv|3", True), ("isend|1", True), ("dp|all_reduce|0", False)],
)
def test_sends_are_told_from_collectives(key, is_it):
    assert is_point_to_point(key) is is_it


def test_a_group_named_send_is_no_send():
    assert not is_point_to_point("sender_group|all_reduce|0")


# --- what the slow ranks cost -----------------------------------------------------------------


def test_the_worked_example_of_the_counterfactual():
    found = slowest(np.array([0.40, 0.38, 1.00, 0.41]))
    assert found.positions == (2,)
    assert found.share == pytest.approx(0.59)
    assert found.excess == pytest.approx(0.60)


def test_a_rank_within_a_fifth_of_the_spread_is_slow_as_well():
    assert slowest(np.array([0.0, 0.1, 0.0, 0.81, 1.0])).positions == (3, 4)
    assert slowest(np.array([0.0, 0.1, 0.0, 0.79, 1.0])).positions == (4,)


@pytest.mark.parametrize("work", [[], [0.5], [0.5, 0.5], [0.1, 1.0, 1.0]])
def test_where_no_minority_stands_out_nobody_is_slow(work):
    assert slowest(np.array(work)) is None


def test_relief_ends_where_the_next_slowest_rank_begins():
    work = np.array([0.4, 0.5, 1.0])
    assert without(work, (2,), np.array([0.0, 0.0, 0.9])) == pytest.approx(0.5)
    assert without(work, (2,), np.array([0.0, 0.0, 0.2])) == pytest.approx(0.2)
    assert without(work, (0,), np.array([0.4, 0.0, 0.0])) == 0.0
    assert without(np.zeros(3), (0,), np.ones(3)) == 0.0


def test_the_last_rank_holds_the_others_only_since_the_one_before_it_came():
    (late,) = late_ranks(arrival_table(job(arrived((A, 90)), arrived((A, 40)), arrived((A, 10)))))
    assert (late.rank, late.held_ns) == (2, 30)
