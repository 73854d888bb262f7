"""A look at a job that is already running, started by whomever: nothing is ended or changed.

With the hook inside its ranks: their step history, Flight Recorders and a profiler window.
Without it: stacks, kernel states and a sampling profile (Python only).
"""

import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eroica.collect import proc
from eroica.collect.gather import gather, read_ending
from eroica.collect.processes import LiveJob, find_job_of, find_jobs
from eroica.columns import RankPatterns
from eroica.config import Parameters, load
from eroica.errors import InputError
from eroica.records import JobEvidence, Samples
from eroica.units import NS_PER_S, rank_phrase
from eroica.watch import rules
from eroica.watch.evidence import build, build_rank
from eroica.watch.hardware import HardwareWatch, counters_in
from eroica.watch.live import WatchedJob
from eroica.watch.profiles import JobProfile
from eroica.watch.summaries import summarize_profiles, summarize_traces
from eroica.watch.windows import WindowTaker

logger = logging.getLogger(__name__)

_LOOK_S = 1.1
_TAIL_BYTES = 65536


@dataclass
class Look:
    """What one look at a running job gave."""

    evidence: JobEvidence
    patterns: list[RankPatterns] = field(default_factory=list)
    source: str = ""
    hint: str | None = None


def look(
    pid: int | None = None,
    *,
    seconds: float = 6.0,
    parameters: Parameters | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Look:
    """Look at the job of ``pid``, else at the one on this host that is stuck, or the only one.

    Raises InputError where there is none, or more than one and none of them stuck.
    """
    job = _choose(pid, progress)
    watcher = _Looker(job, parameters or load(), progress)
    try:
        return watcher.run(seconds, f"pid {pid}" if pid is not None else "live")
    finally:
        watcher.close()


def _choose(pid: int | None, progress: Callable[[str], None]) -> LiveJob:
    if pid is not None:
        job = find_job_of(pid)
        if job is None:
            alive = proc.read_stat(pid) is not None
            found = "it has no RANK and starts no ranks" if alive else "there is no such process"
            raise InputError(
                f"pid {pid} belongs to no training job", found, "eroica diagnose --job"
            )
        return job
    jobs = find_jobs()
    if not jobs:
        raise InputError(
            "no training job found on this host",
            "no process of this user has RANK and WORLD_SIZE",
            "eroica diagnose --pid PID, or eroica run -- CMD",
        )
    if len(jobs) == 1:
        return jobs[0]
    progress(f"{len(jobs)} jobs on this host: looking for the one that is stuck")
    stuck = [job for job in jobs if _is_idle(job)]
    if len(stuck) == 1:
        return stuck[0]
    names = "; ".join(f"pid {min(job.pids)}: {' '.join(job.command)[:60]}" for job in jobs)
    raise InputError(
        f"{len(jobs)} jobs run on this host, {len(stuck)} of them without a sign of life",
        names,
        "eroica diagnose --pid PID",
    )


def _is_idle(job: LiveJob) -> bool:
    watched = _watched(job, load())
    try:
        before = watched.activity(are_places_wanted=True)
        time.sleep(_LOOK_S)
        after = watched.activity(are_places_wanted=True)
        return all(
            rules.progress_between(before[rank], look) is rules.Progress.NONE
            for rank, look in after.items()
            if rank in before
        )
    finally:
        watched.close()


def _watched(job: LiveJob, parameters: Parameters) -> WatchedJob:
    folder = Path(job.folder) if job.folder is not None else None
    watched = WatchedJob(job.launcher_pid or min(job.pids), folder, parameters)
    watched.adopt(job)
    return watched


def output_tail(pid: int) -> str:
    """Return the end of the file a process writes its stderr or stdout to, where it is a file."""
    for number in (2, 1):
        path = Path(f"/proc/{pid}/fd/{number}")
        try:
            if path.is_file():
                with path.open("rb") as stream:
                    stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
                    return stream.read(_TAIL_BYTES).decode(errors="replace")
        except OSError as error:
            logger.debug("output of pid %d: %s", pid, error)
    return ""


class _Looker:
    """One look, from the first glance to the records."""

    def __init__(
        self, job: LiveJob, parameters: Parameters, progress: Callable[[str], None]
    ) -> None:
        self.job = job
        self.parameters = parameters
        self.progress = progress
        self.watched = _watched(job, parameters)
        self.folder = _scratch()
        self.problems: list[str] = []
        self.windows: WindowTaker | None = None
        self.onset_ns: int | None = None
        self.hardware = HardwareWatch(self.watched)

    def run(self, seconds: float, source: str) -> Look:
        ranks = rank_phrase(list(self.job.ranks))
        self.progress(f"found {' '.join(self.job.command)[:80]}: {ranks}")
        self.watched.tick()
        self.hardware.poll()
        if self._is_stuck():
            return Look(self._evidence("stuck", {}), [], source, "stuck")
        samples = self._sample(seconds)
        # Reading traces takes its time: what only a living job can tell comes first.
        evidence = self._evidence("healthy", samples)
        return Look(evidence, self._patterns(samples), source, "healthy")

    def _is_stuck(self) -> bool:
        """Three looks a second apart without any sign of life; with the hook, the rule itself."""
        looks = []
        for number in range(3):
            if number:
                time.sleep(_LOOK_S)
            looks.append(self.watched.activity(are_places_wanted=True))
        self.watched.tick()
        signs = [
            rules.progress_between(before[rank], after[rank])
            for before, after in itertools.pairwise(looks)
            for rank in after
            if rank in before
        ]
        since_ns = self.watched.silent_since_ns()
        mean_ns = self.watched.mean_step_ns()
        if since_ns is None or mean_ns is None:
            return bool(signs) and max(signs) is rules.Progress.NONE
        silent_s = (time.monotonic_ns() - since_ns) / NS_PER_S
        self.onset_ns = time.time_ns() - int(silent_s * NS_PER_S)
        return rules.is_stuck(silent_s, rules.silence_limit_s(mean_ns, self.parameters), signs)

    def _sample(self, seconds: float) -> dict[int, Samples]:
        """Sample the whole tree; with the hook, take a window meanwhile."""
        self.progress(f"sampling {seconds:g} s")
        roots = [self.job.launcher_pid] if self.job.launcher_pid else self.job.pids
        profile = JobProfile(self.watched, self.folder, roots=roots, seconds=seconds + 5)
        profile.start()
        until = time.monotonic() + seconds
        if any(rank.ring is not None for rank in self.watched.ranks.values()):
            self._take_windows(until)
        while time.monotonic() < until:
            self.watched.tick()
            time.sleep(0.05)
        found = profile.stop()
        self.problems += profile.problems
        return found

    def _take_windows(self, until: float) -> None:
        assert self.watched.folder is not None
        self.windows = WindowTaker(self.watched, self.watched.folder, self.parameters)
        self.windows.on_change = self.hardware.set_window
        for _ in range(2):
            if time.monotonic() < until and self.windows.arm(length_s=3.0):
                self.windows.finish(10.0)

    def _patterns(self, samples: Mapping[int, Samples]) -> list[RankPatterns]:
        windows = self.windows.done if self.windows is not None else []
        for window in reversed(windows):
            if window.traces:
                counters = counters_in(window, self.hardware)
                found, problems = summarize_traces(window.traces, hardware=counters)
                self.problems += [*window.problems, *problems]
                for path in window.paths.values():
                    path.unlink(missing_ok=True)
                if found:
                    return found
        return summarize_profiles(samples, project_root=self.job.directory, host=self.job.host)

    def _evidence(self, hint: str, samples: Mapping[int, Samples]) -> JobEvidence:
        captures = gather(self.job, num_samples=2 if hint == "stuck" else 1, progress=self.progress)
        if self.watched.folder is not None:
            for capture in captures:  # a thread may have died that the rank waits for
                capture.ending = read_ending(self.watched.folder, capture.rank, capture.pid)
        ranks = [
            build_rank(
                capture,
                host=self.job.host,
                steps=self.watched.ranks[capture.rank].step_times(),
                samples=samples.get(capture.rank),
                log_tail=output_tail(capture.pid),
                counters=self.hardware.of_rank(capture.rank),
            )
            for capture in captures
            if capture.rank in self.watched.ranks
        ]
        return build(
            ranks,
            world_size=self.job.world_size,
            command=self.job.command,
            source_root=self.job.directory,
            hint=hint,
            onset_ns=self.onset_ns if hint == "stuck" else None,
            taken_ns=time.time_ns(),
            warnings=self.problems,
            log_text=ranks[0].log_tail if ranks else "",
            hosts=[self.hardware.of_host(self.job.host)],
        )

    def close(self) -> None:
        import shutil

        self.hardware.close()
        if self.windows is not None:
            self.windows.close()
        self.watched.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _scratch() -> Path:
    from eroica.watch.command import make_folder

    return make_folder()
