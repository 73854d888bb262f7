"""Causes that only counters of the host can show: cores taken away, a port off its like."""

import msgspec
import pytest
from make_slow import Program, job, samples, steps

from eroica.localize import localize_slow, localize_stuck
from eroica.records import (
    CounterUse,
    HostEvidence,
    JobEvidence,
    Neighbor,
    RankEvidence,
    RankExit,
)

SOURCE = """
def main():
    loss.backward()  # backward
    dist.all_reduce(x)  # reduce
"""


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path, SOURCE)


def use(mean, increase=None):
    return CounterUse(mean=mean, low=mean, high=mean, increase=increase, seconds=30.0)


def evidence_of(program, waits, *, hosts=("host0",), counters=(), work=(), **host):
    """A rank per wait; ``work`` is each rank's share in backward, the rest waits in all_reduce."""
    ranks = []
    for position in range(len(waits)):
        share = round(100 * (work[position] if work else 0.9))
        rows = [(share, share, "main:backward"), (100 - share, 0, "main:reduce all_reduce")]
        ranks.append({"samples": samples(program, rows), "steps": steps([100] * 30)})
    found = job(program, ranks)
    own = {position: dict(pairs) for position, pairs in enumerate(counters)}
    places = [hosts[position % len(hosts)] for position in range(len(waits))]
    changed = [
        msgspec.structs.replace(
            one,
            host=places[one.rank],
            counters={"training_thread.wait": use(waits[one.rank])} | own.get(one.rank, {}),
        )
        for one in found.ranks
    ]
    told = host.pop("told", {})
    return msgspec.structs.replace(
        found,
        ranks=tuple(changed),
        hosts=tuple(
            HostEvidence(host=name, **(told.get(name, {}) | {"num_cpus": 4} | host))
            for name in hosts
        ),
    )


def causes(evidence):
    return localize_slow([], evidence=evidence).causes


def test_a_cpu_quota_that_stops_the_job_is_named(program):
    limits = {"cgroup.throttled": use(0.6), "cgroup.quota_cores": use(1.5)}
    found = causes(evidence_of(program, [0.35, 0.4], counters=[limits, limits]))
    assert (found[0].category, found[0].action, found[0].ranks) == (
        "cpu_oversubscription",
        "configure",
        "all",
    )
    assert "CPU quota (1.5 cores)" in found[0].summary and found[0].share == pytest.approx(0.4)


def test_a_quota_that_is_hardly_reached_is_no_cause(program):
    limits = {"cgroup.throttled": use(0.02), "cgroup.quota_cores": use(3)}
    assert not causes(evidence_of(program, [0.35, 0.4], counters=[limits, limits]))


def test_another_process_that_takes_the_cores_is_named_with_its_part(program):
    neighbors = (Neighbor(pid=77, name="ffmpeg", cores=2.0),)
    found = causes(
        evidence_of(
            program,
            [0.4, 0.4],
            neighbors=neighbors,
            counters=(),
            told={"host0": {"counters": BUSY}},
        )
    )
    assert found[0].category == "cpu_oversubscription" and found[0].share == pytest.approx(0.2)
    assert "ffmpeg (pid 77, 2.0)" in found[0].summary
    assert found[0].against, "the job's own threads queue as well"


BUSY = {"host.busy_cores": use(4.0)}


def test_daemons_beside_a_job_that_fights_with_itself_are_no_cause(program):
    neighbors = (Neighbor(pid=77, name="node_exporter", cores=0.2),)
    told = {"host0": {"counters": BUSY}}
    assert not causes(evidence_of(program, [0.5, 0.5], neighbors=neighbors, told=told))


def test_a_rank_bound_to_a_core_that_another_process_uses_is_found(program):
    neighbors = (Neighbor(pid=9, name="backup", cores=0.9),)
    found = causes(
        evidence_of(
            program,
            [0.0, 0.0, 0.5, 0.01],
            neighbors=neighbors,
            num_cpus=64,
            told={"host0": {"counters": BUSY}},
        )
    )
    assert found[0].ranks == (2,) and found[0].share == pytest.approx(0.49, abs=0.02)
    assert found[0].hosts == ("host0",) and found[0].victims == (0, 1, 3)


