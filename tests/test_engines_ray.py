"""The Ray engine: named when missing, the same results when there."""

import importlib.util
import os
import sys

import pytest
from make_work import dies_on_two, odd_fails

from eroica.engines import map_ranks
from eroica.errors import InputError, MissingExtra

has_ray = importlib.util.find_spec("ray") is not None


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'eroica\[ray\]'"):
        list(map_ranks(odd_fails, [0], engine="ray"))


@pytest.mark.skipif(not has_ray, reason="ray is not installed: pip install 'eroica[ray]'")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_local_ray_gives_results_in_order_and_errors_as_errors(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # its workers import make_work
    got = list(map_ranks(odd_fails, range(6), engine="ray"))
    assert got[::2] == [0, 2, 4]
    assert all(isinstance(error, InputError) for error in got[1::2])
    killed = list(map_ranks(dies_on_two, range(4), engine="ray"))
    assert killed[:2] == [0, 1] and killed[3] == 3
    assert str(killed[2]).startswith("2 could not be summarized\nRay: ")
