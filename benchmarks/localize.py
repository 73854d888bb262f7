"""Localization measured: scale, the plain rule beside it, and accuracy on simulated clusters.

    python benchmarks/localize.py scale --folder DIR [--ranks 1000 10000 100000 1000000]
    python benchmarks/localize.py plain --folder DIR [--ranks 100000]
    python benchmarks/localize.py files --folder DIR [--ranks 10000]
    python benchmarks/localize.py accuracy [--seeds 20]
    python benchmarks/localize.py healthy [--seeds 1000]

Each prints Markdown rows for docs/benchmarks.md. Tables are written to DIR first and kept there
(1.8 GB for a million ranks); each measurement runs in a process of its own, so that peak RSS is its
own. "cold" is with the table's pages dropped from the system's cache first, so that the disk is in
the time; "warm" is the second run. Compiling the kernel (once a machine) is left out.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FUNCTIONS = 300


def make_table(path, ranks):
    """Write a simulated job with one dead NIC and one throttled GPU, streamed."""
    from eroica.localize.table_file import write_table
    from eroica.simulate.cluster import Cluster
    from eroica.simulate.faults import Fault
    from eroica.simulate.tables import Simulation

    cluster = Cluster(ranks, num_kernels=150)
    faults = [Fault("slow_nic", (ranks // 2,), 0.2), Fault("throttled_gpu", (ranks // 3,), 1.3)]
    job = Simulation(cluster, faults, num_functions=FUNCTIONS)
    write_table(
        path,
        [p.function for p in job.planned],
        job.blocks(),
        ranks_R=np.arange(ranks),
        hosts_R=cluster.hosts(),
    )


def warm():
    """Compile the kernel for the types it will meet."""
    from eroica.localize.far import count_far

    small = tuple(np.full(8, 0.5, np.float32) for _ in range(3))
    count_far(small, np.full((3, 4), 0.5, np.float32), 0.4)


def measure_one(path, plain):
    """Localize one table; print seconds, peak RSS in MB and the causes found."""
    from eroica.localize import distance, far
    from eroica.localize.fleet import localize_table

    warm()
    if plain:
        distance.count_far = far.plain_count_far
    before = time.process_time()
    start = time.perf_counter()
    verdict = localize_table(path)
    wall, cpu = time.perf_counter() - start, time.process_time() - before
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    causes = ", ".join(f"{c.category} {c.ranks}" for c in verdict.causes)
    print(f"{wall:.2f} {cpu:.2f} {rss:.0f} {causes}")


def evict(path):
    """Drop a file's pages from the cache of the system."""
    with Path(path).open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def scale(folder, sizes, plain=False):
    print("| ranks | MB | cold, s | warm, s | CPU, s | peak RSS, MB | found |")
    print("|---|---|---|---|---|---|---|")
    for ranks in sizes:
        path = folder / f"table-{ranks}.parquet"
        if not path.exists():
            make_table(path, ranks)
        evict(path)
        command = [sys.executable, __file__, "one", "--table", str(path), *["--plain"] * plain]
        runs = [
            subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)
        ]
        (cold, *_), (wall, cpu, rss, causes) = (r.stdout.strip().split(" ", 3) for r in runs)
        size = path.stat().st_size / 1e6
        print(
            f"| {ranks:,} | {size:.0f} | {cold} | {wall} | {cpu} | {rss} | {causes} |", flush=True
        )


