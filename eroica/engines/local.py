"""This machine's cores as an engine.

Small work runs on threads of this process: the scanner, the decompressors and the sweeps release
the GIL, and a short command then pays for no second interpreter. Large work runs on
spawned processes, as many as cores and memory allow. ``spawn``, because forking a process that
has threads (BLAS, Arrow, a progress bar) can deadlock the child.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from eroica.engines.calls import Call, Failure, describe

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

PROCESS_FROM_BYTES = 1 << 30
"""Work of this many uncompressed bytes and more goes to processes (about 2 s of one core)."""
_PROCESS_BASE_BYTES = 300 << 20
_MEMORY_PER_BYTE = 0.4  # columns and sweep of a trace, per uncompressed byte
_M_ARENA_MAX = -8  # malloc.h
_MEMORY_SHARE = 0.7  # of what is available; the rest is for the job on this host


def _share_one_arena() -> None:
    """Keep glibc from giving each thread a heap of its own: what one frees another could not use.

    The large blocks are mapped either way; measured, it saves 4 % of the peak and no time.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _give_back() -> None:
    """Hand freed memory back to the system before the next stage takes its own."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def count_workers(num_items: int, *, largest_bytes: int = 0, workers: int | None = None) -> int:
    """Return how many workers to run: cores allowed to us, items and memory set the limit."""
    if workers is not None:
        return max(1, min(workers, num_items))
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    need = _PROCESS_BASE_BYTES + _MEMORY_PER_BYTE * largest_bytes
    available = min([psutil.virtual_memory().available, *container_bytes()])
    by_memory = int(available * _MEMORY_SHARE / need)
    return max(1, min(cores, by_memory, num_items))


def container_bytes(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[int]:
    """Return what each control group above this process leaves it; empty without a limit.

    A container sees the host's memory in /proc/meminfo, and is killed at its own limit. File cache
    that can be given back counts as free.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = base / path.strip("/")
        for one in (folder, *folder.parents):
            left = _left_in(one, *names)
            found += [] if left is None else [left]
            if one == base:
                break
    return found


def _left_in(folder: Path, limit: str, used: str, cache: str) -> int | None:
    """Bytes below a group's limit; None where it has none, or is not shown inside a container."""
    try:
        most, now = (folder / limit).read_text().strip(), int((folder / used).read_text())
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return None if most == "max" else max(0, int(most) - now + int(fields.get(cache, 0)))
    except (OSError, ValueError):
        return None


def run_local(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    workers: int,
    total_bytes: int,
) -> Iterator["Result | Failure"]:
    """Yield outcomes in the order of the items."""
    call = Call(function)
    if workers <= 1 or len(items) <= 1:
        yield from map(call, items)
    elif total_bytes < PROCESS_FROM_BYTES:
        _share_one_arena()
        with ThreadPoolExecutor(workers, thread_name_prefix="eroica") as pool:
            yield from _in_order(
                pool, call, items, workers, lambda: pool.shutdown(cancel_futures=True)
            )
        _give_back()
    else:
        yield from _on_processes(call, items, workers)


def _on_processes(
    call: Call[Item, Result], items: Sequence[Item], workers: int
) -> Iterator["Result | Failure"]:
    """Yield outcomes; a worker that is killed costs its own item only.

    Which item killed it nobody says, so those that were in flight go one by one until one kills
    its worker again; if none does it was memory for all together, and half the workers go on.
    """
    done = 0
    while done < len(items):
        pool = _new_pool(workers)
        try:
            for outcome in _in_order(pool, call, items[done:], workers, partial(_end, pool)):
                yield outcome
                done += 1
            return
        except BrokenProcessPool:
            logger.warning("a worker process died; the files in flight are read one by one")
        finally:
            _end(pool)
        was_found = False
        for outcome, is_killer in _one_by_one(call, items[done : done + _in_flight(workers)]):
            yield outcome
            done += 1
            was_found = is_killer
        if not was_found:
            workers = max(1, workers // 2)


def _one_by_one(
    call: Call[Item, Result], items: Sequence[Item]
) -> Iterator[tuple["Result | Failure", bool]]:
    """Yield outcomes of a pool of one worker; the first that kills it is the last."""
    alone = _new_pool(1)
    try:
        for item in items:
            try:
                yield alone.submit(call, item).result(), False
            except BrokenProcessPool:
                yield _killed(item), True
                return
    finally:
        _end(alone)


def _killed(item: object) -> Failure:
    return Failure(
        f"{describe(item)} could not be summarized",
        "its worker process ended, most likely killed because memory ran out",
        "run it on a machine with more memory, or collect a shorter window",
        False,
    )


def _in_flight(workers: int) -> int:
    """How many items are handed out ahead of the one that is waited for."""
    return 2 * workers + 1


def _in_order(
    pool: Executor,
    call: Call[Item, Result],
    items: Sequence[Item],
    workers: int,
    stop: Callable[[], None],
) -> Iterator["Result | Failure"]:
    """Keep the workers busy two items ahead; outcomes are not hoarded when the reader is slow."""
    waiting: deque[Future[Result | Failure]] = deque()
    position = 0
    try:
        while waiting or position < len(items):
            while position < len(items) and len(waiting) < _in_flight(workers):
                waiting.append(pool.submit(call, items[position]))
                position += 1
            yield waiting.popleft().result()
    except (KeyboardInterrupt, GeneratorExit):
        for future in waiting:
            future.cancel()
        stop()
        raise


def _new_pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_interrupt
    )


def _ignore_interrupt() -> None:
    """Leave Ctrl-C to the parent: a worker's own traceback would bury its message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(pool: ProcessPoolExecutor) -> None:
    """Stop the pool's processes now, whatever they are doing."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(timeout=5)
