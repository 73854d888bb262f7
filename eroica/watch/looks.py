"""Close looks at a job that runs on: windows, a sampling profile beside them, and their reading."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from eroica.columns import RankPatterns
from eroica.config import Parameters
from eroica.records import Samples
from eroica.watch.hardware import HardwareWatch, counters_in
from eroica.watch.live import WatchedJob
from eroica.watch.profiles import JobProfile
from eroica.watch.summaries import summarize_profiles, summarize_traces, with_sampled_python
from eroica.watch.team import Team
from eroica.watch.watching import has_busy_threads
from eroica.watch.windows import Window, WindowTaker

_TICK_S = 0.2
_SAMPLE_S = 5.0


class CloseLooks:
    """Takes them one after another, and holds what the job's healthy time was like."""

    def __init__(
        self,
        job: WatchedJob,
        folder: Path,
        parameters: Parameters,
        *,
        hardware: HardwareWatch,
        team: Team,
        source_root: str | None,
    ) -> None:
        self.job, self.folder, self.parameters = job, folder, parameters
        self.hardware, self.team, self.source_root = hardware, team, source_root
        self.windows = WindowTaker(job, folder, parameters)
        self.windows.on_change = hardware.set_window
        self.windows.team = team
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eroica-read")
        self.problems: list[str] = []
        """What could not be had, for the next incident."""
        self._baseline: Future[list[RankPatterns]] | None = None

    def take(self, *, is_sampled: bool = False) -> tuple[list[Window], dict[int, Samples]]:
        """Take up to two windows, with a sampling profile beside them if wanted or needed."""
        self.team.is_baseline = not is_sampled
        profile = self.start_profile() if is_sampled else None
        until = time.monotonic() + _SAMPLE_S
        self.take_away_late_traces()
        first = len(self.windows.done)
        if not has_busy_threads(self.job):
            for _ in range(2):
                # A window without stacks says nothing of Python: samples beside it do.
                if profile is None and self.windows.is_over_budget():
                    profile = self.start_profile()
                if self.windows.arm(length_s=self.parameters.window_s):
                    self.windows.finish(self.parameters.window_s + 10)
        samples: dict[int, Samples] = {}
        if profile is not None:
            while time.monotonic() < until:
                self.job.wait(_TICK_S)
                self.job.tick()
            samples = profile.stop()
            self.note(profile.problems)
        for window in self.windows.done[first:]:
            self.note(window.problems)
        return self.windows.done[first:], samples

    def start_profile(self) -> JobProfile:
        profile = JobProfile(self.job, self.folder, seconds=_SAMPLE_S + self.parameters.window_s)
        profile.start()
        return profile

    def read(
        self, windows: Sequence[Window], samples: Mapping[int, Samples] | None = None
    ) -> list[RankPatterns]:
        """Summarize the latest whole window, else the samples; raw traces are deleted."""
        host = self.job.live_job().host
        sampled = summarize_profiles(samples or {}, project_root=self.source_root, host=host)
        found: list[RankPatterns] = []
        for window in reversed(windows):
            if not found and window.traces:
                counters = counters_in(window, self.hardware)
                found, _ = summarize_traces(window.traces, hardware=counters)
                found = found if window.has_stacks else with_sampled_python(found, sampled)
            for path in window.paths.values():
                path.unlink(missing_ok=True)
        return found or sampled

    def begin_baseline(self, windows: Sequence[Window], samples: Mapping[int, Samples]) -> None:
        """Read the healthy time beside the loop: steps go on, and the rule is to see them."""
        self._baseline = self.pool.submit(self.read, windows, samples)

    @property
    def baseline(self) -> list[RankPatterns]:
        """Patterns of the job's healthy time; empty until they are read."""
        if self._baseline is None or not self._baseline.done() or self._baseline.cancelled():
            return []
        error = self._baseline.exception()
        if error is not None:
            self.note([f"the window of the healthy time could not be read: {error!r}"])
            return []
        return self._baseline.result()

    def take_away_late_traces(self) -> None:
        """A trace that came after its window was given up has no reader, and lies in memory.

        The last window's may still be read, or written.
        """
        if self._baseline is None or self._baseline.done():
            for window in self.windows.done[:-1]:
                for path in window.paths.values():
                    path.unlink(missing_ok=True)

    def note(self, problems: Sequence[str]) -> None:
        """Keep what could not be had, once."""
        self.problems = list(dict.fromkeys([*self.problems, *problems]))

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.windows.close()
