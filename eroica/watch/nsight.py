"""Nsight Systems in place of the profiler windows, where a user asks for it (``run --nsys DIR``).

The job is started under ``nsys launch``, which records nothing by itself; some steps are recorded
with ``nsys start`` and ``nsys stop`` and exported to SQLite. One session holds all ranks of a host.
torch's profiler stays off meanwhile: the two cannot both have the device's counters.
"""

import logging
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from eroica.columns import RankPatterns
from eroica.errors import EroicaError, InputError
from eroica.units import NS_PER_S

logger = logging.getLogger(__name__)

_STEPS = 10
_MIN_S = 2.0
_COMMAND_LIMIT_S = 60.0  # stopping writes and exports the report


class Nsight:
    """One session: wraps the command, records once, gives patterns."""

    def __init__(self, folder: Path) -> None:
        """Raise InputError where nsys is not installed or the folder cannot be made."""
        found = shutil.which("nsys")
        if found is None:
            raise InputError(
                "--nsys needs Nsight Systems",
                "there is no `nsys` on PATH",
                "install it (developer.nvidia.com/nsight-systems), or leave --nsys away: the "
                "profiler's windows need nothing",
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {folder}", str(error), "--nsys DIR") from None
        self.folder = folder.resolve()
        self.problems: list[str] = []
        self._nsys = found
        self._session = f"eroica-{os.getpid()}"
        self._known = set(self.folder.glob("*.sqlite"))
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eroica-nsys")
        self._step: Future[bool] | None = None
        self._ends_at: float | None = None
        self._is_stopping = False

    def wrap(self, words: Sequence[str]) -> list[str]:
        """Return the command that starts the job in the session."""
        session = f"--session-new={self._session}"
        return [self._nsys, "launch", session, "--trace=cuda,nvtx,osrt", *words]

    @property
    def is_busy(self) -> bool:
        """Whether it records now, or writes its report."""
        return self._step is not None and not (self._is_stopping and self._step.done())

    def poll(self, now: float, mean_step_ns: float | None, max_s: float) -> None:
        """Begin, or end when enough steps went by; never waits. ``now`` is monotonic."""
        if mean_step_ns is None or self._is_stopping:
            return
        if self._step is None:
            length_s = max(_MIN_S, math.ceil(_STEPS * mean_step_ns / NS_PER_S))
            self._step = self._pool.submit(
                self._ask,
                "start",
                f"--output={self.folder / self._session}",
                "--export=sqlite",
                "--force-overwrite=true",
            )
            self._ends_at = now + min(max_s, length_s)
        elif self._ends_at is not None and now >= self._ends_at and self._step.done():
            self.stop()

    def stop(self) -> None:
        """End the recording, if one is under way; the report is written beside us."""
        if self._step is None or self._is_stopping:
            return
        self._is_stopping = True
        self._step = self._pool.submit(self._ask, "stop")

    def _ask(self, what: str, *options: str) -> bool:
        words = [self._nsys, what, f"--session={self._session}", *options]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self.problems.append(f"nsys {what}: {error}")
            return False
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            self.problems.append(f"nsys {what} failed: {last}")
        return done.returncode == 0

    def patterns(self) -> list[RankPatterns]:
        """Wait for the report and summarize each rank in it; empty where there is none."""
        self.stop()
        if self._step is not None:
            self._step.result()
        reports = sorted(set(self.folder.glob("*.sqlite")) - self._known)
        if not reports:
            self.problems.append(f"nsys wrote no SQLite report to {self.folder}")
        found: list[RankPatterns] = []
        for path in reports:
            try:
                found += _summarize(path)
            except EroicaError as error:
                self.problems.append(f"{path.name}: {error}".replace("\n", "; "))
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _summarize(path: Path) -> list[RankPatterns]:
    from eroica.read.nsys import list_ranks, read_timeline
    from eroica.summarize import summarize

    ranks = list_ranks(path)
    timelines = (read_timeline(path, rank=rank) for rank in ranks)
    return [
        replace(summarize(replace(one, rank=rank)), source=str(path))
        for rank, one in zip(ranks, timelines, strict=True)
    ]
