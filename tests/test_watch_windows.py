"""How long a window may be, and where ranks begin it."""

from hypothesis import given
from hypothesis import strategies as st

from eroica.watch.windows import find_starts, steps_that_fit


def test_a_window_is_as_long_as_the_pause_allows():
    assert steps_that_fit(10_000, 100e6, pause_s=2.0, length_s=20.0) == 40
    assert steps_that_fit(10_000, 100e6, pause_s=0.5, length_s=20.0) == 10


def test_a_window_never_lasts_longer_than_asked():
    assert steps_that_fit(10, 1e9, pause_s=2.0, length_s=5.0) == 5


@given(st.floats(1, 1e9), st.floats(1e5, 1e12))
def test_a_window_has_at_least_one_step(events, mean_ns):
    number = steps_that_fit(events, mean_ns, pause_s=2.0, length_s=20.0)
    assert 1 <= number <= 60
    assert number == 1 or number * events * 5_000 <= 2e9


def test_ranks_in_step_begin_at_the_same_count():
    assert find_starts({0: 100, 1: 101, 2: 99}, 4) == {0: 105, 1: 105, 2: 105}


def test_ranks_far_apart_begin_equally_many_steps_from_now():
    assert find_starts({0: 100, 1: 140}, 4) == {0: 104, 1: 144}
