"""Profiler windows: the same steps on all ranks, as long as an event budget allows.

The agent names a coming step; each rank's training thread starts and stops its profiler there.
The first window holds two iterations and tells how many events one has; the next ones are as
long as the pause of stop() allows.
"""

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eroica.collect.asking import NoAnswer, ask
from eroica.collect.hook import layout
from eroica.config import Parameters
from eroica.units import NS_PER_S
from eroica.watch import rules
from eroica.watch.live import WatchedJob
from eroica.watch.ranks import WatchedRank
from eroica.watch.wire import WindowPlan

if TYPE_CHECKING:
    from eroica.watch.team import Team

logger = logging.getLogger(__name__)

_NS_PER_EVENT = 5_000  # stop() and export with stacks, measured: 2.7-4.1 us + 1.6 us
_BYTES_PER_EVENT = 350
_FIRST_STEPS = 2
_LONG_STEP_NS = 1_000_000_000  # one such iteration may be all that the pause allows
_OVER_BUDGET = (
    "window: one iteration has about {number:.0f} events: taken without stacks, which are"
    " sampled beside it"
)
_MAX_STEPS = 60
_LEAD_S = 0.2  # for the request to reach all ranks before the step does
_FAR_LEAD_S = 2.0  # the same over hosts

_WORDS = {
    layout.STEP_OUT: (layout.W_BORDER_OPTIMIZER, layout.W_NUM_OPTIMIZER),
    layout.NEXT_OUT: (layout.W_BORDER_LOADER, layout.W_NUM_LOADER),
    layout.MARK: (layout.W_BORDER_MARKED, layout.W_NUM_MARKED),
}


def steps_that_fit(
    events_per_step: float, mean_step_ns: float, *, pause_s: float, length_s: float
) -> int:
    """Return how many iterations a window may hold: by events, time and number."""
    by_events = pause_s * NS_PER_S / _NS_PER_EVENT / max(1.0, events_per_step)
    by_time = length_s * NS_PER_S / max(1.0, mean_step_ns)
    return max(1, min(_MAX_STEPS, int(by_events), math.ceil(by_time)))


@dataclass
class Window:
    """One window over all ranks: what was asked for and what each rank said."""

    number: int
    num_steps: int
    armed_at: float
    limit_s: float
    paths: dict[int, Path]
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    opened: set[int] = field(default_factory=set)
    exports: dict[int, "Future[Any]"] = field(default_factory=dict)
    has_stacks: bool = True
    start_ns: int = field(default_factory=time.time_ns)
    end_ns: int = 0
    """Unix time between which it was asked for and over."""

    @property
    def traces(self) -> dict[int, Path]:
        """Rank to trace, of those that were written whole."""
        return {
            rank: path
            for rank, path in self.paths.items()
            if path.exists() and path.stat().st_size > 0 and _is_whole(path)
        }

    @property
    def pause_ns(self) -> int:
        """Longest pause of stop() on any rank."""
        return max((int(r.get("pause_ns", 0)) for r in self.results.values()), default=0)


def _is_whole(path: Path) -> bool:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 64))
        return stream.read().rstrip().endswith(b"}")


