"""One pass over all functions of a table: what stands out, and each rank's time by activity."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eroica.config import Parameters
from eroica.localize.distance import (
    Block,
    FunctionDistances,
    Peers,
    distances_of,
    peers_of,
)
from eroica.localize.rules.zones import zone_of
from eroica.records import Function, Place

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
NOT_WORK = ("collective", "idle")


@dataclass
class Scan:
    """What rules for many ranks need of a table, with one function in memory at a time."""

    found: list[FunctionDistances] = field(default_factory=list)
    time_by_activity: dict[str, Float32] = field(default_factory=dict)
    """Summed beta of each rank: ``compute``, ``memory``, ``collective``, or a zone of Python."""
    functions: list[Function] = field(default_factory=list)
    levels: list[dict[int, float]] = field(default_factory=list)
    """Per function, role to the median beta of its sample."""
    peers: list[Peers] = field(default_factory=list)
    device_rate_R: Float32 | None = None
    """Rate of each rank's kernels over its peers', weighted by the peers' time; None without."""

    @property
    def wait_R(self) -> Float32:
        """Share of the window each rank is in collectives: exchanging, or waiting for others."""
        some = next(iter(self.time_by_activity.values()))
        return self.time_by_activity.get("collective", np.zeros_like(some))

    @property
    def work_R(self) -> Float32:
        """Share of the window each rank works rather than waits for others or exchanges."""
        parts = [v for name, v in self.time_by_activity.items() if name not in NOT_WORK]
        return np.asarray(sum(parts, np.zeros_like(self.wait_R)), np.float32)


def scan(
    blocks: Iterable[Block],
    *,
    roles_R: Int32 | None = None,
    parameters: Parameters | None = None,
) -> Scan:
    """Run the paper's rule over every function and sum each rank's time on the way past."""
    parameters = parameters or Parameters()
    result = Scan()
    rates: _Rates | None = None
    for block in blocks:
        beta_R = np.asarray(block.beta_R, np.float32)
        if rates is None:
            result.peers = peers_of(len(beta_R), roles_R, parameters.sample_size)
            rates = _Rates(len(beta_R))
        loaded = Block(block.function, beta_R, block.mu_R, block.sigma_R)
        name = activity_of(block.function)
        total = result.time_by_activity.setdefault(name, np.zeros(len(beta_R), np.float32))
        total += beta_R
        found = distances_of(loaded, result.peers, parameters)
        if found is not None:
            result.found.append(found)
        result.functions.append(block.function)
        result.levels.append({p.role: float(np.median(beta_R[p.sample])) for p in result.peers})
        if block.function.kind == "kernel" and beta_R.max(initial=0.0) > parameters.min_beta:
            rates.add(loaded, result.peers, result.levels[-1])
    result.device_rate_R = rates.mean() if rates is not None else None
    return result


class _Rates:
    """Mean over a rank's large kernels of mu over the peers' median mu.

    One kernel's mu scatters; a device that is slow is slow in all of them.
    """

    def __init__(self, count: int) -> None:
        self.sum_R = np.zeros(count, np.float32)
        self.weight_R = np.zeros(count, np.float32)

    def add(self, block: Block, peers: list[Peers], levels: dict[int, float]) -> None:
        mu_R = np.asarray(block.mu_R, np.float32)
        for one in peers:
            usual, weight = float(np.median(mu_R[one.sample])), levels[one.role]
            if usual <= 0 or weight <= 0:
                continue
            part = slice(None) if len(peers) == 1 else one.positions
            ran = block.beta_R[part] > 0  # absent is not slow
            self.sum_R[part] += np.where(ran, mu_R[part] * np.float32(weight / usual), 0)
            self.weight_R[part] += np.where(ran, np.float32(weight), 0)

    def mean(self) -> Float32 | None:
        if not self.weight_R.any():
            return None
        known = self.weight_R > 0
        rate = self.sum_R / np.where(known, self.weight_R, 1)
        return np.asarray(np.where(known, rate, 1.0), np.float32)


def activity_of(function: Function) -> str:
    """What a function's time is spent for: ``compute``, its kind, or the zone of its stack."""
    if function.kind in ("kernel", "op"):
        return "compute"
    if function.kind == "python":
        if function.name == "Python GC":
            return "gc"
        return zone_of((Place(name=function.name, file=function.file), *function.stack))
    return function.kind
