"""Wrappers around constructors and switches that remember what was set and by which user line.

Each wrapper calls the original first or last, passes everything through, and keeps its own
faults to itself. None of them is on the path of a training step except the garbage collector's
callback (about 1 us a collection) and ``torch.save``. One module, because each import costs every
training process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import threading
import time
import weakref
from typing import Any

from . import guard
from .imports import when_imported
from .layout import W_NUM_LOADER, W_NUM_MARKED, W_NUM_OPTIMIZER
from .places import user_places

_places: dict[str, list[Any]] = {}
_tracing: dict[str, Any] = {}
_loaders: list[Any] = []
_models: list[Any] = []
_samplers: list[Any] = []
_compiled: dict[Any, Any] = {}
_calls: dict[Any, Any] = {}
_saves: dict[str, Any] = {"count": 0, "total_ns": 0, "max_ns": 0, "bytes": 0, "places": []}
_pauses = {"count": 0, "total_ns": 0, "max_ns": 0, "explicit_count": 0, "explicit_ns": 0}
_pauses.update(steps_count=0, steps_ns=0)
_LONG_NS = 1_000_000  # shorter pauses hold nobody and are not looked into
_collect_places: dict[Any, Any] = {}
_profiles: dict[str, Any] = {"count": 0, "live_ns": 0, "exit_ns": 0, "places": []}
_MAX_KEPT = 64


def install() -> None:
    _watch_collector()
    for name in ("settrace", "setprofile"):
        _watch_tracing(name)
    when_imported("tracemalloc", lambda module: note_call(module, "start", "tracemalloc"))
    when_imported("torch", _watch_torch)
    when_imported("torch.autograd.anomaly_mode", _watch_anomaly)
    when_imported("torch.utils.data.dataloader", _watch_loaders)
    when_imported("torch.utils.data.distributed", _watch_samplers)
    when_imported("torch.nn.parallel.distributed", _watch_models)


def note_profiler(started: bool, num_ns: int = 0, exit_ns: int = 0) -> None:
    """Count the job's own profilers: each start, and at its end how long it ran and took to end."""
    if started:
        _profiles["count"] += 1
        if not _profiles["places"]:
            _profiles["places"] = user_places()
    else:
        _profiles["live_ns"] += num_ns
        _profiles["exit_ns"] += exit_ns


def places_of(key: str) -> list[Any]:
    return _places.get(key, [])


def tracing() -> dict[str, Any]:
    """By setter: what the main thread is traced with, and the user lines that set it."""
    return dict(_tracing)


def _watch_tracing(name: str) -> None:
    """Remember the main thread's trace or profile function: no other thread can read it."""
    original = getattr(sys, name)

    @functools.wraps(original)
    def wrapper(function: Any) -> Any:
        with guard.quietly("noting a call of sys." + name):
            if threading.current_thread() is threading.main_thread():
                if function is None:
                    _tracing.pop(name, None)
                else:
                    _tracing[name] = (repr(function)[:200], user_places(2))
        if function is None or name != "setprofile":
            return original(function)
        own = sys._getframe().f_code

        def after_return(frame: Any, event: str, argument: Any) -> None:
            # The job's profiler must not see this call end that it never saw begin.
            if frame.f_code is own and event == "return":
                original(function)

        return original(after_return)

    setattr(sys, name, wrapper)


