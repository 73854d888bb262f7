"""The shape of a simulated job: hosts, process groups, roles, and what its ranks execute.

Ranks are numbered as Megatron does: tensor parallel inside a host is fastest, then data parallel,
then pipeline. A rank's healthy step is the shares below; they add up to 1 with what is idle.
"""

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from eroica.records import Function, FunctionKind, Place

Int64 = NDArray[np.int64]

# Share of a healthy step by kind. Compute-bound training as the paper's users run it.
COMPUTE, EXPOSED_TP, EXPOSED_DP, MEMORY, LOADER, OPTIMIZER, PYTHON, COLLECTOR = (
    *(0.66, 0.06, 0.08, 0.03),
    *(0.008, 0.02, 0.05, 0.002),
)


@dataclass(frozen=True)
class Cluster:
    """``world_size`` ranks, ``ranks_per_host`` on each host, ``stages`` pipeline stages."""

    world_size: int
    ranks_per_host: int = 8
    stages: int = 1
    num_kernels: int = 24
    step_ms: float = 8500.0

    def __post_init__(self) -> None:
        if self.world_size < 2 or self.stages < 1 or self.world_size % self.stages:
            raise ValueError("world_size must be at least 2 and a multiple of stages")

    @property
    def tensor_size(self) -> int:
        """Ranks of a tensor parallel group: those of one host."""
        return min(self.ranks_per_host, self.world_size // self.stages)

    @cached_property
    def host_R(self) -> Int64:
        return np.arange(self.world_size) // self.ranks_per_host

    @cached_property
    def stage_R(self) -> Int64:
        return np.arange(self.world_size) // (self.world_size // self.stages)

    @cached_property
    def ring_R(self) -> Int64:
        """Number of the data parallel ring each rank is in: one a (stage, local rank)."""
        return self.stage_R * self.tensor_size + np.arange(self.world_size) % self.tensor_size

    @cached_property
    def tensor_group_R(self) -> Int64:
        return np.arange(self.world_size) // self.tensor_size

    def host_name(self, rank: int) -> str:
        return f"gpu-{int(self.host_R[rank]):05d}"

    def hosts(self) -> tuple[str, ...]:
        return tuple(self.host_name(r) for r in range(self.world_size))


@dataclass(frozen=True)
class Planned:
    """One function of the job with its healthy pattern."""

    function: Function
    beta: float
    mu: float
    sigma: float
    part: str
    """``compute``, ``tp``, ``dp``, ``memory``, ``loader``, ``optimizer``, ``python``, ``gc``."""


def plan(cluster: Cluster, *, num_functions: int | None = None) -> tuple[Planned, ...]:
    """Return the functions of the job; ``num_functions`` pads with small Python functions."""
    planned: list[Planned] = []
    weights = 1.0 / np.arange(1, cluster.num_kernels + 1)
    for number, share in enumerate(weights / weights.sum() * COMPUTE):
        mu = 0.93 - 0.3 * (number % 5) / 5
        planned.append(_planned("kernel", f"gemm_kernel_{number}", share, mu, 0.06, "compute"))
    planned += [
        _planned("collective", "all_gather", EXPOSED_TP, 0.72, 0.10, "tp", group="tp"),
        _planned("collective", "all_reduce", EXPOSED_DP, 0.82, 0.08, "dp", group="dp"),
        _planned("memory", "Memcpy HtoD (Pinned -> Device)", MEMORY, 0.62, 0.10, "memory"),
        _python("project/corpus.py:61", "__getitem__", LOADER, 0.3, 0.2, "loader", LOADER_STACK),
        _python("torch/optim/adamw.py:220", "step", OPTIMIZER, 0.9, 0.1, "optimizer"),
        _python("project/model.py:88", "forward", PYTHON, 0.9, 0.1, "python"),
        _planned("python", "Python GC", COLLECTOR, 0.95, 0.05, "gc", stack=TRAIN_STACK),
    ]
    small = max(0, (num_functions or 0) - len(planned))
    for i in range(small):
        place, share = f"project/helpers_{i % 9}.py:{10 + i}", 0.0008 * (i % 7 + 1) / 7
        planned.append(_python(place, f"helper_{i}", share, 0.7, 0.2, "python"))
    return tuple(planned)


TRAIN_STACK = (
    Place(name="train_step", file="project/train.py", line=70),
    Place(name="main", file="project/train.py", line=120),
)
LOADER_STACK = (
    Place(name="fetch", file="torch/utils/data/_utils/fetch.py", line=54),
    Place(name="__next__", file="torch/utils/data/dataloader.py", line=720),
    Place(name="main", file="project/train.py", line=115),
)


def _python(
    place: str,
    name: str,
    beta: float,
    mu: float,
    sigma: float,
    part: str,
    stack: tuple[Place, ...] = TRAIN_STACK,
) -> Planned:
    """A Python function; ``place`` is ``file:line``."""
    file, _, line = place.partition(":")
    return _planned("python", name, beta, mu, sigma, part, stack=stack, file=file, line=int(line))


def _planned(
    kind: FunctionKind,
    name: str,
    beta: float,
    mu: float,
    sigma: float,
    part: str,
    *,
    group: str | None = None,
    file: str | None = None,
    line: int | None = None,
    stack: tuple[Place, ...] = (),
) -> Planned:
    identity = f"{kind}|{name}|{file}|{group}"
    function = Function(
        id=f"{zlib.crc32(identity.encode()):08x}",
        kind=kind,
        name=name,
        file=file,
        line=line,
        group=group,
        stack=stack,
    )
    return Planned(function, float(beta), mu, sigma, part)
