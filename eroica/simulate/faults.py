"""What can be planted in a simulated job, and the answer that should come out.

``severity`` is the factor or share that makes the fault hurt, in the unit named at each kind.
"""

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal[
    "slow_nic",
    "nvlink_down",
    "throttled_gpu",
    "pcie_degraded",
    "slow_loader",
    "unaligned_gc",
    "imbalance",
    "rotating_imbalance",
    "memory_pressure",
    "gpu_fault",
]
KINDS: tuple[FaultKind, ...] = (
    "slow_nic",
    "nvlink_down",
    "throttled_gpu",
    "pcie_degraded",
    "slow_loader",
    "unaligned_gc",
    "imbalance",
)
"""Faults that patterns alone tell. The others want more: ``rotating_imbalance`` who comes late to
each collective (traces), ``memory_pressure`` and ``gpu_fault`` counters or a log (``evidence``)."""
ANSWERS: dict[FaultKind, tuple[str, ...]] = {
    "slow_nic": ("nic_degraded", "straggler_network"),
    "nvlink_down": ("nvlink_degraded",),
    "throttled_gpu": ("gpu_throttled",),
    "pcie_degraded": ("pcie_degraded",),
    "slow_loader": ("straggler_data_loading",),
    "unaligned_gc": ("gc_pause",),
    "imbalance": ("load_imbalance",),
    "rotating_imbalance": ("load_imbalance",),
    "memory_pressure": ("memory_pressure",),
    "gpu_fault": ("gpu_fault",),
}


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    severity: slow_nic, nvlink_down, pcie_degraded: the rate left, 0..1. throttled_gpu, imbalance,
    gpu_fault: times longer, over 1; rotating_imbalance likewise, of one rank a step, another each
    time. slow_loader: step time added, 0..1. unaligned_gc: a rank's own share of time in
    collection, 0..1. memory_pressure: share of the step in which Python stalls, 0..1.
    """

    kind: FaultKind
    ranks: tuple[int, ...] = ()
    severity: float = 0.5

    @property
    def answers(self) -> tuple[str, ...]:
        return ANSWERS[self.kind]


@dataclass(frozen=True)
class Truth:
    """The answer to a simulated job: no faults means healthy."""

    faults: tuple[Fault, ...]
    slowdown: float
    """Step time over the healthy step's."""
