"""Simulated jobs: the planted fault comes out, and nothing else does."""

import numpy as np
import pytest

from eroica.localize import localize_slow
from eroica.localize.fleet import localize_table
from eroica.simulate.cluster import Cluster, plan
from eroica.simulate.faults import KINDS, Fault
from eroica.simulate.tables import simulate_table
from eroica.simulate.traces import write_traces

SEVERITY = {
    "slow_nic": 0.2,
    "nvlink_down": 0.2,
    "throttled_gpu": 1.3,
    "pcie_degraded": 0.2,
    "slow_loader": 0.3,
    "unaligned_gc": 0.02,
    "imbalance": 1.3,
}


def diagnose(cluster, *faults, seed=0):
    table, truth = simulate_table(cluster, faults, seed=seed)
    return localize_table(table), truth


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [64, 512])
def test_the_planted_fault_is_the_first_cause(kind, world_size):
    ranks = () if kind == "unaligned_gc" else (13,)
    verdict, truth = diagnose(Cluster(world_size), Fault(kind, ranks, SEVERITY[kind]))
    first = verdict.causes[0]
    assert first.category in truth.faults[0].answers
    assert first.ranks == (ranks or "all")
    assert (first.action == "drain") == (
        first.category in ("nic_degraded", "nvlink_degraded", "gpu_throttled", "pcie_degraded")
    )
    assert first.share == pytest.approx(1 - 1 / truth.slowdown, abs=0.12)


def test_no_cause_in_healthy_clusters():
    for seed in range(30):
        verdict, _ = diagnose(Cluster(64), seed=seed)
        assert verdict.symptom == "healthy", (seed, verdict.headline)


def test_3400_ranks_with_a_dead_nic_and_unaligned_collection_come_out_as_these_two():
    verdict, _ = diagnose(
        Cluster(3400), Fault("slow_nic", (136,), 0.3), Fault("unaligned_gc", (), 0.02)
    )
    assert {c.category for c in verdict.causes} == {"nic_degraded", "gc_pause"}
    nic = next(c for c in verdict.causes if c.category == "nic_degraded")
    assert (nic.ranks, nic.hosts, nic.action) == ((136,), ("gpu-00017",), "drain")


@pytest.mark.parametrize(
    ("kind", "severity"),
    [("pcie_degraded", 0.3), ("slow_loader", 0.08), ("throttled_gpu", 1.15), ("imbalance", 1.25)],
)
@pytest.mark.parametrize("world_size", [64, 1024])
def test_a_fault_little_above_the_floor_is_found_although_compute_scatters_more(
    kind, severity, world_size
):
    for seed in range(4):
        verdict, truth = diagnose(Cluster(world_size), Fault(kind, (13,), severity), seed=seed)
        assert [(c.category, c.ranks) for c in verdict.causes[:1]] == [
            (truth.faults[0].answers[0], (13,))
        ], (seed, truth.slowdown)


def test_a_rank_that_works_longer_but_waits_as_long_as_the_others_holds_nobody():
    table, _ = simulate_table(Cluster(64))
    loader = next(i for i, f in enumerate(table.functions) if f.name == "__getitem__")
    table.beta_FR[loader, 20] += 0.15
    assert localize_table(table).symptom == "healthy"
    for row, function in enumerate(table.functions):
        if function.kind == "collective":
            table.beta_FR[row, 20] *= 0.1
    verdict = localize_table(table)
    assert (verdict.causes[0].category, verdict.causes[0].ranks) == (
        "straggler_data_loading",
        (20,),
    )


def test_more_to_copy_at_the_same_rate_is_not_the_link():
    table, _ = simulate_table(Cluster(64), [Fault("pcie_degraded", (20,), 0.25)])
    copies = next(i for i, f in enumerate(table.functions) if f.kind == "memory")
    table.mu_FR[copies, 20] = table.mu_FR[copies, 21]
    cause = localize_table(table).causes[0]
    assert (cause.category, cause.action, cause.ranks) == (
        "straggler_compute",
        "investigate",
        (20,),
    )


def test_a_throttled_stage_of_a_pipeline_is_found_among_its_peers():
    verdict, _ = diagnose(Cluster(64, stages=4), Fault("throttled_gpu", (20,), 1.3))
    assert (verdict.causes[0].category, verdict.causes[0].ranks) == ("gpu_throttled", (20,))


def test_the_same_seed_gives_the_same_table():
    one, _ = simulate_table(Cluster(32), seed=5)
    other, _ = simulate_table(Cluster(32), seed=5)
    assert np.array_equal(one.beta_FR, other.beta_FR)


def test_shares_of_a_rank_do_not_exceed_its_window_by_more_than_noise():
    table, _ = simulate_table(Cluster(128), [Fault("slow_nic", (3,), 0.2)])
    assert table.beta_FR.sum(axis=0).max() < 1.15
    assert sum(p.beta for p in plan(Cluster(128))) == pytest.approx(0.91, abs=0.01)


def test_a_cluster_that_does_not_divide_into_its_stages_is_refused():
    with pytest.raises(ValueError, match="multiple of stages"):
        Cluster(10, stages=4)


TRACES = [
    (Fault("slow_loader", (3,), 0.4), "straggler_data_loading", "__getitem__"),
    (Fault("throttled_gpu", (5,), 1.4), "gpu_throttled", "gemm_backward"),
    (Fault("imbalance", (1,), 1.4), "load_imbalance", "gemm_backward"),
]


@pytest.mark.parametrize(("fault", "category", "function"), TRACES)
def test_traces_carry_the_fault_through_reading_and_summarizing(
    tmp_path, fault, category, function
):
    cause = _localized(tmp_path, [fault]).causes[0]
    assert (cause.category, cause.ranks) == (category, fault.ranks)
    assert cause.functions[0].name.startswith(function)


def test_healthy_traces_have_no_cause(tmp_path):
    assert _localized(tmp_path, []).symptom == "healthy"


def _localized(folder, faults):
    from eroica.read.kineto import read_timeline
    from eroica.summarize import summarize

    write_traces(folder, Cluster(8), faults)
    return localize_slow([summarize(read_timeline(p)) for p in sorted(folder.glob("*.gz"))])
