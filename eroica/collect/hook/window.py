"""Profiler windows: started and stopped by the training thread itself at a step border.

A second profiler in the process crashes torch (even one that is only warming up), so profilers of
the user's are tracked through the private methods named in ``_watch``; where those are missing,
windows stay off. A profiler that the user starts inside our window ends the window first.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

from . import guard, probes
from .imports import when_imported
from .layout import NEVER, W_RANK, W_WINDOW, W_WORLD_SIZE

_FINISH_S = 10.0


class Windows:
    """At most one window at a time. States: idle, armed, open, closed (not yet exported)."""

    def __init__(self, ring: Any, folder: str) -> None:
        self.ring = ring
        self.folder = folder
        self.result: dict[str, Any] = {}
        self.has_stacks = False
        """Whether a window is open that records each call of each thread."""
        self._lock = threading.RLock()
        self._request: dict[str, Any] | None = None
        self._profiler: Any = None
        self._closed: Any = None
        self._user_live: dict[int, int] = {}
        self._is_ours = threading.local()
        self._is_possible = False
        when_imported("torch.autograd.profiler", self._watch)

    # --- asked by the agent (control thread)

    def arm(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take a request: {word, start, stop, max_s, path, id}; counts are of the border word."""
        with self._lock:
            if not self._is_possible:
                raise RuntimeError("this torch's profiler cannot be watched")
            if self._profiler is not None:
                raise RuntimeError("a window is open")
            self._closed = None  # its agent died before it was exported: nobody waits for it
            self._request = dict(request)
            self.result = {"id": request["id"], "state": "armed"}
            self.ring.words[request["word"]] = request["start"]
        return self.result

    def stop_now(self, why: str) -> dict[str, Any]:
        """End an open window from any thread (profile_all_threads makes that safe)."""
        with self._lock:
            request, self._request = self._request, None
            if request is not None:
                self.ring.words[request["word"]] = NEVER
            if self._profiler is not None:
                self._stop(why)
        return self.result

    def export(self) -> dict[str, Any]:
        """Write a closed window's trace to its path; the events are freed."""
        with self._lock:
            closed, self._closed = self._closed, None
            if closed is None:
                return self.result
            if self._user_live:
                # Kineto is not asked to write beside a profiler that is at work.
                self.result["state"] = "dropped: a profiler of the job's own is at work"
                return self.result
            start = time.monotonic_ns()
            path = self.result["path"]
            closed.kineto_results.save(path)
            self.result["export_ns"] = time.monotonic_ns() - start
            self.result["bytes"] = os.path.getsize(path)
            self.result["state"] = "exported"
        return self.result

    def finish(self) -> None:
        """At exit: end and write what is open, so that the interpreter ends without it."""
        if not self._lock.acquire(timeout=_FINISH_S):
            return
        try:
            self.stop_now("exit")
            self.export()
            self._is_possible = False
        finally:
            self._lock.release()

    # --- called by the training thread

    def at_border(self, word: int, count: int) -> None:
        with guard.quietly("profiler windows"), self._lock:
            request = self._request
            if request is None:
                return
            if self._profiler is None:
                self._start(request, word, count)
            elif count >= request["stop"] or self._is_over(request):
                self.result["steps"] = count - self.result["first"]
                self._request = None
                self._stop("done")
            else:
                self.ring.words[word] = count + 1

    def _is_over(self, request: dict[str, Any]) -> bool:
        return bool(time.monotonic_ns() - self.result["start_ns"] > request["max_s"] * 1e9)

    def _start(self, request: dict[str, Any], word: int, count: int) -> None:
        profiling = sys.modules["torch.autograd.profiler"]
        if self._user_live or getattr(profiling, "_is_profiler_enabled", True):
            self._request = None
            self.result["state"] = "skipped: a profiler of the job's own is at work"
            return
        self._is_ours.me = True
        try:
            profiler = _make_profiler(profiling, request.get("stacks", True))
            profiler._prepare_trace()
            profiler._start_trace()
        finally:
            self._is_ours.me = False
        self._profiler = profiler
        self.has_stacks = bool(request.get("stacks", True))
        late = max(0, count - request["start"])
        self.result.update(
            state="open", first=count, late=late, path=request["path"], start_ns=time.monotonic_ns()
        )
        self.ring.words[W_WINDOW] = 1
        self.ring.words[word] = count + 1

    def _stop(self, why: str) -> None:
        profiler, self._profiler = self._profiler, None
        start = time.monotonic_ns()
        _add_metadata(self.ring)
        self._is_ours.me = True
        try:
            profiler.__exit__(None, None, None)
        finally:
            self._is_ours.me = False
            self.has_stacks = False
            self.ring.words[W_WINDOW] = 0
        now = time.monotonic_ns()
        self._closed = profiler
        self.result.update(
            state="closed", why=why, window_ns=start - self.result["start_ns"], pause_ns=now - start
        )

    # --- the user's own profilers

    def _watch(self, module: Any) -> None:
        cls = module.profile
        prepare, leave = getattr(cls, "_prepare_trace", None), cls.__exit__
        if prepare is None or not hasattr(cls, "_start_trace"):
            guard.tell("profiler windows", AttributeError("profile._prepare_trace is missing"))
            return

        def _prepare_trace(profiler: Any) -> Any:
            if not getattr(self._is_ours, "me", False):
                with guard.quietly("making way for the job's profiler"), self._lock:
                    if self._profiler is not None:
                        self._request = None
                        self._stop("the job started a profiler of its own")
                    self._user_live[id(profiler)] = time.monotonic_ns()
                    probes.note_profiler(True)
            try:
                return prepare(profiler)
            except BaseException:  # it was not started: nothing of the job's is at work
                self._user_live.pop(id(profiler), None)
                raise

        def __exit__(profiler: Any, *args: Any) -> Any:  # noqa: N807
            begin = time.monotonic_ns()
            try:
                return leave(profiler, *args)
            finally:
                start = self._user_live.pop(id(profiler), None)
                if start is not None:
                    probes.note_profiler(False, begin - start, time.monotonic_ns() - begin)

        cls._prepare_trace = _prepare_trace
        cls.__exit__ = __exit__
        self._is_possible = True


def _make_profiler(profiling: Any, with_stack: bool) -> Any:
    torch = sys.modules["torch"]
    experimental = torch._C._profiler._ExperimentalConfig
    config = None
    for options in (
        {"profile_all_threads": True, "record_python_gc_info": True},
        {"profile_all_threads": True},
    ):
        try:
            config = experimental(**options)
            break
        except TypeError:  # an older torch: fewer options
            continue
    arguments: dict[str, Any] = {"use_kineto": True, "with_stack": with_stack}
    if config is not None:
        arguments["experimental_config"] = config
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        import inspect

        names = inspect.signature(profiling.profile.__init__).parameters
        key = "use_device" if "use_device" in names else "use_cuda"
        arguments[key] = "cuda" if key == "use_device" else True
    return profiling.profile(**arguments)


def _add_metadata(ring: Any) -> None:
    """Put into the trace what torch.profiler puts there, so that any reader knows the rank."""
    autograd = sys.modules["torch"].autograd
    words = ring.words
    value = {"rank": int(words[W_RANK]), "world_size": int(words[W_WORLD_SIZE])}
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None and c10d.is_initialized():
        value["backend"] = c10d.get_backend()
        with guard.quietly("describing groups"):
            config = c10d._world.pg_config_info
            value["pg_config"] = config
            value["pg_count"] = c10d.get_pg_count()
    autograd._add_metadata_json("distributedInfo", json.dumps(value))
    autograd._add_metadata_json("host_name", json.dumps(socket.gethostname()))
