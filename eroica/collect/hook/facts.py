"""Settings of the job, told on request: what was set up, and where in the user's code.

Keys (value; places = user frames innermost first):
``torch.version``, ``python.version``, ``device`` ("cpu"/"cuda"), ``cpu_count``, ``cpu_affinity``
(cores this process may use), ``world_size``, ``local_world_size``, ``env.NAME`` (see _ENV);
``num_threads``, ``num_interop_threads`` (places = caller of torch.set_num_threads);
``deterministic``, ``cudnn.benchmark``, ``anomaly_mode`` (places = who switched it on),
``tracemalloc`` (frames kept, 0 = off), ``profiler_active``, ``profiler.runs`` {count, live_ns,
exit_ns}: profilers of the job's own (places = who started the first); ``tracing`` {by,
function}: what the main thread is traced or profiled with (places = who set it); ``gc``
{enabled, thresholds, frozen}, ``gc.pauses`` {count, total_ns, max_ns, explicit_count,
explicit_ns, and steps_count, steps_ns: those over 1 ms since the first step} (places = callers
of gc.collect), ``gc.call`` {call, count} for
disable, freeze, set_threshold; ``dataloader``, one each: {num_workers, persistent_workers,
pin_memory, prefetch_factor, batch_size, batch_sampler, sampler, sampler_len, shuffle, dataset,
dataset_len, collate_fn, multiprocessing_context, iterators_started, worker_init_fn, drop_last,
num_replicas}; ``ddp``, one
each: {find_unused_parameters, static_graph, bucket_cap_mb, gradient_as_bucket_view,
broadcast_buffers, num_parameters, num_tensors, no_sync_used}; ``sampler`` {class, num_replicas,
rank, shuffle, set_epoch_used}; ``compile`` {dynamic, backend, mode, fullgraph, count};
``compile.recompiles`` {count, total_s, by_function: [{name, file, line, count, reason}]};
``checkpoint.saves`` {count, total_ns, bytes, max_ns}; ``process_group`` {backend, timeout_s,
groups}; ``threads`` (names of the Python threads).
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

from . import guard, probes
from .layout import W_WINDOW

_ENV = (
    "TORCH_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "TORCHELASTIC_",
    "NCCL_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "KMP_",
    "OPENBLAS_",
    "PYTHON",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "TOKENIZERS_PARALLELISM",
    "PYTORCH_",
    "RAYON_",
    "MALLOC_",
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "URL")


def install() -> None:
    """Wrap the constructors and switches; each records once and costs nothing per step."""
    probes.install()


def write(path: str) -> int:
    """Write all facts as a JSON list of {key, value, places}; returns their number."""
    facts = collect()
    draft = path + ".new"
    with open(draft, "w") as stream:
        json.dump(facts, stream, default=repr)
    os.rename(draft, path)
    return len(facts)


def collect() -> list[Any]:
    facts: list[Any] = []

    def tell(key: str, value: Any, places: Any = ()) -> None:
        facts.append({"key": key, "value": value, "places": list(places)})

    for part in (_process, _environment, _collector, _torch, _recompiles, _process_group):
        with guard.quietly("facts of " + part.__name__.strip("_")):
            part(tell)
    with guard.quietly("facts of probes"):
        probes.tell_all(tell)
    return facts


def _process(tell: Any) -> None:
    tell("python.version", sys.version.split()[0])
    tell("cpu_count", os.cpu_count())
    tell("cpu_affinity", len(os.sched_getaffinity(0)))
    for key, name in (("world_size", "WORLD_SIZE"), ("local_world_size", "LOCAL_WORLD_SIZE")):
        value = os.environ.get(name, "")
        if value.isdigit():
            tell(key, int(value))
    threading = sys.modules.get("threading")
    if threading is not None:
        tell("threads", [thread.name for thread in list(vars(threading)["_active"].values())])
    tracing = sys.modules.get("tracemalloc")
    frames = tracing.get_traceback_limit() if tracing is not None and tracing.is_tracing() else 0
    tell("tracemalloc", frames, probes.places_of("tracemalloc"))
    for name, (function, places) in probes.tracing().items():
        tell("tracing", {"by": "sys." + name, "function": function}, places)


def _environment(tell: Any) -> None:
    for name, value in sorted(os.environ.items()):
        is_secret = any(part in name for part in _SECRET) and name not in _ENV
        if name.startswith(_ENV) and not is_secret:
            tell("env." + name, value[:500])


def _collector(tell: Any) -> None:
    state = {
        "enabled": gc.isenabled(),
        "thresholds": list(gc.get_threshold()),
        "frozen": gc.get_freeze_count(),
    }
    tell("gc", state)


def _torch(tell: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return
    tell("torch.version", torch.__version__)
    cuda = getattr(torch, "cuda", None)
    used = cuda is not None and cuda.is_initialized()
    tell("device", "cuda" if used else "cpu")
    tell("num_threads", torch.get_num_threads(), probes.places_of("num_threads"))
    tell("num_interop_threads", torch.get_num_interop_threads())
    tell("deterministic", torch.are_deterministic_algorithms_enabled())
    tell("cudnn.benchmark", bool(torch.backends.cudnn.benchmark))
    tell("anomaly_mode", torch.is_anomaly_enabled(), probes.places_of("anomaly_mode"))
    tell("profiler_active", _is_profiler_of_the_job())


def _is_profiler_of_the_job() -> bool:
    """A window of ours that is open when the facts are asked for is not the job's profiler."""
    profiler = sys.modules.get("torch.autograd.profiler")
    marker = sys.modules.get("_eroica_attached")
    ring = getattr(marker, "ring", None)
    is_ours = ring is not None and bool(ring.words[W_WINDOW])
    return bool(getattr(profiler, "_is_profiler_enabled", False)) and not is_ours


def _recompiles(tell: Any) -> None:
    utils = sys.modules.get("torch._dynamo.utils")
    read = getattr(utils, "get_compilation_metrics", None)
    if read is None:
        return
    functions: dict[Any, Any] = {}
    total = 0.0
    for metrics in list(read()):
        name = getattr(metrics, "co_name", None)
        if name is None:
            continue
        key = (
            name,
            getattr(metrics, "co_filename", None),
            getattr(metrics, "co_firstlineno", None),
        )
        one = functions.setdefault(key, {"count": 0, "reason": None, "seconds": 0.0})
        one["count"] += 1
        one["reason"] = getattr(metrics, "recompile_reason", None) or one["reason"]
        seconds = getattr(metrics, "entire_frame_compile_time_s", None) or 0.0
        one["seconds"] += seconds
        total += seconds
    if not functions:
        return
    rows = [
        dict(value, name=key[0], file=key[1], line=key[2], count=value["count"])
        for key, value in sorted(functions.items(), key=lambda item: -item[1]["count"])
    ]
    count = sum(row["count"] - 1 for row in rows)
    places = [{"name": rows[0]["name"], "file": rows[0]["file"], "line": rows[0]["line"]}]
    value = {"count": count, "total_s": total, "by_function": rows[:20]}
    tell("compile.recompiles", value, places)


def _process_group(tell: Any) -> None:
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return
    groups = {}
    for group, ranks in list(c10d._world.pg_group_ranks.items()):
        names = c10d._world.pg_names
        groups[str(names.get(group, ""))] = sorted(ranks)
    value = {"backend": c10d.get_backend(), "groups": groups, "timeout_s": None}
    with guard.quietly("reading the group's time-out"):
        default = c10d._get_default_group()
        options = default._get_backend(sys.modules["torch"].device("cpu")).options
        value["timeout_s"] = options._timeout.total_seconds()
    tell("process_group", value)
