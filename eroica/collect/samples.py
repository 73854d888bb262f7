"""What was sampled, as columns over time and as digests: pure functions of raw rows."""

import math
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eroica.collect import proc
from eroica.collect.counters import Counter, Source
from eroica.records import CounterUse, Neighbor

_MIN_NEIGHBOR_CORES = 0.02
_MAX_NEIGHBORS = 5
_DIGITS = 5

Row = tuple[int, tuple[float, ...]]


@dataclass
class Track:
    """One source and what it gave; ``owner`` is a rank, or None for the host."""

    source: Source
    owner: int | None
    is_fast: bool
    rows: deque[Row] = field(default_factory=deque)

    def columns(self, since_ns: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return times N and values N x counters since then; rates and counts are still totals."""
        rows = [row for row in self.rows if row[0] >= since_ns]
        width = len(self.source.counters)
        values = np.array([row[1] for row in rows], np.float64).reshape(len(rows), width)
        return np.array([row[0] for row in rows], np.int64), values


@dataclass(frozen=True)
class Columns:
    counters: tuple[Counter, ...]
    is_fast: bool
    times_N: NDArray[np.int64]
    values: NDArray[np.float64]

    def on(self, grid_N: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Return each counter at other times: the next value, of rates the slope to it."""
        if len(self.times_N) < 2:
            return {}
        place_N = np.clip(np.searchsorted(self.times_N, grid_N), 1, len(self.times_N) - 1)
        seconds_N = np.diff(self.times_N) / 1e9
        found: dict[str, NDArray[np.float64]] = {}
        for column, counter in enumerate(self.counters):
            raw_N = self.values[:, column] * counter.scale
            if counter.form == "rate":
                found[counter.name] = (np.diff(raw_N) / np.maximum(seconds_N, 1e-9))[place_N - 1]
            else:
                found[counter.name] = raw_N[place_N]
        return found

    def digest(self) -> dict[str, CounterUse]:
        if len(self.times_N) < 2:
            return {}
        found: dict[str, CounterUse] = {}
        for column, counter in enumerate(self.counters):
            raw_N = self.values[:, column] * counter.scale
            is_told_N = ~np.isnan(raw_N)
            raw_N, times_N = raw_N[is_told_N], self.times_N[is_told_N]
            if len(raw_N) < 2:
                continue
            gaps_N = np.diff(times_N) / 1e9
            seconds = float(gaps_N.sum())
            if counter.form == "gauge":
                use = _use(raw_N.mean(), raw_N.min(), raw_N.max(), seconds)
            else:
                increase = float(raw_N[-1] - raw_N[0])
                slopes = np.diff(raw_N) / np.maximum(gaps_N, 1e-9)
                is_count = counter.form == "count"
                use = _use(
                    increase / max(seconds, 1e-9),
                    slopes.min(),
                    slopes.max(),
                    seconds,
                    increase if is_count else None,
                )
            found[counter.name] = use
        return found


def _use(
    mean: float, low: float, high: float, seconds: float, increase: float | None = None
) -> CounterUse:
    return CounterUse(
        mean=shorten(mean),
        low=shorten(low),
        high=shorten(high),
        increase=None if increase is None else shorten(increase),
        seconds=shorten(seconds),
    )


def shorten(value: float) -> float:
    """Five digits are more than any counter knows, and keep files small."""
    number = float(value)
    if not number or not math.isfinite(number):
        return 0.0
    return round(number, _DIGITS - 1 - math.floor(math.log10(abs(number))))


def busiest(
    before: dict[int, proc.Stat],
    after: dict[int, proc.Stat],
    seconds: float,
    job_roots: Iterable[int],
) -> tuple[Neighbor, ...]:
    """Return who else used the cores between two looks at all processes, the busiest first.

    Kernel threads (children of pid 2) are left out, and what ended or began between the looks
    counts with what is known of it.
    """
    own = {2, os.getpid()}
    for root in job_roots:
        own |= {root, *proc.descendants(root, after)}
    own |= set(proc.descendants(os.getpid(), after))
    found = []
    for pid, stat in after.items():
        if pid in own or stat.parent_pid == 2:
            continue
        old = before.get(pid)
        is_same = old is not None and old.start_ticks == stat.start_ticks
        used = stat.cpu_ns - (old.cpu_ns if is_same and old is not None else 0)
        cores = used / 1e9 / max(seconds, 1e-3)
        if cores >= _MIN_NEIGHBOR_CORES:
            found.append(Neighbor(pid=pid, name=stat.name, cores=round(cores, 3)))
    return tuple(sorted(found, key=lambda one: -one.cores)[:_MAX_NEIGHBORS])
