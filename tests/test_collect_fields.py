"""Which field of a kernel's file, which group, which count: hand-made files and exact numbers."""

import threading
import time
from types import SimpleNamespace

from make_kernel import FakeKernel

from eroica.collect import cgroups, counters, proc
from eroica.collect.hook import layout, sampler, window


def test_cpu_time_is_that_of_user_and_kernel(tmp_path):
    fields = ["R", 6, 1, 1, 0, -1, 0, 0, 0, 0, 0, 30, 12, 500, 600, 20, 0, 1, 0, 77]
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a (b) c) {' '.join(map(str, fields))} 0 0\n")
    stat = proc.read_stat(7, tmp_path)
    assert (stat.name, stat.state, stat.parent_pid, stat.start_ticks) == ("a (b) c", "R", 6, 77)
    assert stat.cpu_ns == 42 * proc._TICK_NS


def test_a_threads_time_on_a_cpu_comes_before_its_waiting_for_one(monkeypatch):
    monkeypatch.setattr(proc, "read_text", lambda path: "111 222 3\n")
    assert proc.thread_cpu_ns(7, 7) == (111, 222)
    monkeypatch.setattr(proc, "read_text", lambda path: "")
    assert proc.thread_cpu_ns(7, 7) == (0, 0)


def test_errors_and_drops_of_both_directions_count(tmp_path):
    host = FakeKernel(tmp_path)
    host.write(
        host.proc / "net/dev",
        "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed\n"
        "  eth0: 1000 9 1 2 0 0 0 0 3000 9 10 20 0 0 0 0\n",
    )
    source = counters.network_source(host.kernel)
    names = [counter.name.removeprefix("net.eth0.") for counter in source.counters]
    assert dict(zip(names, source.read(), strict=True)) == {
        "rx_bytes_per_s": 1000,
        "tx_bytes_per_s": 3000,
        "errors": 11,
        "drops": 22,
    }
    source.close()


def test_the_nearest_group_with_a_limit_counts(tmp_path):
    host = FakeKernel(tmp_path)
    root = host.sys / "fs/cgroup"
    for group, quota in (("pod", "200000"), ("pod/box", "100000"), ("pod/box/inner", "max")):
        host.write(root / group / "cpu.max", f"{quota} 100000\n")
        host.write(root / group / "cpu.stat", "nr_periods 4\nnr_throttled 1\n")
    host.cgroup(7, "0::/pod/box/inner\n")
    assert cgroups.cpu_folder(host.kernel, 7) == root / "pod/box"
    source = cgroups.cpu_quota_source(host.kernel, 7)
    assert list(source.read()) == [4.0, 1.0, 1.0]
    source.close()


def test_a_window_ends_at_the_count_that_was_asked_for(tmp_path):
    ring = SimpleNamespace(words=[0] * layout.HEADER_WORDS)
    windows, stopped = window.Windows(ring, str(tmp_path)), []
    windows._profiler = object()
    windows._request = {"stop": 5, "max_s": 100.0}
    windows.result = {"first": 2, "start_ns": time.monotonic_ns()}
    windows._stop = stopped.append
    windows.at_border(layout.W_BORDER_OPTIMIZER, 4)
    assert stopped == []
    assert ring.words[layout.W_BORDER_OPTIMIZER] == 5, "it looks again at the next step"
    windows.at_border(layout.W_BORDER_OPTIMIZER, 5)
    assert stopped == ["done"]
    assert windows.result["steps"] == 3


def test_a_window_that_takes_too_long_ends_before_its_count(tmp_path):
    ring = SimpleNamespace(words=[0] * layout.HEADER_WORDS)
    windows, stopped = window.Windows(ring, str(tmp_path)), []
    windows._profiler = object()
    windows._request = {"stop": 50, "max_s": 0.5}
    windows.result = {"first": 2, "start_ns": time.monotonic_ns() - 600_000_000}
    windows._stop = stopped.append
    windows.at_border(layout.W_BORDER_OPTIMIZER, 3)
    assert stopped == ["done"]


def test_a_sample_that_came_late_counts_for_the_time_it_waited():
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="waits")
    thread.start()
    taker, found = sampler.Sampler(SimpleNamespace(has_stacks=False)), {}
    taker._add(found, {}, waited=0.1, interval=0.02)
    taker._add(found, {}, waited=0.001, interval=0.02)
    done.set()
    thread.join()
    weights = [weight for (who, _), (weight, _) in found.items() if who[1] == "waits"]
    assert weights == [6.0]
    assert taker.num_samples == 2


def test_a_profile_that_is_ended_does_not_rest_on():
    taker = sampler.Sampler(SimpleNamespace(has_stacks=False))
    taker._until = time.monotonic() + 30
    ender = threading.Timer(0.2, taker.stop, (0.0,))
    ender.start()
    started = time.monotonic()
    taker._rest(20.0)
    assert 0.1 < time.monotonic() - started < 5
    ender.join()
    taker._until = time.monotonic() + 30
    started = time.monotonic()
    taker._rest(0.05)
    assert 0.04 < time.monotonic() - started < 5
