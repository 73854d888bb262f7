"""Algorithm 1 on exact numbers, against a search that tries everything."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.summarize.critical_duration import critical_duration, pool_critical_samples


def found(samples, share=0.8):
    return critical_duration(np.array(samples, np.float64), share)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([0, 0, 0, 5, 5, 0, 5, 0, 0, 0, 1], (3, 7)),  # the module's worked example
        ([1, 1, 1, 1], (0, 4)),
        ([0, 0, 0, 0], (0, 4)),  # nothing was used: the whole execution
        ([], (0, 0)),
        ([0, 0, 0, 7], (3, 4)),  # a collective that waited for its last peer
        ([8, 0, 0, 2], (0, 1)),  # exactly the share is enough
        ([7.9, 0, 0, 2.1], (0, 4)),  # just under it is not
        ([1, 0, 9, 0, 0, 0, 0, 1], (2, 3)),
    ],
)
def test_the_critical_duration_is(samples, expected):
    assert found(samples) == expected


def exhaustive(samples, share):
    """Try every run of zeros from none up and every piece of it."""
    samples = np.asarray(samples, np.float64)
    total = samples.sum()
    if total <= 0:
        return 0, len(samples)
    for most_zeros in range(len(samples) + 1):
        best = None
        for first in np.flatnonzero(samples):
            for last in np.flatnonzero(samples):
                if last < first:
                    continue
                inside = samples[first : last + 1]
                runs = "".join("0" if value == 0 else "1" for value in inside).split("1")
                held = inside.sum()
                if max(map(len, runs)) <= most_zeros and (best is None or held > best[0]):
                    best = held, int(first), int(last) + 1
        if best[0] >= share * total * (1 - 1e-12):
            return best[1:]
    raise AssertionError("the whole is always feasible")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0, 0, 0, 1, 2, 5]), max_size=14), st.sampled_from([0.5, 0.8, 1.0]))
def test_binary_search_finds_what_exhaustion_finds(samples, share):
    first, last = found(samples, share)
    if not sum(samples):
        assert (first, last) == (0, len(samples))
        return
    expected = exhaustive(samples, share)
    assert sum(samples[first:last]) == sum(samples[slice(*expected)])
    assert sum(samples[first:last]) >= share * sum(samples) - 1e-9


def test_executions_of_a_function_are_pooled_over_their_critical_samples():
    time_ns = np.arange(0, 100, 10)
    use = np.array([0, 0, 0.8, 0.8, 0, 0, 0.4, 0.4, 0, 0], np.float64)
    mean, deviation, count = pool_critical_samples(
        time_ns,
        use,
        np.array([0, 50, 200]),
        np.array([40, 90, 300]),
        np.array([0, 0, 1], np.int32),
        2,
        0.8,
    )
    assert mean.tolist() == pytest.approx([0.6, 0.0])
    assert deviation.tolist() == pytest.approx([0.2, 0.0])
    assert count.tolist() == [4, 0]