def files(folder, ranks):
    """A folder of per-rank pattern files, as `eroica diagnose FOLDER` reads it."""
    from eroica.simulate.cluster import Cluster
    from eroica.simulate.evidence import patterns_of
    from eroica.simulate.faults import Fault
    from eroica.simulate.tables import simulate_table
    from eroica.summarize import pack

    folder = folder / f"ranks-{ranks}"
    if not folder.is_dir():
        folder.mkdir(parents=True)
        table, _ = simulate_table(Cluster(ranks), [Fault("slow_loader", (ranks // 2,), 0.3)])
        for one in patterns_of(table):
            (folder / f"rank-{one.rank:05d}.pattern").write_bytes(pack(one))
    command = [sys.executable, "-m", "eroica", "diagnose", str(folder), "--json"]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "EROICA_HOME": home}
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    causes = [f"{c['category']} {c['ranks']}" for c in json.loads(done.stdout)["causes"]]
    print("| ranks | `eroica diagnose FOLDER`, s | CPU, s | peak RSS, MB | found |")
    print("|---|---|---|---|---|")
    print(
        f"| {ranks:,} | {wall:.1f} | {used.ru_utime + used.ru_stime:.1f} "
        f"| {used.ru_maxrss / 1024:.0f} | {', '.join(causes)} |"
    )


SEVERITIES = {
    "slow_nic": (0.6, 0.5, 0.4, 0.2),
    "nvlink_down": (0.5, 0.4, 0.3, 0.2),
    "throttled_gpu": (1.08, 1.1, 1.15, 1.3),
    "pcie_degraded": (0.4, 0.3, 0.25, 0.2),
    "slow_loader": (0.06, 0.08, 0.1, 0.15),
    "unaligned_gc": (0.01, 0.012, 0.015, 0.02),
    "imbalance": (1.1, 1.15, 1.2, 1.3),
    "memory_pressure": (0.06, 0.08, 0.1, 0.2),
    "gpu_fault": (1.05, 1.1, 1.2, 1.3),
    "rotating_imbalance": (1.15, 1.2, 1.3, 1.5),
}
WITH_COUNTERS = ("memory_pressure", "gpu_fault")
WITH_ARRIVALS = ("rotating_imbalance",)


def guilty(kind, ranks, seed):
    """The ranks a fault is planted on: one, a host's, or all."""
    if kind in ("unaligned_gc", "rotating_imbalance"):
        return ()
    one = (seed * 37 + 5) % ranks
    if kind == "memory_pressure":
        return tuple(range(one - one % 8, one - one % 8 + 8))
    return (one,)


def diagnosed(kind, ranks, severity, seed):
    """(verdict, truth, slow-down) of one simulated job, by what its kind of fault needs."""
    from eroica.localize import localize_slow
    from eroica.localize.fleet import localize_table
    from eroica.simulate.cluster import Cluster
    from eroica.simulate.evidence import patterns_of, simulate_evidence
    from eroica.simulate.faults import Fault
    from eroica.simulate.tables import simulate_table

    fault, cluster = Fault(kind, guilty(kind, ranks, seed), severity), Cluster(ranks)
    if kind in WITH_ARRIVALS:
        return (*from_traces(cluster, fault, seed), fault)
    table, truth = simulate_table(cluster, [fault], seed=seed)
    if kind in WITH_COUNTERS:
        seen = simulate_evidence(cluster, [fault], seed=seed)
        return localize_slow(patterns_of(table), evidence=seen), truth, fault
    return localize_table(table), truth, fault


def from_traces(cluster, fault, seed):
    from eroica.localize import localize_slow
    from eroica.read.kineto import read_timeline
    from eroica.simulate.traces import write_traces
    from eroica.summarize import summarize

    with tempfile.TemporaryDirectory() as folder:
        truth = write_traces(folder, cluster, [fault], steps=8, seed=seed)
        paths = sorted(Path(folder).glob("*.gz"))
        return localize_slow([summarize(read_timeline(p)) for p in paths]), truth


def accuracy(seeds, sizes):
    """Recall of the first cause (category and ranks right), precision of all first causes."""
    print(
        "| fault | ranks | severity | slow-down | recall | precision |\n|---|---|---|---|---|---|"
    )
    weakest = {}
    for kind, severities in SEVERITIES.items():
        for ranks in (8,) if kind in WITH_ARRIVALS else sizes:
            for severity in severities:
                right, named, slowdown = rates(kind, ranks, severity, seeds)
                precision = f"{right / named:.2f}" if named else "-"
                print(
                    f"| {kind} | {ranks:,} | {severity} | {slowdown:.2f} | {right / seeds:.2f} "
                    f"| {precision} |",
                    flush=True,
                )
                if right / seeds >= 0.98 and (kind, ranks) not in weakest:
                    weakest[kind, ranks] = (severity, slowdown)
    print("\n| fault | ranks | weakest severity found at 0.98 | its slow-down |\n|---|---|---|---|")
    for (kind, ranks), (severity, slowdown) in weakest.items():
        print(f"| {kind} | {ranks:,} | {severity} | {slowdown:.2f} |")


def rates(kind, ranks, severity, seeds):
    """(right first causes, first causes, mean slow-down)"""
    right = named = 0
    slowdown = 0.0
    for seed in range(seeds):
        verdict, truth, fault = diagnosed(kind, ranks, severity, seed)
        slowdown += truth.slowdown / seeds
        first = verdict.causes[0] if verdict.causes else None
        named += first is not None
        right += bool(
            first and first.category in fault.answers and first.ranks == (fault.ranks or "all")
        )
    return right, named, slowdown


def healthy(seeds):
    from eroica.localize.fleet import localize_table
    from eroica.simulate.cluster import Cluster
    from eroica.simulate.tables import simulate_table

    wrong = 0
    for seed in range(seeds):
        size = (16, 64, 256)[seed % 3]
        table, _ = simulate_table(Cluster(size, stages=(1, 2)[seed % 2]), seed=seed)
        verdict = localize_table(table)
        if verdict.causes:
            wrong += 1
            print(f"seed {seed}, {size} ranks: {verdict.causes[0].summary}", flush=True)
    print(f"healthy clusters with a cause: {wrong} of {seeds}")


def main():
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("what", choices=("scale", "plain", "files", "accuracy", "healthy", "one"))
    given.add_argument("--folder", type=Path, default=Path("build/benchmarks"))
    given.add_argument("--ranks", type=int, nargs="+")
    given.add_argument("--seeds", type=int)
    given.add_argument("--table", type=Path)
    given.add_argument("--plain", action="store_true")
    asked = given.parse_args()
    if asked.what == "one":
        return measure_one(asked.table, asked.plain)
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.what == "scale":
        return scale(asked.folder, asked.ranks or [1_000, 10_000, 100_000, 1_000_000])
    if asked.what == "plain":
        return scale(asked.folder, asked.ranks or [100_000], plain=True)
    if asked.what == "files":
        return files(asked.folder, (asked.ranks or [10_000])[0])
    if asked.what == "accuracy":
        return accuracy(asked.seeds or 50, asked.ranks or [64, 1024])
    return healthy(asked.seeds or 1000)


if __name__ == "__main__":
    main()
