"""The sets that peers.py asks all tools about, each with its truth: dumps, traces, simulations.

The truth of real sets is in the README of ../shared/data; a note that lies beside a set, such as a
log of injected faults, is not handed to any tool.
"""

import gzip
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("EROICA_SHARED", ROOT.parent / "shared")) / "data"


@dataclass(frozen=True)
class Job:
    """A set of files and its truth; ``ranks`` is empty for a healthy job, None for all alike."""

    name: str
    make: Callable[[Path], Path]
    """Gets an empty folder, returns the folder to diagnose."""
    truth: str
    ranks: tuple[int, ...] | None
    category: str
    extra: tuple[str, ...] = ()


def data(name: str, pattern: str = "*") -> Callable[[Path], Path]:
    """A set of ../shared/data without what stands in notes beside it."""

    def make(folder: Path) -> Path:
        for path in sorted((SHARED / name).glob(pattern)):
            if path.is_file() and "fault_injection" not in path.name:
                shutil.copy(path, folder)
        return folder

    return make


def simulated(kind: str, ranks: tuple[int, ...], severity: float) -> Callable[[Path], Path]:
    """Traces of eight ranks, such that HTA reads them too: it looks for the rank line by line, as
    the profiler writes it, and knows the names that collectives bore before NCCL 2.19 only."""

    def make(folder: Path) -> Path:
        from eroica.simulate.cluster import Cluster
        from eroica.simulate.faults import Fault
        from eroica.simulate.traces import write_traces

        faults = [Fault(kind, ranks, severity)] if kind else []  # type: ignore[arg-type]
        write_traces(folder, Cluster(8), faults, steps=8)
        for path in folder.iterdir():
            text = gzip.decompress(path.read_bytes())
            text = msgspec.json.format(text.replace(b"ncclDevKernel_", b"ncclKernel_"), indent=2)
            path.write_bytes(gzip.compress(text, 3))
        return folder

    return make


STUCK = (
    Job(
        "nccl_16ranks_lock_gil_1st",
        data("flight_recorder/nccl_16ranks_lock_gil_1st"),
        "ranks 9 and 14 hold their GIL",
        (9, 14),
        "",
    ),
    Job(
        "nccl_16ranks_gpu_error_2nd",
        data("flight_recorder/nccl_16ranks_gpu_error_2nd"),
        "GPU errors on ranks 9 and 14",
        (9, 14),
        "",
    ),
    Job(
        "gloo_4ranks_barrier_in_rank0",
        data("stuck/gloo_4ranks_barrier_in_rank0", "_dump_fr_trace_rank*.pickle"),
        "rank 0 alone enters a barrier",
        (0,),
        "rank_conditional_collective",
    ),
    Job(
        "gloo_4ranks_barrier_timeout",
        data("stuck/gloo_4ranks_barrier_timeout", "_dump_fr_trace_rank*.pickle"),
        "the same run to its time-out",
        (0,),
        "rank_conditional_collective",
    ),
    Job(
        "gloo_4ranks_stuck_checkpoint_rank3",
        data("stuck/gloo_4ranks_stuck_checkpoint_rank3", "fr_trace_*"),
        "rank 3 writes a checkpoint for ever",
        (3,),
        "blocked_io",
    ),
)
SLOW = (
    Job("dlrm_8ranks_v100", data("kineto/dlrm_8ranks_v100"), "rank 7 last in 5 of 8", (7,), ""),
    Job("gloo_4ranks_healthy", data("kineto/gloo_4ranks_healthy"), "healthy", (), ""),
    Job(
        "gloo_4ranks_slow_rank2",
        data("kineto/gloo_4ranks_slow_rank2_sleep_workers0"),
        "rank 2 loads slowly",
        (2,),
        "straggler_data_loading",
    ),
    Job("straggler_jobs AR", data("straggler_jobs"), "worker (dp 0, stage 0)", (0,), ""),
    Job("simulated: healthy", simulated("", (), 0), "healthy", (), ""),
    Job(
        "simulated: slow loader",
        simulated("slow_loader", (3,), 0.4),
        "rank 3 loads slowly",
        (3,),
        "straggler_data_loading",
    ),
    Job(
        "simulated: throttled GPU",
        simulated("throttled_gpu", (5,), 1.4),
        "rank 5's kernels run at a lower rate",
        (5,),
        "gpu_throttled",
    ),
    Job(
        "simulated: imbalance",
        simulated("imbalance", (1,), 1.4),
        "rank 1 has more to compute",
        (1,),
        "load_imbalance",
    ),
    Job(
        "simulated: turns",
        simulated("rotating_imbalance", (), 1.6),
        "another rank has more to compute in each step",
        None,
        "load_imbalance",
    ),
)
