"""Counters of a watched job: which of them mu may be made of, and that a live job has them."""

import os
import threading
import types

import numpy as np
import pytest
from make_kernel import FakeGpus, FakeKernel
from make_timeline import make_timeline

from eroica.collect.hardware import HardwareSampler
from eroica.read.hardware import read_hardware, to_text
from eroica.summarize import summarize
from eroica.summarize.resource import find_counter
from eroica.watch.hardware import HardwareWatch

T0 = 1_795_980_000_000_000_000
TICK = 10_000_000  # 100 Hz


def watch_of(tmp_path, *, step_ms=400.0, world_size=1, num_samples=101):
    """A rank on a made-up host whose thread works in every second tick."""
    host, gpus = FakeKernel(tmp_path), FakeGpus(1)
    host.process(40)
    host.thread(40, 40, cpu_ns=0, wait_ns=0)
    gpus.values[0] = {"utilization": 0.9}
    gpus.field_values[0] = {(138, 0xFFFFFFFF): 0.0}
    job = types.SimpleNamespace(
        mean_step_ns=lambda: step_ms * 1e6, world_size=world_size, ranks={0: None}, alive=[]
    )
    sampler = HardwareSampler(kernel=host.kernel, open_gpus=lambda: gpus)
    sampler.watch(0, 40, 40)
    used = 0
    for number in range(num_samples):
        used += TICK if number % 2 else 0
        host.thread(40, 40, cpu_ns=used, wait_ns=0)
        gpus.field_values[0][138, 0xFFFFFFFF] = number * 1000.0
        sampler.turn(T0 + number * TICK)
    return HardwareWatch(job, sampler)


def test_counters_of_long_steps_stand_for_what_functions_use(tmp_path):
    watch = watch_of(tmp_path)
    found = watch.for_patterns(0, T0, T0 + 100 * TICK)
    assert set(found.values_N) == {"training_thread.cpu", "gpu0.nvlink_tx_bytes_per_s"}
    assert found.values_N["gpu0.nvlink_tx_bytes_per_s"] == pytest.approx(np.full(100, 1024e5))
    assert "gpu0.utilization" in watch.sampler.uses(0), "kept for the rules"
    watch.close()


def test_only_the_windows_own_time_counts(tmp_path):
    watch = watch_of(tmp_path)
    found = watch.for_patterns(0, T0 + 20 * TICK, T0 + 60 * TICK)
    assert (found.time_ns_N[0], found.time_ns_N[-1]) == (T0 + 21 * TICK, T0 + 60 * TICK)
    watch.close()


@pytest.mark.parametrize(
    "given",
    [{"step_ms": 150.0}, {"num_samples": 15}, {"num_samples": 2}],
    ids=["short steps", "few samples", "next to none"],
)
def test_counters_that_cannot_tell_functions_apart_are_not_used(tmp_path, given):
    watch = watch_of(tmp_path, **given)
    assert watch.for_patterns(0, T0, T0 + 100 * TICK) is None
    watch.close()


def test_the_network_counts_only_where_the_job_spans_hosts(tmp_path):
    for world_size, is_wanted in ((1, False), (2, True)):
        watch = watch_of(tmp_path / str(world_size), world_size=world_size)
        names = watch.for_patterns(0, T0, T0 + 100 * TICK).values_N
        assert any(name.startswith("net.") for name in names) is is_wanted
        watch.close()


def test_what_lies_in_the_folder_is_read_again(tmp_path):
    watch = watch_of(tmp_path)
    kept = watch.for_folder([0], T0 + 101 * TICK, "node7")
    watch.close()
    assert [one.rank for one in kept] == [0, None]
    path = tmp_path / "hardware.jsonl"
    path.write_text(to_text(kept[0]))
    again = read_hardware(path)
    assert (again.rank, again.host, len(again.time_ns_N)) == (0, "node7", 100)
    assert again.values_N["training_thread.cpu"] == pytest.approx(
        kept[0].values_N["training_thread.cpu"], rel=1e-3
    )
    assert not np.isnan(again.values_N["gpu0.utilization"]).any()


def test_mu_of_a_function_is_what_its_thread_used(tmp_path):
    watch = watch_of(tmp_path)
    found = watch.for_patterns(0, T0, T0 + 100 * TICK)
    watch.close()
    events = [("python_function", "train.py(3): work", "main", 0, 900)]
    timeline = make_timeline(events, unit_ns=1_000_000, base_ns=T0)
    plain, measured = summarize(timeline), summarize(timeline, hardware=found)
    assert plain.proxy == "python: not measured" and measured.proxy == ""
    row = [function.name for function in measured.functions].index("work")
    assert measured.mu_F[row] == pytest.approx(0.5, abs=0.02)
    assert measured.sigma_F[row] == pytest.approx(0.5, abs=0.02), (
        "full in one tick, idle in the next"
    )


def test_errors_of_a_link_are_no_use_of_it(tmp_path):
    watch = watch_of(tmp_path)
    found = watch.for_patterns(0, T0, T0 + 100 * TICK)
    watch.close()
    used = find_counter(found, "collective")
    found.values_N["gpu0.nvlink_crc_errors"] = np.full(100, 1e12)
    found.values_N["ib.mlx5_0.congestion"] = np.full(100, 1e12)
    assert find_counter(found, "collective") == pytest.approx(used)


@pytest.mark.job
@pytest.mark.timeout(240)
def test_a_live_job_has_counters_and_its_end_leaves_no_thread(tmp_path):
    pytest.importorskip("torch")
    from test_watch_jobs import run

    result, _ = run(tmp_path, "for _ in range(300): step()")
    for rank in result.evidence.ranks:
        assert rank.counters["training_thread.cpu"].mean > 0.01
        assert rank.counters["rank.threads"].high >= 2
    host = result.evidence.hosts[0]
    assert host.num_cpus == os.cpu_count() and "host.busy_cores" in host.counters
    assert any("GPU counters" in text for text in host.missing) or "gpu" in str(host.counters)
    assert [one.rank for one in result.hardware] == [0, 1, None]
    assert "eroica-hardware" not in [thread.name for thread in threading.enumerate()]
