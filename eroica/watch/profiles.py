"""One sampling profile over the ranks of this host: by py-spy, or from inside where it may not.

py-spy costs the job nothing and sees children too. Where it is not installed, or the kernel does
not let it read the ranks, the hook samples its own process 50 times a second.
"""

import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from eroica.collect import spy
from eroica.collect.asking import NoAnswer, ask
from eroica.records import Samples
from eroica.watch.live import WatchedJob
from eroica.watch.ranks import WatchedRank
from eroica.watch.sampling import Profile, build_samples, parse_raw

logger = logging.getLogger(__name__)

INSIDE_HZ = 50
_MAX_INSIDE_S = 600.0


class JobProfile:
    """One profile of a job, from ``start`` to ``stop``.

    ``roots`` are the processes whose trees are sampled, by default each living rank;
    ``seconds`` bounds what a rank does by itself should this process die.
    """

    def __init__(
        self,
        job: WatchedJob,
        folder: Path,
        *,
        roots: Sequence[int] = (),
        seconds: float = _MAX_INSIDE_S,
    ) -> None:
        self.job = job
        self.problems: list[str] = []
        self._outside = [Profile(pid, folder) for pid in roots or [r.live.pid for r in job.alive]]
        self._inside = InsideProfile(job, seconds)
        self._is_inside = False

    def start(self) -> None:
        """Begin; what could not be had is kept in ``problems``."""
        reason = refusal(self.job.alive)
        if reason is None:
            for profile in self._outside:
                profile.start()
            return
        self._is_inside = self._inside.start()
        how = "sampled from inside the ranks instead, their children not at all"
        self.problems.append(
            f"sampling profile: {reason}" + (f"; {how}" if self._is_inside else "")
        )

    def stop(self) -> dict[int, Samples]:
        """End the profile; return rank to samples, empty where nothing could be read."""
        if self._is_inside:
            return self._inside.stop()
        pids = {rank.live.pid: rank.rank for rank in self.job.ranks.values()}
        found: dict[int, Samples] = {}
        for profile in self._outside:
            if profile.is_started or profile.problem:
                found |= profile.stop(pids)
            self.problems += [profile.problem] if profile.problem else []
        return found


def refusal(ranks: Iterable[WatchedRank]) -> str | None:
    """Return why py-spy cannot read the ranks, asked of the first; None where it can."""
    for rank in ranks:
        reason = None
        for _ in range(2):  # a look without a pause may be torn once
            try:
                spy.dump(rank.live.pid, is_blocking=False, limit_s=2.0)
                return None
            except (spy.CannotTrace, OSError) as error:
                reason = str(error)
        return reason
    return None


@dataclass
class InsideProfile:
    """The hooks' own samples of their processes."""

    job: WatchedJob
    seconds: float
    _paths: dict[int, Path] = field(default_factory=dict)
    _start_ns: int = 0

    def start(self) -> bool:
        """Have each rank begin; False where none does."""
        self._start_ns = time.time_ns()
        ranks = [rank for rank in self.job.alive if rank.ring is not None]
        if not ranks or self.job.folder is None:
            return False
        with ThreadPoolExecutor(max_workers=16, thread_name_prefix="eroica-inside") as pool:
            for rank, path in zip(ranks, pool.map(self._start_one, ranks), strict=True):
                if path is not None:
                    self._paths[rank.rank] = path
        return bool(self._paths)

    def _start_one(self, rank: WatchedRank) -> Path | None:
        assert self.job.folder is not None
        path = self.job.folder / f"inside-{rank.rank:05d}.raw"
        try:
            ask(
                self.job.folder,
                rank.rank,
                "sample",
                limit_s=1.0,
                path=str(path),
                hz=INSIDE_HZ,
                seconds=min(self.seconds, _MAX_INSIDE_S),
            )
        except NoAnswer as error:
            logger.debug("sampling from inside: %s", error)
            return None
        return path

    def stop(self) -> dict[int, Samples]:
        """End all; a rank that ended meanwhile wrote its samples by itself."""
        end_ns = time.time_ns()
        with ThreadPoolExecutor(max_workers=16, thread_name_prefix="eroica-inside") as pool:
            list(pool.map(self._stop_one, self._paths))
        found: dict[int, Samples] = {}
        for rank, path in self._paths.items():
            pid = self.job.ranks[rank].live.pid if rank in self.job.ranks else 0
            stacks, active = (
                parse_raw(_take(file), pid) for file in (path, path.with_suffix(".raw.active"))
            )
            found |= build_samples(
                stacks, active, {pid: rank}, self._start_ns, end_ns, active_scale=1.0
            )
        self._paths = {}
        return found

    def _stop_one(self, rank: int) -> None:
        assert self.job.folder is not None
        with contextlib.suppress(NoAnswer):
            ask(self.job.folder, rank, "sample_stop", limit_s=3.0)


def _take(path: Path) -> str:
    """Read a file and take it away; empty where it was not written."""
    try:
        text = path.read_text(errors="replace")
        path.unlink()
    except OSError as error:
        logger.debug("samples from inside: %s", error)
        return ""
    return text
