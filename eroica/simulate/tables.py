"""Simulated jobs as pattern tables, in memory or function by function.

Model: each rank has its own work (kernels, copies, Python) as a share of the healthy step; faults
stretch parts of it; the step lasts as long as the slowest rank's work plus the slowest exchange,
and who is ready earlier waits in its next collective, which lengthens beta but not mu and sigma
(the critical duration cuts waiting out). A slow link sends steadily at a low rate (low mu, low
sigma); its ring sends in bursts between waits (low mu, high sigma).

Noise over ranks, fitted to real sets: kernels' beta varies by 20 % within a step (median over
functions of the coefficient of variation over ranks, 8-rank DLRM set) of which a window of ten
steps leaves 20 % / sqrt(10) = 6 %; mu by 7 %; collectives' beta by 33 % (4-rank gloo set), again
over sqrt(10); compute of pipeline workers by 0.5 to 1.5 % over 33 steps (straggler_jobs). A slow
drift common to a host (2 %) is added because ranks of a host share clocks and power.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.columns import PatternTable
from eroica.localize.distance import Block
from eroica.simulate.cluster import Cluster, Planned, plan
from eroica.simulate.faults import Fault, Truth

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
NOISE_BETA = {"kernel": 0.06, "memory": 0.08, "collective": 0.10, "python": 0.10}
NOISE_MU = {"kernel": 0.03, "memory": 0.05, "collective": 0.05, "python": 0.08}
NOISE_SIGMA = 0.12
NOISE_RANK = 0.01
NOISE_HOST = 0.01
SLOWER_COMPUTE = ("throttled_gpu", "gpu_fault", "imbalance")
PYTHON_PARTS = ("loader", "optimizer", "python")
STEPS = 10
PAUSE_EVERY = 10


def simulate_table(
    cluster: Cluster,
    faults: Sequence[Fault] = (),
    *,
    seed: int = 0,
    num_functions: int | None = None,
) -> tuple[PatternTable, Truth]:
    """Return all ranks' patterns and what is wrong with them."""
    job = Simulation(cluster, faults, seed=seed, num_functions=num_functions)
    blocks = list(job.blocks())
    count = len(blocks)
    shape = (count, cluster.world_size)
    beta, mu, sigma = (np.empty(shape, np.float32) for _ in range(3))
    for row, block in enumerate(blocks):
        beta[row], mu[row], sigma[row] = block.beta_R, block.mu_R, block.sigma_R
    window = cluster.step_ms * 1e6 * STEPS * job.slowdown
    counts = np.tile(job.count_F[:, None], (1, cluster.world_size)).astype(np.int32)
    table = PatternTable(
        functions=tuple(block.function for block in blocks),
        ranks_R=np.arange(cluster.world_size, dtype=np.int64),
        beta_FR=beta,
        mu_FR=mu,
        sigma_FR=sigma,
        total_ns_FR=(beta * window).astype(np.int64),
        count_FR=counts,
        window_ns_R=np.full(cluster.world_size, int(window), np.int64),
        num_steps_R=np.full(cluster.world_size, STEPS, np.int32),
        hosts_R=cluster.hosts(),
        roles_R=tuple(f"stage{s}" for s in cluster.stage_R) if cluster.stages > 1 else (),
    )
    return table, Truth(tuple(faults), job.slowdown)


