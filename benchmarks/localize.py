"""Localization measured: scale, the plain rule beside it, and accuracy on simulated clusters.

    python benchmarks/localize.py scale --folder DIR [--ranks 1000 10000 100000 1000000]
    python benchmarks/localize.py plain --folder DIR [--ranks 100000]
    python benchmarks/localize.py files --folder DIR [--ranks 10000]
    python benchmarks/localize.py accuracy [--seeds 20]
    python benchmarks/localize.py healthy [--seeds 1000]

Each prints Markdown rows for docs/benchmarks.md. Tables are written to DIR first and kept there
(1.8 GB for a million ranks); each measurement runs in a process of its own, so that peak RSS is its
own. Compiling the kernel (once a machine) is left out of the time.
"""

import argparse
import resource
import subprocess
import sys
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
    from eroica.localize.distance import count_far

    small = tuple(np.full(8, 7, np.uint16) for _ in range(3))
    count_far(small, np.full((3, 4), 7, np.float32), 0.4)


def measure_one(path, plain):
    """Localize one table; print seconds, peak RSS in MB and the causes found."""
    from eroica.localize import distance
    from eroica.localize.fleet import localize_table

    warm()
    if plain:
        distance.count_far = distance.plain_count_far
    before = time.process_time()
    start = time.perf_counter()
    verdict = localize_table(path)
    wall, cpu = time.perf_counter() - start, time.process_time() - before
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    causes = ", ".join(f"{c.category} {c.ranks}" for c in verdict.causes)
    print(f"{wall:.2f} {cpu:.2f} {rss:.0f} {causes}")


def scale(folder, sizes, plain=False):
    print("| ranks | seconds | CPU seconds | peak RSS, MB | found |\n|---|---|---|---|---|")
    for ranks in sizes:
        path = folder / f"table-{ranks}.parquet"
        if not path.exists():
            make_table(path, ranks)
        command = [sys.executable, __file__, "one", "--table", str(path)]
        done = subprocess.run(
            command + ["--plain"] * plain, capture_output=True, text=True, check=True
        )
        wall, cpu, rss, causes = done.stdout.strip().split(" ", 3)
        print(f"| {ranks:,} | {wall} | {cpu} | {rss} | {causes} |", flush=True)


def files(folder, ranks):
    """A folder of per-rank pattern files, as `eroica diagnose FOLDER` reads it."""
    from eroica.columns import RankPatterns
    from eroica.localize import localize_slow
    from eroica.simulate.cluster import Cluster
    from eroica.simulate.faults import Fault
    from eroica.simulate.tables import simulate_table
    from eroica.summarize import pack, unpack

    folder = folder / f"ranks-{ranks}"
    if not folder.is_dir():
        folder.mkdir(parents=True)
        table, _ = simulate_table(Cluster(ranks), [Fault("slow_loader", (ranks // 2,), 0.3)])
        for r in range(ranks):
            one = RankPatterns(
                rank=r,
                functions=table.functions,
                beta_F=table.beta_FR[:, r].copy(),
                mu_F=table.mu_FR[:, r].copy(),
                sigma_F=table.sigma_FR[:, r].copy(),
                count_F=table.count_FR[:, r].copy(),
                total_ns_F=table.total_ns_FR[:, r].copy(),
                window_ns=int(table.window_ns_R[r]),
                num_steps=int(table.num_steps_R[r]),
                host=table.hosts_R[r],
            )
            (folder / f"rank-{r:05d}.patterns").write_bytes(pack(one))
    start, before = time.perf_counter(), time.process_time()
    patterns = [unpack(p.read_bytes()) for p in sorted(folder.iterdir())]
    read = time.perf_counter() - start
    verdict = localize_slow(patterns)
    total, cpu = time.perf_counter() - start, time.process_time() - before
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    causes = ", ".join(f"{c.category} {c.ranks}" for c in verdict.causes)
    print("| ranks | read, s | in all, s | CPU, s | peak RSS, MB | found |")
    print("|---|---|---|---|---|---|")
    print(f"| {ranks:,} | {read:.1f} | {total:.1f} | {cpu:.1f} | {rss:.0f} | {causes} |")


SEVERITIES = {
    "slow_nic": (0.6, 0.5, 0.4, 0.2),
    "nvlink_down": (0.5, 0.4, 0.3, 0.2),
    "throttled_gpu": (1.1, 1.15, 1.2, 1.3),
    "pcie_degraded": (0.4, 0.3, 0.25, 0.2),
    "slow_loader": (0.08, 0.1, 0.15, 0.3),
    "unaligned_gc": (0.01, 0.012, 0.015, 0.02),
    "imbalance": (1.1, 1.15, 1.2, 1.3),
}


def accuracy(seeds, sizes):
    """Recall of the first cause (category and ranks right), precision of all first causes."""
    from eroica.localize.fleet import localize_table
    from eroica.simulate.cluster import Cluster
    from eroica.simulate.faults import Fault
    from eroica.simulate.tables import simulate_table

    print(
        "| fault | ranks | severity | slow-down | recall | precision |\n|---|---|---|---|---|---|"
    )
    weakest = {}
    for kind, severities in SEVERITIES.items():
        for ranks in sizes:
            for severity in severities:
                right = named = 0
                slowdown = 0.0
                for seed in range(seeds):
                    guilty = () if kind == "unaligned_gc" else ((seed * 37 + 5) % ranks,)
                    fault = Fault(kind, guilty, severity)
                    table, truth = simulate_table(Cluster(ranks), [fault], seed=seed)
                    verdict = localize_table(table)
                    slowdown += truth.slowdown / seeds
                    named += bool(verdict.causes)
                    first = verdict.causes[0] if verdict.causes else None
                    right += bool(
                        first
                        and first.category in fault.answers
                        and first.ranks == (guilty or "all")
                    )
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


def healthy(seeds):
    from eroica.localize.fleet import localize_table
    from eroica.simulate.cluster import Cluster
    from eroica.simulate.tables import simulate_table

    wrong = 0
    for seed in range(seeds):
        size = (16, 64, 256)[seed % 3]
        table, _ = simulate_table(Cluster(size, stages=(1, 2)[seed % 2]), seed=seed)
        wrong += bool(localize_table(table).causes)
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