def test_ranks_that_queue_unlike_on_a_full_host_are_not_bound_to_a_neighbors_core(program):
    neighbors = (Neighbor(pid=9, name="backup", cores=0.3),)
    told = {"host0": {"counters": BUSY}}
    assert not causes(
        evidence_of(program, [0.45, 0.6, 0.68], neighbors=neighbors, num_cpus=4, told=told)
    )


def test_a_hypervisor_that_takes_cores_is_named(program):
    told = {"host0": {"counters": {"host.stolen_cores": use(1.0)}}}
    found = causes(evidence_of(program, [0.25, 0.25], told=told))
    assert "hypervisor takes 1.0 of 4 cores" in found[0].summary


def test_a_hypervisor_is_blamed_for_no_more_than_it_takes(program):
    told = {"host0": {"counters": {"host.stolen_cores": use(0.4)}}}
    assert not causes(evidence_of(program, [0.6, 0.7, 0.65, 0.6, 0.6, 0.65], told=told))


def test_threads_that_wait_for_no_core_are_no_cause(program):
    neighbors = (Neighbor(pid=9, name="backup", cores=3.0),)
    told = {"host0": {"counters": BUSY}}
    assert not causes(evidence_of(program, [0.01, 0.02], neighbors=neighbors, told=told))


def port(rate, errors=0.0):
    return {
        "counters": {
            "ib.mlx5_0.link_bits_per_s": use(rate),
            "ib.mlx5_0.symbol_errors": use(errors / 30, increase=errors),
        }
    }


def test_a_port_that_negotiated_a_lower_rate_is_to_be_drained(program):
    told = {"a": port(400e9), "b": port(100e9), "c": port(400e9)}
    found = causes(
        evidence_of(program, [0, 0, 0], hosts=("a", "b", "c"), told=told, work=[0.4] * 3)
    )
    assert (found[0].category, found[0].action) == ("nic_degraded", "drain")
    assert found[0].hosts == ("b",) and found[0].ranks == (1,)
    assert found[0].share == pytest.approx(0.75 * 0.6)
    assert "mlx5_0 runs at 100 Gb/s, elsewhere at 400" in found[0].summary


def test_errors_on_a_port_count_only_where_its_ranks_hold_the_others(program):
    told = {"a": port(400e9), "b": port(400e9, errors=90), "c": port(400e9)}
    hosts = ("a", "b", "c")
    even = evidence_of(program, [0, 0, 0], hosts=hosts, told=told, work=[0.6] * 3)
    assert not [one for one in causes(even) if one.category == "nic_degraded"]
    late = evidence_of(program, [0, 0, 0], hosts=hosts, told=told, work=[0.5, 0.95, 0.5])
    assert any(one.category == "nic_degraded" and one.ranks == (1,) for one in causes(late))


def test_errors_that_all_hosts_count_accuse_nobody(program):
    told = {"a": port(400e9, errors=90), "b": port(400e9, errors=90)}
    late = evidence_of(program, [0, 0], hosts=("a", "b"), told=told, work=[0.5, 0.95])
    assert not [one for one in causes(late) if one.category == "nic_degraded"]


def dead(signal, **counters):
    killed = RankExit(signal=signal, exit_code=-9)
    ranks = (
        RankEvidence(rank=0, host="a"),
        RankEvidence(rank=1, host="a", exit=killed, counters=counters),
    )
    hosts = (HostEvidence(host="a", counters={"vm.oom_kills": use(0, increase=0)}),)
    return JobEvidence(ranks=ranks, world_size=2, symptom_hint="failed", hosts=hosts)


def test_a_rank_that_the_kernel_killed_for_memory_needs_no_log_to_say_so():
    kills = {"cgroup.oom_kills": use(0.03, increase=1)}
    found = localize_stuck(dead("SIGKILL", **kills)).causes[0]
    assert (found.category, found.action, found.ranks) == ("memory_pressure", "configure", (1,))
    assert "killed 1 of its processes for memory" in found.summary


@pytest.mark.parametrize(
    ("signal", "kills"), [("SIGKILL", 0), ("SIGSEGV", 1)], ids=["no kill", "another signal"]
)
def test_a_rank_that_died_otherwise_is_not_blamed_on_memory(signal, kills):
    found = localize_stuck(dead(signal, **{"cgroup.oom_kills": use(0, increase=kills)})).causes
    assert found[0].category == "rank_exited"
