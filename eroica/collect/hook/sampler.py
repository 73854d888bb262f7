"""Stacks of this process from inside, where py-spy may not read it: one look, or 50 a second.

Written in py-spy's forms, so that one reader serves both. A thread that keeps the interpreter
lock delays a sample; that sample then counts for all the time it had to wait.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from typing import Any

from . import guard

_MAX_S = 600.0
_MAX_HZ = 100.0
_MAX_COST = 0.02  # of the time: a process with many deep stacks is sampled more rarely
_LONGEST_REST_S = 0.1
_MAX_FRAMES = 200
_MAX_THREADS = 64
_MAX_STACKS = 20000


def threads() -> list[Any]:
    """One look at all threads, in the form of ``py-spy dump --json``."""
    own, names = _thread.get_ident(), _names()
    found = []
    for ident, frame in sys._current_frames().items():
        if ident == own:
            continue
        native, name = names.get(ident, (None, ""))
        frames = [
            {"name": _name(code), "filename": code.co_filename, "line": line}
            for code, line in _walk(frame)
        ]
        found.append(
            {
                "thread_name": name,
                "os_thread_id": native,
                "active": _is_running(native),
                "owns_gil": False,
                "frames": frames,
            }
        )
    return found


class Sampler:
    """At most one profile at a time, in a thread of its own, below ``threading``."""

    def __init__(self, windows: Any) -> None:
        self._windows = windows
        self._until = 0.0
        self._is_on = False
        self.num_samples = 0

    def start(self, path: str, hz: float, seconds: float) -> bool:
        """Sample into ``path`` (all stacks) and ``path.active`` (the share of them on a CPU)."""
        if self._is_on:
            raise RuntimeError("a sampling profile is being taken")
        self._is_on = True
        self.num_samples = 0
        self._until = time.monotonic() + min(seconds, _MAX_S)
        _thread.start_new_thread(self._run, (path, 1.0 / max(1.0, min(hz, _MAX_HZ))))
        return True

    def stop(self, limit_s: float = 2.0) -> int:
        """End a profile, which writes it; returns the number of samples it holds."""
        self._until = 0.0
        until = time.monotonic() + limit_s
        while self._is_on and time.monotonic() < until:
            time.sleep(0.005)
        return self.num_samples

    def _run(self, path: str, interval: float) -> None:
        try:
            with guard.quietly("sampling"):
                _write(path, self._sample(interval))
        finally:
            self._is_on = False

    def _sample(self, interval: float) -> dict[Any, list[float]]:
        """By (thread, stack): its weight in samples, and the part of that on a CPU."""
        found: dict[Any, list[float]] = {}
        on_cpu: dict[int, int] = {}
        last = time.monotonic()
        while last < self._until:
            start, used = time.monotonic(), time.thread_time()
            waited, last = start - last, start
            # A window that records stacks would record each call made here as well.
            if not self._windows.has_stacks:
                self._add(found, on_cpu, waited, interval)
            # Waiting for the interpreter's lock costs the job nothing.
            cost = time.thread_time() - used
            self._rest(max(interval - (time.monotonic() - start), cost / _MAX_COST))
        return found

    def _rest(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the profile: who ends it waits for its file."""
        wake = time.monotonic() + seconds
        while True:
            left = min(wake, self._until) - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _LONGEST_REST_S))

    def _add(
        self, found: dict[Any, list[float]], on_cpu: dict[int, int], waited: float, interval: float
    ) -> None:
        own, names = _thread.get_ident(), _names()
        weight = max(1.0, waited / interval)
        self.num_samples += 1
        for ident, frame in list(sys._current_frames().items())[:_MAX_THREADS]:
            if ident == own:
                continue
            thread = names.get(ident, (ident, "?"))
            key = (thread, tuple(_walk(frame)))
            one = found.get(key)
            if one is None:
                if len(found) >= _MAX_STACKS:
                    continue
                one = found[key] = [0.0, 0.0]
            one[0] += weight
            now = _cpu_ns(thread[0])
            before = on_cpu.get(thread[0], now)
            on_cpu[thread[0]] = now
            one[1] += weight * min(1.0, (now - before) / 1e9 / max(waited, 1e-6))


def _write(path: str, found: dict[Any, list[float]]) -> None:
    for end, part in (("", 0), (".active", 1)):
        with open(path + end + ".new", "w", encoding="utf-8", errors="replace") as stream:
            for (thread, stack), weights in found.items():
                count = round(weights[part])
                if count:
                    stream.write(f"{_folded(thread, stack)} {count}\n")
        os.rename(path + end + ".new", path + end)


def _folded(thread: tuple[Any, ...], stack: tuple[Any, ...]) -> str:
    parts = [f"{_name(code)} ({code.co_filename}:{line})" for code, line in stack]
    parts.append("thread ({}): {}".format(*thread).replace(";", ","))
    return ";".join(reversed(parts))


def _walk(frame: Any) -> list[Any]:
    """The code and line of each frame, innermost first; no frame is kept, for its variables."""
    found: list[Any] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        found.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return found


def _name(code: Any) -> str:
    name = getattr(code, "co_qualname", code.co_name)
    return str(name)


def _names() -> dict[Any, Any]:
    active = list(vars(threading)["_active"].values())
    return {thread.ident: (thread.native_id, thread.name) for thread in active}


def _cpu_ns(native: Any) -> int:
    try:
        handle = os.open(f"/proc/self/task/{native}/schedstat", os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(handle, 64).split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    finally:
        os.close(handle)


def _is_running(native: Any) -> bool:
    try:
        with open(f"/proc/self/task/{native}/stat", "rb") as stream:
            return stream.read().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False