class Simulation:
    """One job; ``blocks()`` yields each function's values and may be asked once a seed."""

    def __init__(
        self,
        cluster: Cluster,
        faults: Sequence[Fault] = (),
        *,
        seed: int = 0,
        num_functions: int | None = None,
    ) -> None:
        self.cluster, self.faults = cluster, tuple(faults)
        self.random = np.random.default_rng(seed)
        self.planned = plan(cluster, num_functions=num_functions)
        self.count_F = np.array([_count(p) for p in self.planned])
        self.size = cluster.world_size
        self.python_share = sum(p.beta for p in self.planned if p.part in PYTHON_PARTS)
        hosts = int(cluster.host_R[-1]) + 1
        self.rank_speed_R = (
            np.exp(self.random.normal(0, NOISE_RANK, self.size))
            * np.exp(self.random.normal(0, NOISE_HOST, hosts))[cluster.host_R]
        )
        self._stretch_exchanges()
        self._settle()

    def _stretch_exchanges(self) -> None:
        """Rate left on each rank's ring and tensor group, and who is its bad link."""
        self.rate_dp_R = np.ones(self.size)
        self.rate_tp_R = np.ones(self.size)
        self.bad_link_R = np.zeros(self.size, dtype=bool)
        for fault in self.faults:
            ranks = list(fault.ranks)
            if fault.kind == "slow_nic":
                hit = np.isin(self.cluster.ring_R, self.cluster.ring_R[ranks])
                self.rate_dp_R[hit] = np.minimum(self.rate_dp_R[hit], fault.severity)
                self.bad_link_R[ranks] = True
            elif fault.kind == "nvlink_down":
                group = self.cluster.tensor_group_R
                hit = np.isin(group, group[ranks])
                self.rate_tp_R[hit] = np.minimum(self.rate_tp_R[hit], fault.severity)
                self.bad_link_R[ranks] = True

    def _own_part(self, planned: Planned) -> Float64:
        """Time of one function a step on each rank, in healthy steps, before waiting."""
        time_R = np.full(self.size, planned.beta)
        if planned.part == "compute":
            time_R *= self.rank_speed_R
        for fault in self.faults:
            ranks = list(fault.ranks) or slice(None)
            if fault.kind in SLOWER_COMPUTE and planned.part == "compute":
                time_R[ranks] *= fault.severity
            elif fault.kind == "pcie_degraded" and planned.part == "memory":
                time_R[ranks] /= fault.severity
            elif fault.kind == "memory_pressure" and planned.part in PYTHON_PARTS:
                time_R[ranks] += fault.severity * planned.beta / self.python_share
            elif (fault.kind, planned.part) in (("slow_loader", "loader"), ("unaligned_gc", "gc")):
                time_R[ranks] += fault.severity
        return time_R

    def _settle(self) -> None:
        """Length of the step and what each rank waits in it."""
        work_R = np.zeros(self.size)
        for planned in self.planned:
            if planned.part not in ("tp", "dp"):
                work_R += self._own_part(planned)
        parts = {p.part: p.beta for p in self.planned}
        exchange_R = parts["tp"] / self.rate_tp_R + parts["dp"] / self.rate_dp_R
        ready_R = work_R + exchange_R
        healthy = float(np.median(ready_R))
        # Pauses that strike ranks at different steps hold all others, one after the other.
        # One pause in ten steps a rank, so a pause is ten times its share of the step long, and a
        # step is held if any rank pauses in it.
        pauses = sum(f.severity for f in self.faults if f.kind == "unaligned_gc")
        held = PAUSE_EVERY * pauses * (1 - np.exp(-self.size / PAUSE_EVERY))
        self.step = float(ready_R.max()) + held
        self.wait_R = self.step - ready_R
        base = sum(p.beta for p in self.planned)
        self.slowdown = self.step / max(base, healthy if not self.faults else base)

    def blocks(self) -> Iterator[Block]:
        """Yield every function with its values on all ranks."""
        for planned in self.planned:
            yield self._block(planned)

    def _block(self, planned: Planned) -> Block:
        kind = planned.function.kind
        time_R = self._own_part(planned)
        mu_R, sigma_R = np.full(self.size, planned.mu), np.full(self.size, planned.sigma)
        if planned.part in ("tp", "dp"):
            rate_R = self.rate_tp_R if planned.part == "tp" else self.rate_dp_R
            time_R = planned.beta / rate_R
            time_R = time_R + self.wait_R * 0.5  # half of it in each kind of exchange
            slow = rate_R < 1
            mu_R = mu_R * rate_R
            sigma_R = np.where(slow, np.minimum(0.45, planned.mu * (1 - rate_R)), sigma_R)
            sigma_R = np.where(slow & self._is_bad(planned.part), 0.03 + 0.02 * rate_R, sigma_R)
        for fault in self.faults:
            ranks = list(fault.ranks) or slice(None)
            if fault.kind in ("throttled_gpu", "gpu_fault") and planned.part == "compute":
                mu_R[ranks] /= fault.severity
            elif fault.kind == "memory_pressure" and planned.part in PYTHON_PARTS:
                mu_R[ranks] *= 1 / (1 + fault.severity / self.python_share)
            elif fault.kind == "pcie_degraded" and planned.part == "memory":
                mu_R[ranks] *= fault.severity
                sigma_R[ranks] *= 0.3
        beta_R = time_R / self.step
        noise = self.random.standard_normal((3, self.size)).astype(np.float32)
        return Block(
            planned.function,
            _clipped(beta_R * np.exp(noise[0] * NOISE_BETA[kind])),
            _clipped(mu_R * np.exp(noise[1] * NOISE_MU[kind])),
            _clipped(sigma_R * np.exp(noise[2] * NOISE_SIGMA)),
        )

    def _is_bad(self, part: str) -> "NDArray[np.bool_]":
        wanted = "slow_nic" if part == "dp" else "nvlink_down"
        bad = np.zeros(self.size, dtype=bool)
        for fault in self.faults:
            if fault.kind == wanted:
                bad[list(fault.ranks)] = True
        return bad


def _clipped(values_R: Float64) -> Float32:
    return np.asarray(np.clip(values_R, 0.0, 1.0), np.float32)


def _count(planned: Planned) -> int:
    if planned.part == "gc":
        return STEPS // PAUSE_EVERY
    return STEPS * {"tp": 40, "dp": 8, "memory": 4, "loader": 1}.get(planned.part, 16)
