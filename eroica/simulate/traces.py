"""Simulated jobs as small Kineto traces, one file a rank, with the answer known.

The traces look as torch.profiler writes them for a GPU job with stacks: Python calls on the
training thread, launches tied to kernels by their correlation, kernels on stream 7, NCCL kernels
with their metadata on stream 20, one ``ProfilerStep`` a step. All ranks leave a collective
together; a rank arrives when its own work is done.
"""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from eroica.simulate.cluster import Cluster
from eroica.simulate.faults import Fault, Truth

STEP_US = 100_000
FORWARD_US, BACKWARD_US, LOADER_US, OPTIMIZER_US, REDUCE_US = 25_000, 45_000, 1_500, 4_000, 12_000
KERNELS = 6
SLOW_DEVICES = ("throttled_gpu", "gpu_fault")
NUM_BYTES = 64_000_000


@dataclass
class _Rank:
    """Events of one rank in the making, times in whole microseconds."""

    rank: int
    events: list[dict[str, Any]] = field(default_factory=list)
    python_id: int = 0
    correlation: int = 0

    def python(self, name: str, start: float, duration: float, parent: int | None = None) -> int:
        self.python_id += 1
        self._add(
            name,
            "python_function",
            start,
            duration,
            self.rank + 1000,
            self.rank + 1000,
            {"Python id": self.python_id, "Python parent id": parent},
        )
        return self.python_id

    def kernel(self, name: str, start: float, duration: float, **args: object) -> None:
        stream = args.pop("stream", 7)
        self.correlation += 1
        linked = {"correlation": self.correlation, "External id": self.correlation}
        process = self.rank + 1000
        self._add("cudaLaunchKernel", "cuda_runtime", start - 1, 1, process, process, linked)
        more = {"stream": stream, "device": 0, **linked, **args}
        self._add(name, "kernel", start, duration, 0, stream, more)

    def note(self, name: str, start: float, duration: float) -> None:
        process = self.rank + 1000
        self._add(name, "user_annotation", start, duration, process, process, {})

    def _add(
        self,
        name: str,
        category: str,
        start: float,
        duration: float,
        pid: int,
        tid: object,
        args: dict[str, Any],
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": round(start, 3),
                "dur": round(duration, 3),
                "args": args,
            }
        )


def write_traces(
    folder: str | Path,
    cluster: Cluster,
    faults: Sequence[Fault] = (),
    *,
    steps: int = 5,
    seed: int = 0,
) -> Truth:
    """Write ``rank<N>.json.gz`` for every rank and return the truth; the folder must exist."""
    folder = Path(folder)
    random = np.random.default_rng(seed)
    ranks = [_Rank(rank) for rank in range(cluster.world_size)]
    begin = 0.0
    for step in range(steps):
        begin += _one_step(cluster, faults, ranks, step, begin, random)
    for one in ranks:
        data = msgspec.json.encode(_document(cluster, one))
        with gzip.open(folder / f"rank{one.rank}.json.gz", "wb", compresslevel=3) as file:
            file.write(data)
    healthy = LOADER_US + FORWARD_US + BACKWARD_US + REDUCE_US + OPTIMIZER_US
    return Truth(tuple(faults), begin / steps / healthy)


def _one_step(
    cluster: Cluster,
    faults: Sequence[Fault],
    ranks: list[_Rank],
    step: int,
    begin: float,
    random: np.random.Generator,
) -> float:
    """Write one step of all ranks and return its length."""
    parts = [_parts(cluster, faults, r.rank, step, random) for r in ranks]
    arrivals = [begin + sum(p[:3]) for p in parts]
    rate = min([f.severity for f in faults if f.kind in ("slow_nic", "nvlink_down")], default=1.0)
    leave = max(arrivals) + REDUCE_US / rate
    longest = OPTIMIZER_US * max(slowed(faults, r.rank) for r in ranks)
    for one, (load, forward, backward), arrival in zip(ranks, parts, arrivals, strict=True):
        update = OPTIMIZER_US * slowed(faults, one.rank)
        end = leave + longest
        one.note(f"ProfilerStep#{step}", begin, end - begin)
        root = one.python("project/train.py(100): main", begin, end - begin)
        _load(one, root, begin, load)
        _compute(one, root, "forward", begin + load, forward)
        _compute(one, root, "backward", begin + load + forward, backward)
        one.kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            arrival,
            leave - arrival,
            stream=20,
            **{
                "Collective name": "allreduce",
                "In msg nelems": NUM_BYTES // 2,
                "Out msg nelems": NUM_BYTES // 2,
                "dtype": "BFloat16",
                "Group size": cluster.world_size,
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
                "Seq": step,
            },
        )
        one.python("torch/cuda/__init__.py(1000): synchronize", arrival, leave - arrival, root)
        one.python("torch/optim/adamw.py(220): step", leave, longest, root)
        one.kernel("multi_tensor_apply_kernel", leave, update * 0.95)
    return leave + longest - begin


def slowed(faults: Sequence[Fault], rank: int) -> float:
    """How much longer a rank's device takes for the same kernel."""
    return max(
        [f.severity for f in faults if f.kind in SLOW_DEVICES and rank in f.ranks], default=1.0
    )


def _parts(
    cluster: Cluster,
    faults: Sequence[Fault],
    rank: int,
    step: int,
    random: np.random.Generator,
) -> tuple[float, float, float]:
    load, forward, backward = (
        base * float(np.exp(random.normal(0, 0.02)))
        for base in (LOADER_US, FORWARD_US, BACKWARD_US)
    )
    for fault in faults:
        turns = fault.ranks or tuple(range(cluster.world_size))
        if fault.kind == "rotating_imbalance" and rank == turns[(3 * step + 1) % len(turns)]:
            forward, backward = forward * fault.severity, backward * fault.severity
        if rank not in fault.ranks:
            continue
        if fault.kind == "slow_loader":
            load += fault.severity * STEP_US
        elif fault.kind in ("throttled_gpu", "gpu_fault", "imbalance"):
            forward, backward = forward * fault.severity, backward * fault.severity
    return load, forward, backward


def _load(one: _Rank, root: int, start: float, duration: float) -> None:
    outer = one.python("torch/utils/data/dataloader.py(720): __next__", start, duration, root)
    inner = one.python(
        "torch/utils/data/_utils/fetch.py(49): fetch", start + 50, duration - 100, outer
    )
    one.python("project/corpus.py(61): __getitem__", start + 100, duration - 200, inner)


def _compute(one: _Rank, root: int, phase: str, start: float, duration: float) -> None:
    place = {
        "forward": "project/model.py(88): forward",
        "backward": "torch/_tensor.py(566): backward",
    }
    one.python(place[phase], start, duration, root)
    each = duration / KERNELS
    for number in range(KERNELS):
        one.kernel(f"gemm_{phase}_{number}", start + number * each, each * 0.98)


def _document(cluster: Cluster, one: _Rank) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "with_stack": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": one.rank,
            "world_size": cluster.world_size,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "pg_size": cluster.world_size,
                    "ranks": list(range(cluster.world_size)),
                }
            ],
        },
        "host_name": cluster.host_name(one.rank),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_790_000_000_000_000_000,
        "traceEvents": one.events,
    }
