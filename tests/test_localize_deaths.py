"""Ranks that ended: which one's error it was, who failed alike, and who only lost a peer."""

import pytest

from eroica.localize.source import Project
from eroica.localize.stuck_failed import Death, failed
from eroica.records import Place

OWN = (Place(name="step", file="train.py", line=7), Place(name="main", file="train.py", line=20))
NOWHERE = Project(None)


def death(rank, text="ValueError: bad sample", frames=OWN, error="ValueError", **more):
    given = {"exit_code": 1, "signal": None, "time_ns": None} | more
    return Death(rank=rank, text=text, frames=frames, error_type=error, **given)


LOST = death(
    2, "RuntimeError: Connection closed by peer [127.0.0.1]:2", frames=(), error="RuntimeError"
)


def test_the_rank_with_an_error_of_its_own_is_guilty_and_who_lost_it_is_a_victim():
    found = failed(death(1), NOWHERE, [LOST], [3])
    assert (found.ranks, found.victims) == ((1,), (2, 3))
    assert found.places == OWN
    assert found.confidence == 0.9
    assert any("rank 2 ended later because the connection" in line for line in found.why)
    assert any("rank 3 still wait" in line for line in found.why)


def test_nobody_waits_and_nobody_followed():
    found = failed(death(1), NOWHERE, [], [])
    assert found.victims == ()
    assert not any("wait for it" in line or "ended later" in line for line in found.why)


def test_ranks_with_the_same_error_at_the_same_place_failed_alike():
    found = failed(death(1), NOWHERE, [death(0), death(3)], [])
    assert (found.ranks, found.victims) == ((0, 1, 3), ())


@pytest.mark.parametrize(
    "other",
    [
        death(3, "ValueError: another sample"),
        death(3, error="KeyError"),
        death(3, frames=OWN[1:]),
        death(3, error=None),
        LOST,
        death(3, "RuntimeError: Timed out waiting 1800000ms", error="RuntimeError"),
    ],
)
def test_another_error_another_place_or_a_lost_peer_is_not_alike(other):
    found = failed(death(1), NOWHERE, [other], [])
    assert (found.ranks, found.victims) == ((1,), (other.rank,))


def test_time_outs_of_two_ranks_are_not_an_error_they_share():
    late = death(1, "RuntimeError: Timed out waiting 1800000ms for recv", error="RuntimeError")
    other = death(3, late.text, error="RuntimeError")
    assert failed(late, NOWHERE, [other], []).ranks == (1,)


@pytest.mark.parametrize(
    ("one", "confidence"),
    [
        (death(0), 0.9),
        (death(0, frames=()), 0.75),
        (death(0, "", frames=(), error=None, signal="SIGSEGV", exit_code=-11), 0.75),
        (death(0, "", error=None), 0.6),
        (death(0, "", frames=(), error=None), 0.6),
    ],
)
def test_the_less_is_known_of_an_end_the_less_sure_it_is(one, confidence):
    found = failed(one, NOWHERE, [], [])
    assert found.confidence == confidence
    assert bool(found.against) is not bool(one.text)


@pytest.mark.parametrize(
    ("text", "frames", "category", "action"),
    [
        ("ValueError: bad sample", OWN, "rank_exited", "patch"),
        ("", (), "rank_exited", "patch"),
    ],
)
def test_an_end_is_mended_on_the_rank_it_was_on(text, frames, category, action):
    found = failed(death(0, text, frames=frames), NOWHERE, [], [])
    assert (found.category, found.action) == (category, action)
