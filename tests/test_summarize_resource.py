"""mu and sigma: counters where there are some, named proxies where not."""

import numpy as np
import pytest
from make_timeline import make_timeline

from eroica.columns import HardwareSamples
from eroica.summarize import merge, summarize
from eroica.summarize.resource import find_counter

MS = 1_000_000


def of(patterns, name):
    row = [function.name for function in patterns.functions].index(name)
    return float(patterns.mu_F[row]), float(patterns.sigma_F[row])


def reduces(durations, num_bytes=-1, rank=0):
    events = [
        ("kernel", "ncclDevKernel_AllReduce", "stream9", 100 * i, duration)
        for i, duration in enumerate(durations)
    ]
    rows = [(i, "all_reduce", "dp", i, num_bytes) for i in range(len(events))]
    return summarize(make_timeline(events, unit_ns=MS, collectives=rows, rank=rank))


def test_a_collective_without_counters_is_measured_in_bytes_per_second():
    patterns = reduces([10, 20], num_bytes=1_000_000)
    assert of(patterns, "all_reduce") == pytest.approx((0.75, 0.25))
    assert patterns.reference_F.tolist() == [pytest.approx(1e8)]
    assert patterns.proxy == "collective: bytes/s over the best"


def test_without_sizes_the_fastest_execution_is_the_measure():
    patterns = reduces([10, 20])
    assert of(patterns, "all_reduce") == pytest.approx((0.75, 0.25))
    assert patterns.proxy == "collective: fastest execution over execution"


def test_an_execution_of_unknown_size_does_not_change_what_is_measured():
    events = [("kernel", "ncclDevKernel_AllReduce", "stream9", 100 * i, 10) for i in range(3)]
    rows = [(0, "all_reduce", "dp", 0, 1000), (1, "all_reduce", "dp", 1, 500)]
    rows.append((2, "all_reduce", "dp", 2, -1))
    patterns = summarize(make_timeline(events, collectives=rows))
    assert of(patterns, "all_reduce") == pytest.approx((0.75, 0.25))


def test_a_link_that_is_always_slow_does_not_set_its_own_standard():
    healthy, slow = reduces([10, 10], 1_000_000, rank=0), reduces([70, 70], 1_000_000, rank=1)
    assert of(slow, "all_reduce") == pytest.approx((1.0, 0.0))
    table = merge([healthy, slow])
    assert table.mu_FR[0].tolist() == pytest.approx([1.0, 1 / 7])
    assert table.sigma_FR[0].tolist() == [0.0, 0.0]


def test_python_without_counters_is_not_measured_rather_than_guessed():
    patterns = summarize(make_timeline([("python_function", "a.py(1): f", "main", 0, 10)]))
    assert of(patterns, "f") == (0.0, 0.0)
    assert patterns.proxy == "python: not measured"


def test_counters_are_pooled_over_the_critical_duration():
    base = 5_000_000_000
    time_ns = base + np.arange(10) * MS
    nic = np.array([0, 0, 0, 0, 0, 4e9, 4e9, 4e9, 8e9, 8e9])
    events = [
        ("kernel", "ncclDevKernel_AllReduce", "stream9", 0, 8),
        ("python_function", "a.py(1): f", "main", 8, 2),
    ]
    hardware = HardwareSamples(
        time_ns_N=time_ns,
        values_N={
            "nic.mlx5_0.tx_bytes_per_s": nic / 2,
            "nic.mlx5_1.tx_bytes_per_s": nic / 2,
            "main_thread.cpu": np.linspace(0.1, 1.0, 10),
        },
    )
    timeline = make_timeline(events, unit_ns=MS, base_ns=base)
    patterns = summarize(timeline, hardware=hardware)
    assert of(patterns, "all_reduce") == pytest.approx((0.5, 0.0))  # waiting in 0-4 is not counted
    assert of(patterns, "f") == pytest.approx((0.95, 0.05))
    assert patterns.reference_F.tolist() == [8e9, 0.0]
    assert patterns.proxy == ""


def test_counters_are_found_by_what_they_measure():
    def hardware(*names):
        return HardwareSamples(np.arange(2), {name: np.ones(2) for name in names})

    both = hardware(
        "nvlink.tx_bytes_per_s", "nic.mlx5_0.tx_bytes_per_s", "nic.mlx5_0.rx_bytes_per_s"
    )
    assert find_counter(both, "collective").tolist() == [1, 1]
    assert find_counter(hardware("nvlink0.bytes"), "collective").tolist() == [1, 1]
    assert find_counter(hardware("gpu0.sm_activity", "gpu0.utilization"), "kernel").tolist() == [
        1,
        1,
    ]
    assert find_counter(hardware("gpu0.temperature"), "kernel") is None
    gaps = HardwareSamples(np.arange(2), {"gpu0.sm_activity": np.array([np.nan, -1.0])})
    assert find_counter(gaps, "kernel").tolist() == [0, 0]
