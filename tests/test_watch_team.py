"""A team of two hosts in one process: agreeing, reporting, and going on without each other."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from eroica.records import JobEvidence, RankEvidence
from eroica.watch import team as teams
from eroica.watch.result import WatchResult
from eroica.watch.team import Team
from eroica.watch.wire import VerdictPlace, WindowPlan


def job_of(*ranks):
    members = {r: SimpleNamespace(rank=r, live=SimpleNamespace(pid=1000 + r)) for r in ranks}
    return SimpleNamespace(ranks=members, world_size=4)


def environment(pid):
    rank = pid - 1000
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % 2),
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


@pytest.fixture
def pair(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("EROICA_PORT", str(probe.getsockname()[1]))
    monkeypatch.setattr(teams.proc, "read_environment", environment)
    leader, follower = Team(job_of(0, 1)), Team(job_of(2, 3))
    leader.host, follower.host = "h0", "h1"
    yield leader, follower
    follower.close()
    leader.close()


def meet(leader, follower):
    until = time.monotonic() + 8
    while not (leader.exchange and leader.exchange.heard and follower.orders):
        leader.poll(time.monotonic())
        follower.poll(time.monotonic())
        assert time.monotonic() < until
        time.sleep(0.02)
    follower.tell("")  # says which ranks are there
    while leader.exchange.heard[2].status.ranks != (2, 3):
        assert time.monotonic() < until
        time.sleep(0.02)


def agree(leader, follower, own, other, seconds=6.0):
    """Both loops turn until both have the job's hint."""
    found = {}
    until = time.monotonic() + seconds
    while len(found) < 2 and time.monotonic() < until:
        for name, one, hint in (("leader", leader, own), ("follower", follower, other)):
            if name not in found and (said := one.agree(hint, is_ended=False)):
                found[name] = said
        time.sleep(0.02)
    return found


def result_of(*ranks, hint="stuck"):
    evidence = JobEvidence(
        ranks=tuple(RankEvidence(rank=rank) for rank in ranks), world_size=4, symptom_hint=hint
    )
    return WatchResult(evidence=evidence, hint=hint)


def test_both_hosts_agree_report_and_know_where_the_verdict_is(pair):
    leader, follower = pair
    meet(leader, follower)
    assert leader.is_leader and follower.is_follower
    assert agree(leader, follower, "stuck", "stuck") == {"leader": "stuck", "follower": "stuck"}
    places = []

    def follow():
        follower.await_gathered()
        places.append(follower.join(result_of(2, 3)).elsewhere)

    thread = threading.Thread(target=follow)
    thread.start()
    leader.await_gathered()
    joined = leader.join(result_of(0, 1))
    assert [rank.rank for rank in joined.evidence.ranks] == [0, 1, 2, 3]
    assert joined.evidence.warnings == ()
    assert joined.team is leader
    leader.tell_verdict(VerdictPlace(host="", id="x-1", symptom="stuck"))
    thread.join(10)
    assert (places[0].host, places[0].id) == ("h0", "x-1")


@pytest.mark.parametrize(("own", "other"), [("stuck", None), (None, "stuck")])
def test_a_host_that_only_waits_for_another_makes_no_job_stuck(pair, own, other):
    leader, follower = pair
    meet(leader, follower)
    assert agree(leader, follower, own, other, seconds=0.8) == {}


def test_a_failure_on_one_host_is_everyones_at_once(pair):
    leader, follower = pair
    meet(leader, follower)
    found = agree(leader, follower, None, "failed")
    assert found == {"leader": "failed", "follower": "failed"}


def test_the_followers_time_does_not_end_the_watch_but_the_leaders_does(pair):
    leader, follower = pair
    meet(leader, follower)
    assert agree(leader, follower, None, "healthy", seconds=0.6) == {}
    found = agree(leader, follower, "healthy", "healthy")
    assert found == {"leader": "healthy", "follower": "healthy"}


def test_windows_are_named_by_the_leader_and_taken_once(pair):
    leader, follower = pair
    meet(leader, follower)
    leader.is_baseline = True
    leader.announce_window(WindowPlan(number=0, start=40, num_steps=2))
    until = time.monotonic() + 5
    plan = None
    while plan is None and time.monotonic() < until:
        follower.poll(time.monotonic())
        plan = follower.next_window()
        time.sleep(0.02)
    assert (plan.number, plan.start, plan.num_steps, plan.is_baseline) == (0, 40, 2, True)
    follower.poll(time.monotonic())
    assert follower.next_window() is None


def test_a_host_that_finds_nobody_goes_on_alone_and_says_so(pair, monkeypatch):
    _, follower = pair
    monkeypatch.setattr(teams, "_JOIN_S", 0.5)
    follower.poll(time.monotonic())
    assert follower.is_follower
    assert follower.agree("stuck", is_ended=False) is None
    time.sleep(0.7)
    assert not follower.is_follower
    assert follower.agree("stuck", is_ended=False) == "stuck"
    found = follower.join(result_of(2, 3))
    assert found.elsewhere is None
    assert "of this host only" in found.evidence.warnings[0].what


def test_a_host_that_falls_silent_is_left_out_and_named(pair, monkeypatch):
    leader, follower = pair
    meet(leader, follower)
    follower.close()
    later = time.monotonic() + 60
    assert [one.host for one in leader.exchange.lost(later)] == ["h1"]
    monkeypatch.setattr(teams.time, "monotonic", lambda: later)
    assert leader.agree("stuck", is_ended=False) == "stuck"
    joined = leader.join(result_of(0, 1))
    assert "host h1 (ranks 2-3) fell silent" in joined.evidence.warnings[0].what


def test_a_job_on_one_host_has_no_team_and_loses_no_time():
    alone = Team(SimpleNamespace(ranks={}, world_size=0))
    assert alone.agree("stuck", is_ended=False) == "stuck"
    started = time.monotonic()
    alone.await_gathered()
    result = alone.join(result_of(0, 1))
    assert time.monotonic() - started < 0.1
    assert result.team is None and result.elsewhere is None and result.evidence.warnings == ()


def test_what_keeps_a_host_from_the_others_is_told(monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    monkeypatch.setenv("EROICA_TOKEN_FILE", str(token))
    monkeypatch.setattr(teams.proc, "read_environment", environment)
    one = Team(job_of(0, 1))
    assert one.agree("stuck", is_ended=False) == "stuck"
    found = one.join(result_of(0, 1))
    assert "can be read by others" in found.evidence.warnings[0].what
