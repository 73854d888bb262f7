"""Numbers as people read them: rounded first, then the unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 µs"),
        (8_500_000, "8.5 ms"),
        (999_600_000, "1.0 s"),
        (999_400_000, "999 ms"),
        (999_600, "1 ms"),
        (1_234_000_000, "1.2 s"),
        (9_960_000_000, "10 s"),
        (9_940_000_000, "9.9 s"),
        (119_600_000_000, "2 min 0 s"),
        (119_400_000_000, "119 s"),
        (3_599_700_000_000, "60 min 0 s"),
        (5_399_600_000_000, "1 h 30 min"),
        (7_199_600_000_000, "2 h 0 min"),
        (-8_500_000, "-8.5 ms"),
    ],
)
def test_a_duration_is_rounded_before_its_unit_is_chosen(ns, text):
    assert units.duration(ns) == text


@given(st.integers(min_value=0, max_value=10**17))
def test_no_duration_has_an_exponent_or_a_full_part(ns):
    text = units.duration(ns)
    assert "e" not in text
    assert not text.endswith(("min 60 s", "h 60 min"))
    assert text.removesuffix(" ms") not in ("1000", "1000 µs")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(999, "999 B"), (999.6, "1 kB"), (999_600, "1 MB"), (31_250, "31.2 kB"), (2e15, "2000 TB")],
)
def test_a_size_is_rounded_before_its_unit_is_chosen(num_bytes, text):
    assert units.size(num_bytes) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0 %"), (0.004, "<1 %"), (0.006, "1 %"), (0.5, "50 %"), (0.996, ">99 %"), (1, "100 %")],
)
def test_a_share_shows_nothing_as_none_and_not_quite_all_as_not_all(fraction, text):
    assert units.share(fraction) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0-1"),
        ([0, 2], "0,2"),
        ([0, 1, 2, 5], "0-2,5"),
        ([7, 5, 6, 1, 1], "1,5-7"),
        ([0, 2, 3, 5, 6, 7], "0,2-3,5-7"),
    ],
)
def test_ranks_that_follow_each_other_are_folded(values, text):
    assert units.ranks(values) == text
