"""Hardware counters: a made-up kernel and GPUs whose numbers are known, and the real ones."""

import math
import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_kernel import FakeGpus, FakeKernel

from eroica.collect import cgroups, counters, infiniband, nvml, proc
from eroica.collect.counters import Counter
from eroica.collect.hardware import HardwareSampler, Pace
from eroica.collect.samples import Columns, busiest

T0 = 1_795_980_000_000_000_000
SECOND = 1_000_000_000


@pytest.fixture
def host(tmp_path):
    return FakeKernel(tmp_path)


def no_gpus():
    raise nvml.NoGpus("GPU counters: no NVIDIA driver answers (none here)")


def sampler_of(host, gpus=None, **options):
    open_gpus = (lambda: gpus) if gpus is not None else no_gpus
    return HardwareSampler(kernel=host.kernel, open_gpus=open_gpus, **options)


def rank_on(host, pid=40):
    host.process(pid)
    host.thread(pid, pid, cpu_ns=0, wait_ns=0)
    return pid


# --- digests of rates, counts and gauges


def test_waiting_for_a_core_is_told_per_rank(host):
    pid = rank_on(host)
    sampler = sampler_of(host)
    sampler.watch(0, pid, pid)
    for second in range(5):
        host.thread(pid, pid, cpu_ns=second * 300_000_000, wait_ns=second * 700_000_000)
        sampler.turn(T0 + second * SECOND)
    uses = sampler.uses(0)
    assert uses["training_thread.cpu"].mean == pytest.approx(0.3)
    assert uses["training_thread.wait"].mean == pytest.approx(0.7)
    assert uses["rank.wait"].mean == pytest.approx(0.7) and uses["rank.threads"].mean == 1
    sampler.close()


def test_only_what_was_seen_since_counts(host):
    pid = rank_on(host)
    sampler = sampler_of(host)
    sampler.watch(0, pid, pid)
    for second, wait in enumerate((0.0, 0.9, 1.8, 1.8, 1.8, 1.8)):
        host.thread(pid, pid, cpu_ns=0, wait_ns=int(wait * SECOND))
        sampler.turn(T0 + second * SECOND)
    assert sampler.uses(0)["training_thread.wait"].mean == pytest.approx(0.36)
    late = sampler.uses(0, since_ns=T0 + 2 * SECOND)["training_thread.wait"]
    assert late.mean == 0 and late.seconds == 3
    sampler.close()


def test_a_thread_that_ended_keeps_its_time(host):
    pid = rank_on(host)
    host.thread(pid, 41, cpu_ns=0, wait_ns=0)
    source = counters.RankSource(host.kernel, pid)
    host.thread(pid, 41, cpu_ns=800, wait_ns=20)
    assert source.read()[:2] == (800.0, 20.0)
    (host.proc / "40/task/41/schedstat").unlink()
    (host.proc / "40/task/41").rmdir()
    host.thread(pid, pid, cpu_ns=5, wait_ns=1)
    assert source.read()[:2] == (805.0, 21.0)


