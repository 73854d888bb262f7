"""Mapping ranks over cores: order, errors, killed workers, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from make_timeline import shared
from make_work import (
    dies_on_two,
    dies_on_two_and_says_who,
    extra,
    odd_fails,
    square,
    surprise,
    thread_and_process,
)

from eroica.engines import local, map_ranks, summarize_files
from eroica.errors import EroicaError, InputError

DLRM = Path(__file__).parent / "data" / "dlrm_8ranks_v100"


def test_results_come_in_the_order_of_the_items_with_progress():
    seen = []
    got = map_ranks(square, range(20), workers=3, progress=lambda *now: seen.append(now))
    assert list(got) == [number**2 for number in range(20)]
    assert seen == [(done, 20) for done in range(1, 21)]
    assert list(map_ranks(square, [])) == []


def test_one_item_and_small_work_start_no_process():
    assert list(map_ranks(thread_and_process, [0], sizes=[10**12])) == [
        (threading.current_thread().name, os.getpid())
    ]
    names = {name for name, pid in map_ranks(thread_and_process, range(8), workers=2)}
    assert all(name.startswith("eroica") for name in names)
    assert {pid for _, pid in map_ranks(thread_and_process, range(8), workers=2)} == {os.getpid()}


@pytest.mark.parametrize("sizes", [None, [10**10] * 4], ids=["threads", "processes"])
def test_a_failing_item_yields_its_error_and_ends_nothing(sizes):
    got = list(map_ranks(odd_fails, range(4), workers=2, sizes=sizes))
    assert got[0] == 0 and got[2] == 2
    for number in (1, 3):
        assert isinstance(got[number], InputError)
        assert str(got[number]) == f"rank {number} cannot be read\nfound nothing\nlook again"


def test_an_unexpected_exception_names_the_item_and_itself():
    (error,) = map_ranks(surprise, [("/data/rank3.json", 3)])
    assert isinstance(error, EroicaError)
    assert str(error).startswith("/data/rank3.json could not be summarized\nKeyError: ")


def test_errors_with_other_arguments_cross_processes():
    (first, _) = map_ranks(extra, [0, 1], workers=2, sizes=[10**10] * 2)
    assert isinstance(first, EroicaError)
    assert "pip install 'eroica[ray]'" in str(first)


def test_a_killed_worker_costs_its_own_item_only():
    got = list(map_ranks(dies_on_two, range(5), workers=2, sizes=[10**10] * 5))
    assert [one for one in got if isinstance(one, int)] == [0, 1, 3, 4]
    assert isinstance(got[2], EroicaError)
    assert "most likely killed because memory ran out" in str(got[2])


def test_after_a_killed_worker_the_rest_goes_on_in_a_pool():
    got = list(map_ranks(dies_on_two_and_says_who, range(24), workers=2, sizes=[10**10] * 24))
    assert [number for number, one in enumerate(got) if isinstance(one, EroicaError)] == [2]
    assert len({one for one in got if isinstance(one, int)}) <= 5, "two pools of 2 and one of 1"


def group(folder, limit, used, cache):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")


def test_a_containers_memory_limit_counts_and_its_file_cache_is_free(tmp_path, monkeypatch):
    own = tmp_path / "cgroup"
    own.write_text("0::/pod/job\n")
    root = tmp_path / "fs"
    group(root / "pod", 4 << 30, 3 << 30, 1 << 30)
    group(root / "pod" / "job", "max", 1 << 30, 0)
    assert local.container_bytes(root, own) == [2 << 30]
    assert local.container_bytes(tmp_path / "absent", own) == []
    assert local.container_bytes(root, tmp_path / "absent") == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(local, "container_bytes", lambda: [2 << 30])
    assert local.count_workers(100) == 4


def test_the_older_kind_of_control_group_counts_too(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("5:cpu,cpuacct:/job\n4:memory:/job\n")
    folder = tmp_path / "fs" / "memory" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("1000")
    (folder / "memory.usage_in_bytes").write_text("400")
    (folder / "memory.stat").write_text("total_inactive_file 100")
    assert local.container_bytes(tmp_path / "fs", own) == [700]


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="choose local or ray"):
        list(map_ranks(square, [1], engine="spark"))


def test_memory_and_cores_limit_the_workers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)

    class Memory:
        available = 10 << 30

    monkeypatch.setattr(local.psutil, "virtual_memory", lambda: Memory)
    monkeypatch.setattr(local, "container_bytes", list)
    assert local.count_workers(100) == 23
    assert local.count_workers(100, largest_bytes=3_000_000_000) == 4
    assert local.count_workers(2) == 2
    assert local.count_workers(100, largest_bytes=10**15) == 1
    assert local.count_workers(100, workers=7) == 7


def test_files_are_summarized_where_they_are_read_and_bad_ones_are_named(tmp_path):
    bad = tmp_path / "rank8.json"
    bad.write_text("nothing of ours")
    files = [(path, None) for path in sorted(DLRM.glob("worker*.json.gz"))]
    files += [(bad, None), (tmp_path / "absent.json", 9)]
    results = list(summarize_files(files))
    assert [one.rank for one in results[:8]] == list(range(8))
    assert [path for path, _ in results[8:]] == [bad, tmp_path / "absent.json"]
    assert all(isinstance(error, InputError) for _, error in results[8:])


def test_a_given_rank_goes_before_the_files_own():
    path = next(iter(sorted(DLRM.glob("worker*.json.gz"))))
    (patterns,) = summarize_files([(path, 5)])
    assert patterns.rank == 5


def test_a_single_trace_without_a_rank_is_rank_0_and_of_several_each_asks(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(json.dumps({"traceEvents": [event]}))
    (patterns,) = summarize_files([(paths[0], None)])
    assert patterns.rank == 0
    for _, error in summarize_files([(path, None) for path in paths]):
        assert "no rank is known" in str(error)


def test_ctrl_c_ends_the_workers_and_is_raised_on(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, time
            from pathlib import Path
            from eroica.engines import map_ranks

            def wait(folder):
                Path(folder, str(os.getpid())).touch()
                time.sleep(60)

            if __name__ == "__main__":
                try:
                    list(map_ranks(wait, [sys.argv[1]] * 4, workers=2, sizes=[10**10] * 4))
                except KeyboardInterrupt:
                    sys.exit(130)
            """
        )
    )
    folder = tmp_path / "pids"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)], start_new_session=True, stderr=subprocess.PIPE
    )
    deadline = threading.Event()
    for _ in range(300):
        if len(list(folder.iterdir())) == 2:
            break
        deadline.wait(0.1)
    workers = [int(path.name) for path in folder.iterdir()]
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    for pid in workers:
        assert not Path(f"/proc/{pid}").exists()


