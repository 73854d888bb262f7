"""What is collected while a job trains: windows, stall samples, the sampling profile."""

import logging
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from eroica.columns import RankPatterns
from eroica.config import Parameters
from eroica.records import Samples, Setting, StepTimes
from eroica.watch import warm
from eroica.watch.frames import is_hook_file
from eroica.watch.hardware import HardwareWatch, counters_in
from eroica.watch.live import WatchedJob
from eroica.watch.nsight import Nsight
from eroica.watch.profiles import JobProfile
from eroica.watch.ranks import WatchedRank
from eroica.watch.stalls import StallWatch
from eroica.watch.summaries import summarize_profiles, summarize_traces, with_sampled_python
from eroica.watch.team import Team
from eroica.watch.windows import Window, WindowTaker
from eroica.watch.wire import WindowPlan

logger = logging.getLogger(__name__)

_SETTLE_S = 0.5  # after the iteration is learned, before the first window
_UNLEARNED_PROFILE_S = 6.0
_PAUSE_S = 0.7  # of a window in a short watch; the configured 2 s are for long jobs
_LENGTH_S = 3.0
_LAST_LEAD_S = 5.0
_QUIET_AFTER_WINDOW_S = 0.5


class Collection:
    """Drives the collectors; ``poll`` is called at every tick and never blocks for long."""

    def __init__(
        self,
        job: WatchedJob,
        folder: Path,
        parameters: Parameters,
        after_s: float,
        progress: Callable[[str], None],
        hardware: HardwareWatch | None = None,
    ) -> None:
        self.job = job
        self.folder = folder
        self.after_s = after_s
        self.progress = progress
        self.windows = WindowTaker(job, folder, parameters)
        self.hardware = hardware
        if hardware is not None:
            self.windows.on_change = hardware.set_window
        self.stalls = StallWatch(job, parameters)
        self.nsight: Nsight | None = None
        self.team: Team | None = None
        self.window_number: int | None = None
        """Of the window that the patterns are from."""
        self.samples: dict[int, Samples] = {}
        self.problems: list[str] = []
        self._profile: JobProfile | None = None
        self._is_profile_of_training = False
        self._learned_at: float | None = None
        self._seen_at: float | None = None
        self._warming: subprocess.Popen[bytes] | None = None
        self._window_ended_at = 0.0
        self._is_last_taken = False
        self._is_crowded: bool | None = None
        self._busy_ns: list[tuple[int, int]] = []
        self._busy_since_ns = 0

    def poll(self, now: float) -> None:
        """Look what is due."""
        if self._seen_at is None and self.job.ranks:
            self._seen_at = now
            self._warming = warm.start()
        if self._learned_at is None and self.job.is_learned:
            self._learned_at = now
        self._poll_profile(now)
        self._poll_windows(now)
        quiet = now - self._window_ended_at > _QUIET_AFTER_WINDOW_S
        if self._learned_at is not None and quiet and not self.windows.is_busy:
            self.stalls.poll(now)

    def _poll_profile(self, now: float) -> None:
        if self._learned_at is not None and not self._is_profile_of_training:
            self._is_profile_of_training = True
            self._end_profile()
            self.samples = {}
            self._start_profile()
        waited = self._seen_at is not None and now - self._seen_at > _UNLEARNED_PROFILE_S
        if self._profile is None and waited and self._learned_at is None:
            self._start_profile()

    def _start_profile(self) -> None:
        self._profile = JobProfile(self.job, self.folder, roots=[self.job.root_pid])
        self._profile.start()

    def _end_profile(self) -> None:
        if self._profile is None:
            return
        self.samples = self._profile.stop()
        self.problems += [text for text in self._profile.problems if text not in self.problems]
        self._profile = None

    def _poll_windows(self, now: float) -> None:
        if self._learned_at is None:
            return
        if self.windows.is_busy:
            window = self.windows.poll()
            if window is not None:
                self._end_window(window, now)
            return
        since = now - self._learned_at
        if self.nsight is not None:
            if since > _SETTLE_S:
                self.nsight.poll(now, self.job.mean_step_ns(), _LENGTH_S)
            return
        if self._is_crowded is None and since > _SETTLE_S:
            self._is_crowded = has_busy_threads(self.job)
            if self._is_crowded:
                self.progress("other Python threads are busy: sampling instead of profiling")
        if self._is_crowded:
            return
        if self.team is not None and self.team.is_follower:
            plan = self.team.next_window()
            if plan is not None and not self._is_silent():
                self._arm(plan)
            return
        due = len(self.windows.done) < 2 and since > _SETTLE_S
        last = since > self.after_s - _LAST_LEAD_S and not self._is_last_taken
        if (due or last) and not self._is_silent():
            self._is_last_taken = self._is_last_taken or last
            self._arm()

    def _arm(self, plan: WindowPlan | None = None) -> None:
        self._busy_since_ns = time.monotonic_ns()
        if self.windows.arm(length_s=_LENGTH_S, pause_s=_PAUSE_S, plan=plan):
            self.progress(f"window {len(self.windows.done) + 1}: profiling a few steps")

    def join(self, team: Team) -> None:
        """Take windows at the same steps as the other hosts of the job."""
        self.team = self.windows.team = team

    def _is_silent(self) -> bool:
        """Whether no step has come for so long that none may come any more."""
        last, mean = self.job.silent_since_ns(), self.job.mean_step_ns()
        if last is None or mean is None:
            return True
        return time.monotonic_ns() - last > max(3 * mean, 1e9)

    def _end_window(self, window: Window, now: float) -> None:
        self._window_ended_at = now
        self._busy_ns.append((self._busy_since_ns, time.monotonic_ns()))
        self.problems += window.problems
        logger.info(
            "window %d: %d steps on %d ranks, pause %.0f ms",
            *(window.number, window.num_steps, len(window.traces), window.pause_ns / 1e6),
        )

    def finish(self, *, is_running: bool) -> None:
        """End everything; a window under way is waited for while the job still trains."""
        if self.nsight is not None:
            self.nsight.stop()
        self.windows.finish(4.0 if is_running and not self._is_silent() else 0.0)
        self._end_profile()

    def settled_steps(self, steps: StepTimes | None, offset_ns: int) -> StepTimes | None:
        """Return a rank's steps without those during a window, which the profiler slowed down."""
        if steps is None or not self._busy_ns:
            return steps
        keep = [
            i
            for i, (start, length) in enumerate(zip(steps.start_ns, steps.duration_ns, strict=True))
            if not any(
                start - offset_ns < end and start + length - offset_ns > begin
                for begin, end in self._busy_ns
            )
        ]
        if not keep:
            return steps

        def pick(values: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(values[i] for i in keep) if values else ()

        return StepTimes(
            start_ns=pick(steps.start_ns),
            duration_ns=pick(steps.duration_ns),
            data_ns=pick(steps.data_ns),
            optimizer_ns=pick(steps.optimizer_ns),
            first_step=steps.first_step,
        )

    def best_window(self) -> Window | None:
        """Return the window to diagnose: most ranks, then enough steps, then the latest."""
        windows = [window for window in self.windows.done if window.traces]
        if not windows:
            return None
        return max(windows, key=lambda w: (len(w.traces), min(w.num_steps, 5), w.number))

    def patterns(
        self,
        settings: Mapping[int, tuple[Setting, ...]],
        *,
        project_root: str | None,
        host: str,
    ) -> list[RankPatterns]:
        """Return one pattern a rank: of a window, else of the sampling profile."""
        window, found = self.best_window(), list[RankPatterns]()
        warm.stop(self._warming)
        if self.nsight is not None:
            self.progress("reading what nsys recorded")
            found = self.nsight.patterns()
            self.problems += self.nsight.problems
        if window is not None:
            self.progress(f"reading {len(window.traces)} traces")
            found, problems = summarize_traces(
                window.traces, settings=settings, hardware=counters_in(window, self.hardware)
            )
            self.problems += problems
            if found:
                self.window_number = window.number
                if window.has_stacks:
                    return found
        sampled = summarize_profiles(self.samples, project_root=project_root, host=host)
        return with_sampled_python(found, sampled) if found else sampled

    def close(self) -> None:
        warm.stop(self._warming)
        self._end_profile()
        self.windows.close()
        if self.nsight is not None:
            self.nsight.close()


def has_busy_threads(job: WatchedJob, *, looks: int = 4, gap_s: float = 0.03) -> bool:
    """Whether a Python thread beside the training thread is at work all the time.

    Each of its calls would be an event of a window: one spinning thread writes a million a
    second, and the pause of stop() would be as long.
    """
    busy: dict[tuple[int, int], int] = {}
    for _ in range(looks):
        job.take_samples()
        for rank in job.alive:
            for thread in _busy_threads(rank):
                busy[rank.rank, thread] = busy.get((rank.rank, thread), 0) + 1
        time.sleep(gap_s)
    return any(count == looks for count in busy.values())


def _busy_threads(rank: WatchedRank) -> list[int]:
    training = (rank.ring.thread if rank.ring is not None else None) or rank.live.pid
    if not rank.stacks:
        return []
    return [
        thread["os_thread_id"]
        for thread in rank.stacks[-1].threads
        if thread.get("active")
        and thread.get("os_thread_id") not in (training, None)
        and thread["frames"]
        and not is_hook_file(thread["frames"][-1]["filename"])
    ]