def test_the_host_is_told_in_units_that_need_no_manual(host):
    sampler = sampler_of(host)
    for second in range(4):
        host.network(rx=second * 1000, tx=second * 4000, errors=second, drops=0)
        host.pressure(cpu=second * 500_000, memory=second * 250_000, io=0)
        host.memory(swapped=second * 30, faults=second, kills=second // 3)
        host.processors(user=second * 150, steal=second * 20)
        sampler.turn(T0 + second * SECOND)
    uses = sampler.uses(None)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert uses["net.eth0.tx_bytes_per_s"].mean == 4000
    assert uses["net.eth0.errors"].increase == 3
    assert uses["pressure.cpu"].mean == pytest.approx(0.5)
    assert uses["pressure.memory"].mean == pytest.approx(0.25)
    assert uses["vm.swap_in_pages_per_s"].mean == 30 and uses["vm.oom_kills"].increase == 1
    assert uses["host.busy_cores"].mean == pytest.approx(150 * tick)
    assert uses["host.stolen_cores"].mean == pytest.approx(20 * tick)
    assert not any("veth7" in name or "lo." in name for name in uses)
    sampler.close()


def test_a_slow_infiniband_link_shows_its_rate_and_errors(host):
    host.infiniband(tx_words=0, rate="100 Gb/sec (1X NDR)")
    name, port = next(iter(infiniband.ports(host.kernel).items()))
    assert name == "mlx5_0"
    traffic, errors = infiniband.traffic_source(name, port), infiniband.error_source(name, port)
    before = errors.read()
    host.infiniband(tx_words=250, errors=7, rate="100 Gb/sec (1X NDR)")
    assert traffic.read()[1] * traffic.counters[1].scale == 1000.0
    names = [counter.name for counter in errors.counters]
    assert names == ["ib.mlx5_0.symbol_errors", "ib.mlx5_0.link_bits_per_s"]
    assert errors.read()[0] - before[0] == 7
    assert errors.read()[1] * errors.counters[1].scale == 100e9
    traffic.close()
    errors.close()


def test_a_rank_that_ended_leaves_gaps_and_what_it_had(host):
    pid = rank_on(host)
    sampler = sampler_of(host)
    sampler.watch(0, pid, pid)
    for second in range(3):
        host.thread(pid, pid, cpu_ns=second * SECOND, wait_ns=0)
        sampler.turn(T0 + second * SECOND)
    host.write(host.proc / "40/task/40/schedstat", "")  # what the kernel gives of a dead thread
    sampler.turn(T0 + 3 * SECOND)
    assert sampler.uses(0)["training_thread.cpu"].low == 1.0
    assert math.isnan(sampler.samples(0).values_N["training_thread.cpu"][-1])
    sampler.close()


@pytest.fixture(scope="module")
def all_sources(tmp_path_factory):
    fake = FakeKernel(tmp_path_factory.mktemp("kernel"))
    fake.infiniband()
    rank_on(fake)
    port = infiniband.ports(fake.kernel)["mlx5_0"]
    made = [
        counters.thread_source(fake.kernel, 40, 40),
        counters.network_source(fake.kernel),
        counters.pressure_source(fake.kernel),
        counters.memory_source(fake.kernel),
        counters.processor_source(fake.kernel),
        infiniband.traffic_source("mlx5_0", port),
        infiniband.error_source("mlx5_0", port),
    ]
    files = [source._files for source in made]
    yield made
    for source, opened in zip(made, files, strict=True):
        source._files = opened
        source.close()


@given(st.binary(max_size=200))
def test_no_content_of_a_kernel_file_raises(all_sources, text):
    for source in all_sources:
        source._files = [Bytes(text) for _ in source._files]
        assert len(source.read()) == len(source.counters)


class Bytes:
    def __init__(self, text):
        self.text = text

    def read(self):
        return self.text


# --- control groups of both kinds


def throttled(host, pid, before, after):
    sampler = sampler_of(host)
    sampler.watch(0, pid, pid)
    sampler.turn(T0)
    before()
    sampler.turn(T0 + SECOND)
    after()
    sampler.turn(T0 + 2 * SECOND)
    uses = sampler.uses(0)
    sampler.close()
    return uses


def test_a_quota_of_the_pod_above_counts_for_its_container(host):
    pid = rank_on(host)
    host.cgroup(pid, "0::/pod/container\n")
    pod, container = (host.sys / "fs/cgroup/pod", host.sys / "fs/cgroup/pod/container")
    host.write(container / "cpu.stat", "nr_periods 0\nnr_throttled 0\n")
    host.write(container / "cpu.max", "max 100000\n")
    host.write(pod / "cpu.max", "150000 100000\n")
    host.write(pod / "cpu.stat", "usage_usec 1\nnr_periods 0\nnr_throttled 0\n")

    def move(periods, stopped):
        host.write(
            pod / "cpu.stat", f"usage_usec 1\nnr_periods {periods}\nnr_throttled {stopped}\n"
        )

    uses = throttled(host, pid, lambda: move(10, 4), lambda: move(20, 8))
    assert uses["cgroup.throttled"].mean == pytest.approx(0.4)
    assert uses["cgroup.quota_cores"].mean == pytest.approx(1.5)
    assert "cgroup.periods_per_s" not in uses


def test_the_older_hierarchy_is_read_as_well(host):
    pid = rank_on(host)
    host.cgroup(pid, "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n")
    cpu, memory = host.sys / "fs/cgroup/cpu/job", host.sys / "fs/cgroup/memory/job"
    host.write(cpu / "cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")
    host.write(cpu / "cpu.cfs_quota_us", "50000\n")
    host.write(cpu / "cpu.cfs_period_us", "100000\n")
    host.write(memory / "memory.limit_in_bytes", "1000\n")
    host.write(memory / "memory.usage_in_bytes", "900\n")
    host.write(memory / "memory.failcnt", "0\n")
    host.write(memory / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")

    def move(periods, stopped):
        host.write(cpu / "cpu.stat", f"nr_periods {periods}\nnr_throttled {stopped}\nx 0\n")
        host.write(memory / "memory.oom_control", f"under_oom 0\noom_kill {stopped // 5}\n")

    uses = throttled(host, pid, lambda: move(10, 5), lambda: move(20, 10))
    assert uses["cgroup.throttled"].mean == pytest.approx(0.5)
    assert uses["cgroup.quota_cores"].mean == 0.5
    assert uses["cgroup.oom_kills"].increase == 2
    assert uses["cgroup.memory_full"].mean == pytest.approx(0.9)


def test_a_job_without_limits_has_no_such_counters(host):
    pid = rank_on(host)
    host.cgroup(pid, "0::/free\n")
    host.write(host.sys / "fs/cgroup/free/cpu.max", "max 100000\n")
    host.write(host.sys / "fs/cgroup/free/cpu.stat", "nr_periods 0\nnr_throttled 0\n")
    assert cgroups.cpu_folder(host.kernel, pid) is None
    with pytest.raises(FileNotFoundError, match="no memory limit"):
        cgroups.memory_limit_source(host.kernel, pid)


# --- GPUs


def test_a_gpu_is_sampled_for_the_rank_that_computes_on_it(host):
    pid = rank_on(host)
    gpus = FakeGpus()
    gpus.running[1] = [pid]
    gpus.values[1] = {"utilization": 0.9, "sm_clock_hz": 1.98e9, "throttled": 0.0}
    gpus.field_values[1] = {(138, 0xFFFFFFFF): 0.0, (4, 0): 2.0}
    sampler = sampler_of(host, gpus)
    sampler.watch(3, pid, pid, local_rank=0)
    for second in range(4):
        gpus.field_values[1][138, 0xFFFFFFFF] = second * 10.0
        gpus.field_values[1][4, 0] = 2.0 + (second > 2)
        gpus.values[1]["throttled"] = float(second > 1)
        sampler.turn(T0 + second * SECOND)
    uses = sampler.uses(3)
    assert uses["gpu1.nvlink_tx_bytes_per_s"].mean == 10 * 1024
    assert uses["gpu1.ecc_uncorrected_errors"].increase == 1
    assert uses["gpu1.throttled"].mean == 0.5 and uses["gpu1.sm_clock_hz"].low == 1.98e9
    assert "gpu1.temperature_c" not in uses, "what the device does not tell is left out"
    assert not any(name.startswith("gpu0") for name in uses)
    sampler.close()
    assert gpus.is_closed


def test_what_a_gpu_cannot_tell_is_asked_for_once(host):
    gpus = FakeGpus(1)
    gpus.values[0] = {"utilization": 0.5}
    source = nvml.fast_source(gpus, 0)
    asked = gpus.num_reads
    assert source.read() == [0.5] and gpus.num_reads == asked + 1


def test_a_gpu_that_falls_off_the_bus_gives_gaps_not_errors(host):
    gpus = FakeGpus(1)
    gpus.values[0] = {"utilization": 0.5}
    source = nvml.fast_source(gpus, 0)
    gpus.values[0] = {}
    assert math.isnan(source.read()[0])


@pytest.mark.parametrize(
    ("local_rank", "visible", "index"),
    [
        (1, None, 1),
        (7, None, None),
        (0, "1", 1),
        (1, "1", 1),  # the launcher shows each rank its own device
        (1, "1,0", 0),
        (0, "GPU-11", 1),
        (0, "", None),
        (0, "GPU-gone", None),
    ],
)
def test_the_gpu_of_a_rank_is_told_by_what_it_may_see(local_rank, visible, index):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert nvml.gpu_of(FakeGpus(), 99, local_rank, environment) == index


def test_without_a_driver_the_gap_is_named_and_the_rest_is_sampled(host):
    sampler = sampler_of(host)
    sampler.turn(T0)
    sampler.turn(T0 + SECOND)
    assert any("no NVIDIA driver" in text for text in sampler.problems)
    assert "net.eth0.tx_bytes_per_s" in sampler.uses(None)
    sampler.close()


def test_a_missing_kernel_file_is_named(host):
    (host.proc / "pressure/io").unlink()
    sampler = sampler_of(host)
    sampler.turn(T0)
    assert any(text.startswith("pressure: this kernel has no") for text in sampler.problems)
    sampler.close()


def test_a_driver_that_hangs_is_said_and_holds_up_nobody(host, monkeypatch):
    monkeypatch.setattr("eroica.collect.hardware._HUNG_S", 0.05)
    gpus, release = FakeGpus(1), threading.Event()
    gpus.pids = lambda index: [pid for pid in (1,) if release.wait(10) and pid < 0]
    sampler = sampler_of(host, gpus)
    sampler.watch(0, rank_on(host), 40)
    sampler.start()
    time.sleep(0.2)
    assert any("no answer for" in text for text in sampler.problems)
    assert sampler.uses(0) is not None
    release.set()
    sampler.close()


# --- samples over time


def test_samples_are_rates_on_one_grid(host):
    pid = rank_on(host)
    sampler = sampler_of(host)
    sampler.watch(0, pid, pid)
    for tick in range(21):
        host.thread(pid, pid, cpu_ns=tick * 50_000_000, wait_ns=0)
        host.network(rx=0, tx=tick * 1_000)
        sampler.turn(T0 + tick * SECOND // 10)
    found = sampler.samples(0, with_host=True)
    assert found.rank == 0 and len(found.time_ns_N) == 20
    assert found.values_N["training_thread.cpu"] == pytest.approx(np.full(20, 0.5))
    assert found.values_N["net.eth0.tx_bytes_per_s"] == pytest.approx(np.full(20, 10_000))
    assert len(found.values_N["pressure.cpu"]) == 20, "slow counters stand on the same grid"
    assert "net.eth0.tx_bytes_per_s" not in sampler.samples(0).values_N
    sampler.close()


def test_a_counter_of_which_one_sample_failed_has_a_gap():
    times = np.array([0, 1, 2, 3], np.int64) * SECOND
    values = np.array([[1.0], [2.0], [math.nan], [4.0]])
    columns = Columns((Counter("a", "count"),), True, times, values)
    assert columns.digest()["a"].increase == 3.0
    assert columns.on(times)["a"].tolist()[:2] == [2.0, 2.0]


def test_reading_comes_less_often_where_it_costs_more():
    pace = Pace(every_ns=10e6, share=0.007)
    pace.note(0, 50_000)
    assert pace.due_ns == 10e6, "cheap: as often as asked"
    pace = Pace(every_ns=10e6, share=0.007)
    pace.note(0, 2_000_000)
    assert pace.due_ns == pytest.approx(2_000_000 / 0.007)


# --- neighbors


def test_a_neighbor_is_named_and_the_job_is_not(host):
    def look(ticks):
        host.process(40, name="train", cpu_ticks=ticks)
        host.process(41, name="loader", parent=40, cpu_ticks=ticks)
        host.process(50, name="stress-ng", cpu_ticks=ticks)
        host.process(60, name="idle")
        host.process(70, name="kworker", parent=2, cpu_ticks=ticks)
        return proc.all_stats(host.proc)

    found = busiest(look(0), look(os.sysconf("SC_CLK_TCK") * 8), 10.0, [40])
    assert [(one.name, one.cores) for one in found] == [("stress-ng", pytest.approx(0.8))]


def test_a_process_with_a_used_pid_counts_what_it_did_itself(host):
    host.process(50, name="old", cpu_ticks=1000, start=5)
    before = proc.all_stats(host.proc)
    host.process(50, name="new", cpu_ticks=100, start=9)
    found = busiest(before, proc.all_stats(host.proc), 1.0, [])
    assert found[0].cores == pytest.approx(100 / os.sysconf("SC_CLK_TCK"))


# --- the real kernel


def test_a_busy_thread_of_this_machine_is_seen_as_busy():
    sampler = HardwareSampler(open_gpus=no_gpus, job_roots=lambda: [os.getpid()])
    over = threading.Event()
    tids = []

    def spin():
        tids.append(threading.get_native_id())
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    while not tids:
        time.sleep(0.01)
    sampler.watch(0, os.getpid(), tids[0])
    sampler.start()
    sampler.set_window(True)
    time.sleep(0.8)
    uses = sampler.uses(0)
    over.set()
    thread.join()
    sampler.close()
    busy = uses["training_thread.cpu"].mean + uses["training_thread.wait"].mean
    assert busy > 0.5, "on a CPU or waiting for one"


def test_files_are_closed_at_the_end(host):
    before = len(os.listdir("/proc/self/fd"))
    sampler = sampler_of(host)
    sampler.watch(0, rank_on(host), 40)
    sampler.turn(T0)
    assert len(os.listdir("/proc/self/fd")) > before
    sampler.close()
    assert len(os.listdir("/proc/self/fd")) == before