def test_hardware_samples_of_the_rank_go_before_those_of_the_host(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1000, "dur": 3000}
    info = {"rank": 3, "world_size": 8, "backend": "nccl"}
    trace = tmp_path / "rank3.json"
    trace.write_text(
        json.dumps({"traceEvents": [event], "distributedInfo": info, "host_name": "node7"})
    )

    def samples(name, value, **who):
        lines = [{"eroica": "hardware", "version": 1, "counters": ["gpu0.sm_activity"], **who}]
        lines += [[time_ns, value] for time_ns in (1_500_000, 2_500_000, 3_500_000)]
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    host = samples("host.jsonl", 0.25, host="node7", rank=None)
    elsewhere = samples("elsewhere.jsonl", 0.5, host="node8", rank=None)
    own = samples("own.jsonl", 0.75, host="node7", rank=3)
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{")

    def mu(*hardware):
        (patterns,) = summarize_files([(trace, None)], hardware=hardware)
        return float(patterns.mu_F[0]), len(patterns.warnings)

    assert mu(host, own) == (0.75, 0)
    assert mu(elsewhere, host) == (0.25, 0)
    assert mu(elsewhere) == (1.0, 0)  # the proxy: the fastest execution
    assert mu(bad, host) == (0.25, 1)


def test_an_op_level_timeline_yields_all_its_workers():
    path = shared("straggler_jobs", "trace-AR.parquet")
    patterns = list(summarize_files([], timelines=[path]))
    assert [one.rank for one in patterns] == list(range(0, 64, 4))
    computing = {one.rank: one.breakdown["compute"] for one in patterns}
    assert computing.pop(0) > 2 * max(computing.values())  # data rank 0, stage 0 is slow


def test_a_cluster_that_shows_no_cores_yet_gets_one_task_at_a_time():
    from types import SimpleNamespace

    from eroica.engines.calls import Call
    from eroica.engines.cluster import _map

    ray = SimpleNamespace(
        cluster_resources=lambda: {"CPU": 0.0},
        remote=lambda **_: lambda run: SimpleNamespace(remote=run),
        get=lambda reference: reference,
        exceptions=SimpleNamespace(RayError=RuntimeError),
        cancel=lambda *_, **__: None,
    )
    assert list(_map(ray, Call(square), range(5), None)) == [0, 1, 4, 9, 16]
