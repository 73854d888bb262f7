"""What counters and logs would say beside the patterns of a simulated job.

Faults of a host or a device look alike in patterns (Python that takes longer at less CPU, kernels
at a lower rate); what tells them apart is what the kernel and the driver count. Healthy values are
those of an idle-otherwise host: no pressure, few faults, clocks within a percent.
"""

from collections.abc import Sequence

import numpy as np

from eroica.columns import PatternTable, RankPatterns
from eroica.records import (
    CounterUse,
    HostEvidence,
    JobEvidence,
    LogEvent,
    RankEvidence,
)
from eroica.simulate.cluster import Cluster
from eroica.simulate.faults import Fault

SECONDS = 60.0
CLOCK_HZ = 1.755e9
FAULT_S = 2e-4  # what one major fault costs


def simulate_evidence(
    cluster: Cluster, faults: Sequence[Fault] = (), *, seed: int = 0
) -> JobEvidence:
    """Return the counters of all ranks and hosts and the kernel's log, as a live job has them."""
    random = np.random.default_rng(seed)
    stalled: dict[str, float] = {}
    for fault in faults:
        if fault.kind == "memory_pressure":
            stalled |= {cluster.host_name(r): fault.severity for r in fault.ranks}
    ranks = tuple(_rank(cluster, faults, r, stalled, random) for r in range(cluster.world_size))
    hosts = tuple(
        HostEvidence(host=name, num_cpus=96, counters=_host(stalled.get(name, 0.0), random))
        for name in dict.fromkeys(cluster.hosts())
    )
    events = tuple(
        LogEvent(
            kind="xid",
            text="NVRM: Xid (PCI:0000:3b:00): 94, Contained ECC error",
            host=cluster.host_name(rank),
            rank=rank,
            fields={"xid": 94, "meaning": "contained ECC error"},
        )
        for fault in faults
        if fault.kind == "gpu_fault"
        for rank in fault.ranks
    )
    return JobEvidence(ranks=ranks, world_size=cluster.world_size, hosts=hosts, log_events=events)


def _rank(
    cluster: Cluster,
    faults: Sequence[Fault],
    rank: int,
    stalled: dict[str, float],
    random: np.random.Generator,
) -> RankEvidence:
    mine = [f for f in faults if rank in f.ranks]
    slower = [f.severity for f in mine if f.kind in ("throttled_gpu", "gpu_fault")]
    clock = CLOCK_HZ / max([*slower, 1.0]) * float(np.exp(random.normal(0, 0.004)))
    errors = 3.0 if any(f.kind == "gpu_fault" for f in mine) else 0.0
    host = cluster.host_name(rank)
    device = f"gpu{rank % cluster.ranks_per_host}"
    throttled = 0.9 if any(f.kind == "throttled_gpu" for f in mine) else 0.0
    faults_a_second = stalled.get(host, 0.0) / FAULT_S + float(random.exponential(0.5))
    return RankEvidence(
        rank=rank,
        host=host,
        counters={
            f"{device}.sm_clock_hz": _use(clock),
            f"{device}.throttled": _use(throttled),
            f"{device}.ecc_uncorrected_errors": _count(errors),
            f"{device}.link_replays": _count(float(random.poisson(0.2))),
            "rank.major_faults_per_s": _use(faults_a_second),
        },
    )


def _host(stalled: float, random: np.random.Generator) -> dict[str, CounterUse]:
    return {
        "pressure.memory": _use(stalled + float(random.exponential(0.0005))),
        "vm.swap_in_pages_per_s": _use(stalled / FAULT_S),
        "vm.oom_kills": _count(0.0),
    }


def _use(value: float) -> CounterUse:
    return CounterUse(mean=value, low=value, high=value, seconds=SECONDS)


def _count(increase: float) -> CounterUse:
    rate = increase / SECONDS
    return CounterUse(mean=rate, low=0.0, high=rate, increase=increase, seconds=SECONDS)


def patterns_of(table: PatternTable) -> list[RankPatterns]:
    """Return a table as one record a rank, as summarizing their traces would."""
    counts, totals = table.count_FR, table.total_ns_FR
    windows, steps = table.window_ns_R, table.num_steps_R
    assert counts is not None and totals is not None and windows is not None and steps is not None
    return [
        RankPatterns(
            rank=int(rank),
            functions=table.functions,
            beta_F=table.beta_FR[:, column].copy(),
            mu_F=table.mu_FR[:, column].copy(),
            sigma_F=table.sigma_FR[:, column].copy(),
            count_F=counts[:, column].copy(),
            total_ns_F=totals[:, column].copy(),
            window_ns=int(windows[column]),
            num_steps=int(steps[column]),
            host=table.hosts_R[column],
        )
        for column, rank in enumerate(table.ranks_R)
    ]