class WindowTaker:
    """Takes windows one after another; ``poll`` never blocks."""

    def __init__(self, job: WatchedJob, folder: Path, parameters: Parameters) -> None:
        self.job = job
        self.folder = folder
        self.parameters = parameters
        self.events_per_step: float | None = None
        self.team: Team | None = None
        """Hosts that take their windows at the same steps."""
        self.done: list[Window] = []
        self._current: Window | None = None
        self.on_change: Callable[[bool], None] = lambda is_open: None
        """Called when a window is asked for and when it is over."""
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="eroica-window")

    @property
    def last_ns(self) -> tuple[int, int] | None:
        """Unix times of the last finished window, from the request to the last trace."""
        return (self.done[-1].start_ns, self.done[-1].end_ns) if self.done else None

    @property
    def is_busy(self) -> bool:
        return self._current is not None

    def is_over_budget(self, pause_s: float | None = None) -> bool:
        """Whether one iteration with stacks would pause the job too long; then without them."""
        pause_ns = (pause_s or self.parameters.window_pause_s) * NS_PER_S
        return (self.events_per_step or 0.0) * _NS_PER_EVENT > pause_ns

    def arm(
        self, *, length_s: float, pause_s: float | None = None, plan: WindowPlan | None = None
    ) -> bool:
        """Ask all ranks for a window; False where none has a step to count on.

        With the ``plan`` of another host: of the same steps, if they are still to come.
        """
        ranks = [r for r in self.job.alive if r.ring is not None and r.iteration.border]
        mean_ns = self.job.mean_step_ns()
        if self._current is not None or not ranks or mean_ns is None or self._is_silent():
            return False
        num_steps = _FIRST_STEPS if mean_ns < _LONG_STEP_NS else 1
        if self.events_per_step is not None:
            pause_s = pause_s or self.parameters.window_pause_s
            num_steps = steps_that_fit(
                self.events_per_step, mean_ns, pause_s=pause_s, length_s=length_s
            )
        is_leader = self.team is not None and self.team.is_leader
        lead = math.ceil((_FAR_LEAD_S if is_leader else _LEAD_S) * NS_PER_S / mean_ns) + 1
        starts = find_starts({r.rank: _count(r) for r in ranks}, lead * _most_borders(ranks))
        number = len(self.done)
        if plan is not None:
            if max(_count(r) for r in ranks) >= plan.start:
                return False
            number, num_steps = plan.number, min(_MAX_STEPS, plan.num_steps)
            starts = dict.fromkeys(starts, plan.start)
        paths = {r.rank: self.folder / f"rank-{r.rank:05d}.{number}.json" for r in ranks}
        limit_s = _FAR_LEAD_S + 4 * (num_steps + 3) * mean_ns / NS_PER_S + 5
        window = Window(number, num_steps, time.monotonic(), limit_s, paths)
        if self.is_over_budget(pause_s):
            window.has_stacks = False
            window.problems.append(_OVER_BUDGET.format(number=self.events_per_step or 0))
        self._current = window
        if is_leader and self.team is not None:
            start = min(starts.values())
            self.team.announce_window(WindowPlan(number=number, start=start, num_steps=num_steps))
        self.on_change(True)
        answers = {r.rank: self._pool.submit(self._arm_one, r, window, starts) for r in ranks}
        for rank, answer in answers.items():
            if problem := answer.result():
                window.problems.append(problem)
                paths.pop(rank)
        if not paths:
            self._finish()
        return bool(paths)

    def _arm_one(self, rank: WatchedRank, window: Window, starts: dict[int, int]) -> str | None:
        assert rank.iteration.border is not None
        kind = rank.iteration.border[0]
        start = starts[rank.rank]
        try:
            ask(
                self.folder,
                rank.rank,
                "window",
                limit_s=1.0,
                id=window.number,
                word=_WORDS[kind][0],
                start=start,
                stop=start + window.num_steps * rank.iteration.borders_per_step,
                max_s=self.parameters.window_s,
                path=str(window.paths[rank.rank]),
                stacks=window.has_stacks,
            )
        except NoAnswer as error:
            return f"window: {error}"
        return None

    def poll(self) -> Window | None:
        """Move on; return the window that has just been finished."""
        window = self._current
        if window is None:
            return None
        late = time.monotonic() - window.armed_at > window.limit_s or self._is_silent()
        for rank in list(window.paths):
            self._poll_rank(window, rank, late)
        if all(rank in window.exports and window.exports[rank].done() for rank in window.paths):
            return self._finish()
        return None

    def _is_silent(self) -> bool:
        """Whether no step comes any more: a job that is stuck is looked at without a window."""
        since_ns, mean_ns = self.job.silent_since_ns(), self.job.mean_step_ns()
        if since_ns is None or mean_ns is None:
            return False
        silent_s = (time.monotonic_ns() - since_ns) / NS_PER_S
        return silent_s >= rules.silence_limit_s(mean_ns, self.parameters)

    def _poll_rank(self, window: Window, rank: int, late: bool) -> None:
        if rank in window.exports:
            return
        watched = self.job.ranks[rank]
        if watched.ring is None:
            return
        if watched.ring.count(layout.W_WINDOW):
            window.opened.add(rank)
        is_over = not watched.ring.count(layout.W_WINDOW) and (
            rank in window.opened or self._is_past(watched)
        )
        if is_over or late or watched.ending is not None:
            window.exports[rank] = self._pool.submit(self._export, watched, window, late)

    def _is_past(self, watched: WatchedRank) -> bool:
        """Whether the rank passed its border between two polls: nothing is asked of it any more."""
        assert watched.ring is not None
        words = (layout.W_BORDER_OPTIMIZER, layout.W_BORDER_LOADER, layout.W_BORDER_MARKED)
        return all(watched.ring.count(word) == layout.NEVER for word in words)

    def _export(self, watched: WatchedRank, window: Window, late: bool) -> None:
        if watched.ending is not None:
            return  # its exit handler has written what there was
        try:
            if late:
                ask(self.folder, watched.rank, "window_stop", limit_s=3.0)
            result = ask(self.folder, watched.rank, "window_export", limit_s=30.0)
            window.results[watched.rank] = result
            if result.get("state") != "exported":
                window.problems.append(f"window of rank {watched.rank}: {result.get('state')}")
        except NoAnswer as error:
            window.problems.append(f"window: {error}")

    def _finish(self) -> Window | None:
        window, self._current = self._current, None
        if window is None:
            return None
        window.end_ns = time.time_ns()
        self.on_change(False)
        self.done.append(window)
        sizes = [path.stat().st_size for path in window.traces.values()]
        if sizes and window.has_stacks:
            self.events_per_step = max(sizes) / _BYTES_PER_EVENT / max(1, window.num_steps)
        return window

    def finish(self, limit_s: float) -> None:
        """Wait for the window under way, at most ``limit_s``; then let it go."""
        until = time.monotonic() + limit_s
        while self._current is not None and time.monotonic() < until:
            self.job.tick()
            self.poll()
            time.sleep(0.02)
        self._finish()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def find_starts(counts: dict[int, int], lead: int) -> dict[int, int]:
    """Return the count at which each rank is to begin, ``lead`` borders from now.

    Ranks in step begin at the same count. Where counts lie far apart (uneven inputs, a restart
    in the middle) each begins as many steps from now: collectives keep them together.
    """
    highest = max(counts.values())
    if highest - min(counts.values()) <= 2:
        return dict.fromkeys(counts, highest + lead)
    return {rank: count + lead for rank, count in counts.items()}


def _count(rank: WatchedRank) -> int:
    assert rank.iteration.border is not None and rank.ring is not None
    return rank.ring.count(_WORDS[rank.iteration.border[0]][1])


def _most_borders(ranks: list[WatchedRank]) -> int:
    return max(rank.iteration.borders_per_step for rank in ranks)