def note_call(module: Any, name: str, key: str) -> None:
    """Remember the user lines of the last call of ``module.name``."""
    original = getattr(module, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with guard.quietly("noting a call of " + name):
            _places[key] = user_places(2)
        return original(*args, **kwargs)

    setattr(module, name, wrapper)


def _after_init(cls: type[Any], note: Any) -> None:
    """Call ``note(object, places)`` after the outermost constructor of an object has run."""
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        with guard.quietly("reading a " + cls.__name__):
            note(self, user_places(2))

    cls.__init__ = __init__


# --- garbage collector ----------------------------------------------------------------------


def _has_stepped() -> bool:
    ring = getattr(sys.modules.get("_eroica_attached"), "ring", None)
    counts = (W_NUM_OPTIMIZER, W_NUM_LOADER, W_NUM_MARKED)
    return ring is not None and any(ring.words[word] for word in counts)


def _watch_collector() -> None:
    started = [0]
    explicit = [0]

    def callback(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            started[0] = time.monotonic_ns()
            return
        took = time.monotonic_ns() - started[0]
        _pauses["count"] += 1
        _pauses["total_ns"] += took
        if took > _pauses["max_ns"]:
            _pauses["max_ns"] = took
        if explicit[0]:
            _pauses["explicit_count"] += 1
            _pauses["explicit_ns"] += took
        if took >= _LONG_NS:
            with guard.quietly("noting a pause"):
                if _has_stepped():
                    _pauses["steps_count"] += 1
                    _pauses["steps_ns"] += took

    gc.callbacks.append(callback)
    original = gc.collect

    @functools.wraps(original)
    def collect(*args: Any, **kwargs: Any) -> int:
        with guard.quietly("noting gc.collect"):
            places = user_places(2)
            key = tuple((p["file"], p["line"]) for p in places[:2])
            if key in _collect_places:
                _collect_places[key][0] += 1
            elif len(_collect_places) < _MAX_KEPT:
                _collect_places[key] = [1, places]
        explicit[0] += 1
        try:
            return original(*args, **kwargs)
        finally:
            explicit[0] -= 1

    gc.collect = collect
    for name in ("disable", "freeze", "set_threshold", "set_debug"):
        _count_call(gc, name, "gc.call")


def _count_call(module: Any, name: str, key: str) -> None:
    original = getattr(module, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with guard.quietly("noting a call of " + name):
            one = _calls.setdefault((key, name), {"count": 0, "places": user_places(2)})
            one["count"] += 1
        return original(*args, **kwargs)

    setattr(module, name, wrapper)


# --- torch ----------------------------------------------------------------------------------


def _watch_torch(torch: Any) -> None:
    note_call(torch, "set_num_threads", "num_threads")
    _watch_save(torch)
    _watch_compile(torch)


def _watch_save(torch: Any) -> None:
    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.monotonic_ns()
        try:
            return original(obj, f, *args, **kwargs)
        finally:
            with guard.quietly("noting torch.save"):
                took = time.monotonic_ns() - start
                _saves["count"] += 1
                _saves["total_ns"] += took
                _saves["max_ns"] = max(_saves["max_ns"], took)
                _saves["places"] = user_places(2)
                if isinstance(f, (str, os.PathLike)) and os.path.exists(f):
                    _saves["bytes"] += os.path.getsize(f)

    torch.save = save


def _watch_compile(torch: Any) -> None:
    original = getattr(torch, "compile", None)
    if original is None:
        return

    @functools.wraps(original)
    def compile(model: Any = None, **kwargs: Any) -> Any:
        with guard.quietly("noting torch.compile"):
            places = user_places(2)
            key = tuple((p["file"], p["line"]) for p in places[:1])
            value = {name: kwargs.get(name) for name in ("dynamic", "backend", "mode", "fullgraph")}
            value = {
                k: v if isinstance(v, (str, bool, type(None))) else repr(v)[:80]
                for k, v in value.items()
            }
            if len(_compiled) < _MAX_KEPT:
                one = _compiled.setdefault(key, {"value": dict(value, count=0), "places": places})
                one["value"]["count"] += 1
        return original(model, **kwargs) if model is not None else original(**kwargs)

    torch.compile = compile


def _watch_anomaly(module: Any) -> None:
    def note(switch: Any, places: list[Any]) -> None:
        _places["anomaly_mode"] = places

    for name in ("set_detect_anomaly", "detect_anomaly"):
        cls = getattr(module, name, None)
        if isinstance(cls, type):
            _after_init(cls, note)


def _watch_loaders(module: Any) -> None:
    def note(loader: Any, places: list[Any]) -> None:
        if any(one["object"]() is loader for one in _loaders):
            return
        if len(_loaders) < _MAX_KEPT:
            _loaders.append(
                {
                    "object": weakref.ref(loader),
                    "places": places,
                    "started": 0,
                    "value": _loader_value(loader),
                }
            )

    def note_iterator(iterator: Any, places: list[Any]) -> None:
        dataset = iterator.__dict__.get("_dataset")
        for one in _loaders:
            loader = one["object"]()
            if loader is not None and getattr(loader, "dataset", None) is dataset:
                one["started"] += 1
                return

    _after_init(module.DataLoader, note)
    base = getattr(module, "_BaseDataLoaderIter", None)
    if base is not None:
        _after_init(base, note_iterator)


def _loader_value(loader: Any) -> dict[str, Any]:
    value = {
        name: getattr(loader, name, None)
        for name in (
            "num_workers",
            "persistent_workers",
            "pin_memory",
            "prefetch_factor",
            "batch_size",
            "drop_last",
        )
    }
    sampler = getattr(loader, "sampler", None)
    dataset: Any = getattr(loader, "dataset", None)
    value["sampler"] = type(sampler).__name__
    value["batch_sampler"] = type(getattr(loader, "batch_sampler", None)).__name__
    value["shuffle"] = type(sampler).__name__ == "RandomSampler" or getattr(
        sampler, "shuffle", None
    )
    value["num_replicas"] = getattr(sampler, "num_replicas", None)
    value["sampler_len"] = None
    with contextlib.suppress(TypeError, AttributeError, NotImplementedError):
        value["sampler_len"] = len(sampler) if sampler is not None else None
    value["dataset"] = type(dataset).__name__
    value["dataset_len"] = _length(dataset)
    for name in ("collate_fn", "worker_init_fn"):
        function = getattr(loader, name, None)
        value[name] = (
            getattr(function, "__qualname__", type(function).__name__) if function else None
        )
    context = getattr(loader, "multiprocessing_context", None)
    value["multiprocessing_context"] = context.get_start_method() if context is not None else None
    return value


def _length(dataset: Any) -> Any:
    """Of a dataset that has one and can tell it: some raise, as streams do."""
    try:
        return len(dataset)
    except Exception:
        return None


def _watch_samplers(module: Any) -> None:
    def note(sampler: Any, places: list[Any]) -> None:
        if len(_samplers) < _MAX_KEPT:
            value = {
                name: getattr(sampler, name, None) for name in ("num_replicas", "rank", "shuffle")
            }
            value["class"] = type(sampler).__name__
            _samplers.append({"object": weakref.ref(sampler), "value": value, "places": places})

    _after_init(module.DistributedSampler, note)


def _watch_models(module: Any) -> None:
    cls = module.DistributedDataParallel

    def note(model: Any, places: list[Any]) -> None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        names = (
            "find_unused_parameters",
            "static_graph",
            "gradient_as_bucket_view",
            "broadcast_buffers",
        )
        value = {name: getattr(model, name, None) for name in names}
        cap = getattr(model, "bucket_bytes_cap", None)
        value["bucket_cap_mb"] = cap / 1048576 if cap else None
        value["num_tensors"] = len(parameters)
        value["num_parameters"] = sum(p.numel() for p in parameters)
        if len(_models) < _MAX_KEPT:
            _models.append(
                {"object": weakref.ref(model), "value": value, "places": places, "no_sync": 0}
            )

    _after_init(cls, note)
    original = cls.no_sync

    @functools.wraps(original)
    def no_sync(self: Any) -> Any:
        for one in _models:
            if one["object"]() is self:
                one["no_sync"] += 1
        return original(self)

    cls.no_sync = no_sync


# --- telling --------------------------------------------------------------------------------


def tell_all(tell: Any) -> None:
    for one in _loaders:
        tell("dataloader", dict(one["value"], iterators_started=one["started"]), one["places"])
    for one in _models:
        tell("ddp", dict(one["value"], no_sync_used=one["no_sync"]), one["places"])
    for one in _samplers:
        sampler = one["object"]()
        epoch = getattr(sampler, "epoch", 0) if sampler is not None else None
        tell("sampler", dict(one["value"], epoch=epoch), one["places"])
    for one in _compiled.values():
        tell("compile", one["value"], one["places"])
    for (key, name), one in _calls.items():
        tell(key, {"call": name, "count": one["count"]}, one["places"])
    callers = sorted(_collect_places.values(), key=lambda pair: -pair[0])
    tell("gc.pauses", dict(_pauses), callers[0][1] if callers else [])
    if _profiles["count"]:
        value = {name: _profiles[name] for name in ("count", "live_ns", "exit_ns")}
        tell("profiler.runs", value, _profiles["places"])
    if _saves["count"]:
        value = {name: _saves[name] for name in ("count", "total_ns", "max_ns", "bytes")}
        tell("checkpoint.saves", value, _saves["places"])
