"""Samples hardware counters beside a job: 5 times a second, 100 times inside a window.

A thread of the agent's reads them; it never uses more than 1 % of a core (3 % in the seconds of a
window), whatever the number of devices: where reading costs more, it comes less often. What is slow
to read or to change (clocks, errors, pressure, limits) is read once a second, the host's processes
every ten seconds.
A driver that hangs stops this thread and nothing else.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.collect import cgroups, counters, infiniband, nvml, proc
from eroica.collect.counters import Kernel, Source
from eroica.collect.samples import Columns, Row, Track, busiest, shorten
from eroica.columns import HardwareSamples
from eroica.records import CounterUse, Neighbor

logger = logging.getLogger(__name__)

IDLE_HZ = 5.0
WINDOW_HZ = 100.0
IDLE_SHARE = 0.007  # of a core
WINDOW_SHARE = 0.03
_FAST_ROWS = 3000
_SLOW_ROWS = 300
_HUNG_S = 5.0


@dataclass
class Pace:
    """How often something is read: every so often, or as rarely as its share of a core asks."""

    every_ns: float
    share: float
    cost_ns: float = 0.0
    """CPU time it takes, a running mean."""
    due_ns: float = 0.0

    def note(self, now_ns: int, cost_ns: float) -> None:
        self.cost_ns = 0.8 * self.cost_ns + 0.2 * cost_ns if self.cost_ns else cost_ns
        self.due_ns = now_ns + max(self.every_ns, self.cost_ns / self.share)


class HardwareSampler:
    """Start it, tell it the ranks, take samples and digests of any stretch of time."""

    def __init__(
        self,
        *,
        kernel: Kernel | None = None,
        open_gpus: Callable[[], nvml.Gpus] = nvml.Nvml,
        job_roots: Callable[[], Iterable[int]] = lambda: (),
    ) -> None:
        """``job_roots`` are pids that are the job's or ours, with all their descendants."""
        self.kernel = kernel or Kernel()
        self.num_cpus = os.cpu_count() or 1
        self.missing: list[str] = []
        self.fast = Pace(1e9 / IDLE_HZ, share=IDLE_SHARE)
        self.slow = Pace(1e9, share=0.002)
        self.looks = Pace(10e9, share=0.001)
        self._open_gpus = open_gpus
        self._gpus: nvml.Gpus | None = None
        self._is_opened = False
        self._job_roots = job_roots
        self._tracks: list[Track] = []
        self._ranks: dict[int, tuple[int, int, int]] = {}
        self._new_ranks: list[tuple[int, int, int, int]] = []
        self._groups: set[str] = set()
        self._scans: deque[tuple[int, dict[int, proc.Stat]]] = deque(maxlen=8)
        self._lock = threading.Lock()
        self._num_slow = 0
        self._is_over = False
        self._round_since: float | None = None
        self._thread: threading.Thread | None = None

    # --- from the agent's thread; none of these waits for a driver

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="eroica-hardware", daemon=True)
        self._thread.start()

    def watch(self, rank: int, pid: int, thread: int, local_rank: int = 0) -> None:
        """Sample a rank; calling it again with other pids (a restart) begins anew."""
        if self._ranks.get(rank) != (pid, thread, local_rank):
            self._ranks[rank] = (pid, thread, local_rank)
            self._new_ranks.append((rank, pid, thread, local_rank))

    def set_window(self, is_open: bool) -> None:
        """Sample often while a window is open."""
        self.fast.every_ns = 1e9 / (WINDOW_HZ if is_open else IDLE_HZ)
        self.fast.share = WINDOW_SHARE if is_open else IDLE_SHARE

    def refresh(self, limit_s: float = 0.3) -> None:
        """Have everything read once more, e.g. to see why a rank has just died."""
        before, until = self._num_slow, time.monotonic() + limit_s
        self.slow.due_ns = 0.0
        while self._num_slow == before and time.monotonic() < until and self._is_running:
            time.sleep(0.01)

    @property
    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Stop; a thread that hangs in a driver is left to end with the process."""
        self._is_over = True
        if self._thread is not None:
            self._thread.join(1.0)
        if not self._is_running:
            for track in self._tracks:
                track.source.close()
            if self._gpus is not None:
                self._gpus.close()
        self._tracks = []

    @property
    def problems(self) -> list[str]:
        """What could not be read, and a driver that does not answer."""
        said = list(self.missing)
        since = self._round_since
        if since is not None and time.monotonic() - since > _HUNG_S:
            said.append(f"hardware counters: no answer for {time.monotonic() - since:.0f} s")
        return said

    # --- the thread

    def _run(self) -> None:
        used = time.thread_time_ns()
        while not self._is_over:
            self._round_since = time.monotonic()
            now_ns = time.time_ns()
            elsewhere = self.turn(now_ns)
            self._round_since = None
            # The waking up counts as well: it is most of what a cheap round costs.
            used, before = time.thread_time_ns(), used
            self.fast.note(now_ns, used - before - elsewhere)
            time.sleep(max(0.0, min(0.1, (self.fast.due_ns - time.time_ns()) / 1e9)))

    def turn(self, now_ns: int) -> float:
        """Read what is due once; ``now_ns`` is Unix time. Returns CPU ns of the rarer parts."""
        began = time.thread_time_ns()
        self._open()
        elsewhere = float(time.thread_time_ns() - began)
        for track in self._tracks:
            if track.is_fast:
                self._read(track, now_ns)
        for pace, read in ((self.slow, self._read_slow), (self.looks, self._look_around)):
            if now_ns >= pace.due_ns:
                began = time.thread_time_ns()
                read(now_ns)
                cost = time.thread_time_ns() - began
                pace.note(now_ns, cost)
                elsewhere += cost
        return elsewhere

    def _read(self, track: Track, now_ns: int) -> None:
        values = tuple(track.source.read())
        with self._lock:
            track.rows.append((now_ns, values))

    def _read_slow(self, now_ns: int) -> None:
        for track in self._tracks:
            if not track.is_fast:
                self._read(track, now_ns)
        self._num_slow += 1

    def _look_around(self, now_ns: int) -> None:
        self._scans.append((now_ns, proc.all_stats(self.kernel.proc)))

    def _open(self) -> None:
        if not self._is_opened:
            self._is_opened = True
            self._open_host()
            try:
                self._gpus = self._open_gpus()
            except nvml.NoGpus as error:
                self.missing.append(str(error))
        while self._new_ranks:
            self._open_rank(*self._new_ranks.pop(0))

    def _open_host(self) -> None:
        kernel = self.kernel
        self._add("network counters", None, lambda: counters.network_source(kernel), is_fast=True)
        for name, port in infiniband.ports(kernel).items():
            self._add(
                f"counters of {name}",
                None,
                lambda name=name, port=port: infiniband.traffic_source(name, port),  # type: ignore[misc]
                is_fast=True,
            )
            self._add(
                f"errors of {name}",
                None,
                lambda name=name, port=port: infiniband.error_source(name, port),  # type: ignore[misc]
            )
        self._add("pressure", None, lambda: counters.pressure_source(kernel))
        self._add("memory events", None, lambda: counters.memory_source(kernel))
        self._add("busy cores", None, lambda: counters.processor_source(kernel))
        self._add("CPU clocks", None, lambda: counters.clock_source(kernel))

    def _open_rank(self, rank: int, pid: int, thread: int, local_rank: int) -> None:
        kernel = self.kernel
        with self._lock:
            gone = [track for track in self._tracks if track.owner == rank]
            self._tracks = [track for track in self._tracks if track.owner != rank]
        for track in gone:
            track.source.close()
        self._add(
            f"CPU time of rank {rank}",
            rank,
            lambda: counters.thread_source(kernel, pid, thread),
            is_fast=True,
        )
        self._add(f"threads of rank {rank}", rank, lambda: counters.RankSource(kernel, pid))
        self._add(None, rank, lambda: cgroups.cpu_quota_source(kernel, pid))
        self._add(None, rank, lambda: cgroups.memory_limit_source(kernel, pid))
        self._open_gpu(rank, pid, local_rank)

    def _open_gpu(self, rank: int, pid: int, local_rank: int) -> None:
        gpus = self._gpus
        if gpus is None:
            return
        environment = proc.read_environment(pid)
        index = nvml.gpu_of(gpus, pid, local_rank, environment)
        if index is not None:
            self._add(None, rank, lambda: nvml.fast_source(gpus, index), is_fast=True)
            self._add(None, rank, lambda: nvml.slow_source(gpus, index))

    def _add(
        self,
        what: str | None,
        owner: int | None,
        make: Callable[[], Source],
        *,
        is_fast: bool = False,
    ) -> None:
        """Add a source; where it is not to be had, ``what`` says what is missing."""
        try:
            source = make()
        except (OSError, ValueError) as error:
            self._note_missing(what, error)
            return
        if not source.counters:
            source.close()
            return
        rows: deque[Row] = deque(maxlen=_FAST_ROWS if is_fast else _SLOW_ROWS)
        with self._lock:
            self._tracks = [*self._tracks, Track(source, owner, is_fast, rows)]

    def _note_missing(self, what: str | None, error: Exception) -> None:
        """Say it once: ranks may be started again for weeks."""
        if what is not None and (text := f"{what}: {_reason(error)}") not in self.missing:
            self.missing.append(text)

    # --- what was seen

    def _seen(self, owners: tuple[int | None, ...], since_ns: int) -> list[Columns]:
        with self._lock:
            return [
                Columns(track.source.counters, track.is_fast, *track.columns(since_ns))
                for track in self._tracks
                if track.owner in owners
            ]

    def samples(
        self, rank: int | None, *, since_ns: int = 0, with_host: bool = False, host: str = ""
    ) -> HardwareSamples | None:
        """Return a rank's (the host's) samples as rates; None where there are not three.

        ``with_host`` adds the host's, so that one file tells all of a rank.
        """
        seen = self._seen((rank, None) if with_host else (rank,), since_ns)
        grids = [one for one in seen if one.is_fast] or seen
        times = max((one.times_N for one in grids), key=len, default=np.zeros(0, np.int64))
        if len(times) < 3:
            return None
        values: dict[str, NDArray[np.float64]] = {}
        for one in seen:
            values |= one.on(times[1:])
        return HardwareSamples(times[1:], values, rank=rank, host=host)

    def uses(self, rank: int | None, *, since_ns: int = 0) -> dict[str, CounterUse]:
        """Return a digest of each counter of a rank (of the host)."""
        found: dict[str, CounterUse] = {}
        for one in self._seen((rank,), since_ns):
            found |= one.digest()
        periods = found.pop("cgroup.periods_per_s", None)
        stopped = found.pop("cgroup.throttled_periods_per_s", None)
        if periods is not None and stopped is not None and periods.mean > 0:
            share = min(1.0, stopped.mean / periods.mean)
            found["cgroup.throttled"] = CounterUse(
                mean=shorten(share), low=0.0, high=shorten(share), seconds=stopped.seconds
            )
        return found

    def neighbors(self) -> tuple[Neighbor, ...]:
        """Return the busiest processes that are not the job's, over the time watched."""
        scans = [*self._scans]
        now_ns = time.time_ns()
        if not scans or now_ns - scans[0][0] < 1e9:
            return ()
        now = proc.all_stats(self.kernel.proc)
        return busiest(scans[0][1], now, (now_ns - scans[0][0]) / 1e9, self._job_roots())


def _reason(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{error.filename} may not be read"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"this kernel has no {error.filename}"
    return str(error)
