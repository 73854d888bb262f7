"""How long a window may be, and where ranks begin it."""

import time
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.collect.hook import layout
from eroica.columns import RankPatterns
from eroica.config import Parameters
from eroica.records import Function
from eroica.watch import windows
from eroica.watch.summaries import with_sampled_python
from eroica.watch.windows import WindowTaker, find_starts, steps_that_fit


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


@pytest.fixture
def taker(tmp_path, monkeypatch):
    """A taker over one rank that makes steps of 100 ms; ``asked`` is what its hook was asked."""
    asked = []
    monkeypatch.setattr(windows, "ask", lambda *words, **given: asked.append(given))
    clock = types.SimpleNamespace(silent_ns=0)
    ring = types.SimpleNamespace(count=lambda word: 0)
    iteration = types.SimpleNamespace(border=(layout.STEP_OUT, 0), borders_per_step=1)
    rank = types.SimpleNamespace(rank=0, ring=ring, iteration=iteration, ending=None)
    job = types.SimpleNamespace(
        alive=[rank],
        ranks={0: rank},
        mean_step_ns=lambda: 100e6,
        silent_since_ns=lambda: time.monotonic_ns() - clock.silent_ns,
    )
    taker = WindowTaker(job, tmp_path, Parameters())
    yield types.SimpleNamespace(taker=taker, asked=asked, clock=clock)
    taker.close()


def test_an_iteration_over_the_event_budget_is_taken_without_stacks(taker):
    taker.taker.events_per_step = 2.0 / 5e-6 + 1  # of 5 us each: just over the pause of 2 s
    assert taker.taker.is_over_budget()
    assert taker.taker.arm(length_s=20.0)
    (given,) = taker.asked
    assert given["stacks"] is False
    assert given["stop"] - given["start"] == 1
    window = taker.taker._current
    assert not window.has_stacks
    (problem,) = window.problems
    assert "about 400001 events" in problem and "sampled" in problem


def test_an_iteration_within_the_budget_has_its_stacks(taker):
    taker.taker.events_per_step = 10_000
    assert not taker.taker.is_over_budget()
    assert taker.taker.arm(length_s=20.0)
    assert taker.asked[0]["stacks"] is True
    assert taker.asked[0]["stop"] - taker.asked[0]["start"] == 40


def test_no_window_is_begun_and_none_is_waited_for_in_a_job_that_is_silent(taker):
    assert taker.taker.arm(length_s=20.0)
    assert taker.taker.poll() is None
    taker.clock.silent_ns = 5_000_000_000
    taker.taker.poll()
    assert taker.taker._current.exports  # asked to stop, and for what there is
    taker.taker._finish()
    assert not taker.taker.arm(length_s=20.0)


def pattern(rank, functions, betas, **values):
    size = len(functions)
    return RankPatterns(
        rank=rank,
        functions=tuple(functions),
        beta_F=np.array(betas, np.float32),
        mu_F=np.full(size, 0.5, np.float32),
        sigma_F=np.zeros(size, np.float32),
        count_F=np.ones(size, np.int32),
        total_ns_F=np.ones(size, np.int64),
        window_ns=1_000_000_000,
        **values,
    )


@pytest.mark.parametrize(
    ("sampled", "expected"),
    [([0.6, 0.2], [0.3, 0.1]), ([0.1, 0.1], [0.1, 0.1])],
    ids=["more than is left", "less than is left"],
)
def test_what_a_window_leaves_is_dealt_out_to_sampled_python(sampled, expected):
    kernel = Function(id="k", kind="kernel", name="gemm")
    python = [Function(id=name, kind="python", name=name) for name in ("load", "log")]
    wait = Function(id="c", kind="collective", name="all_reduce")
    window = pattern(3, [kernel], [0.6], reference_F=np.array([7.0], np.float32))
    beside = pattern(3, [*python, wait], [*sampled, 0.2], is_sampled=True)
    (joined,) = with_sampled_python([window], [beside])
    assert [function.id for function in joined.functions] == ["k", "load", "log"]
    assert joined.beta_F == pytest.approx([0.6, *expected])
    assert joined.beta_F.sum() <= 1.0 + 1e-6
    assert joined.reference_F.tolist() == [7.0, 0.0, 0.0]
    assert not joined.is_sampled
    assert "sampled" in joined.warnings[-1].what


def test_a_rank_without_samples_keeps_its_window_as_it_is():
    window = pattern(0, [Function(id="k", kind="kernel", name="gemm")], [0.6])
    assert with_sampled_python([window], []) == [window]
