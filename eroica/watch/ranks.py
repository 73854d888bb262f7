"""One rank of a live job: its process, its ring, what was learned of it and how it ended."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eroica.collect import proc
from eroica.collect.gather import StackSample, read_ending
from eroica.collect.processes import LiveRank
from eroica.collect.rings import RingReader
from eroica.records import RankExit, StepTimes
from eroica.watch.evidence import read_exit
from eroica.watch.iteration import Iteration


@dataclass
class Ending:
    """How a rank ended, as far as the outside can tell."""

    exit_code: int | None
    time_ns: int
    story: dict[str, object] | None = None

    is_silent: bool = False
    """It is gone, and neither the kernel nor the hook said how: killed, most likely."""

    @property
    def is_failure(self) -> bool:
        return bool(self.exit_code) or bool(self.story and self.story.get("error_type"))


@dataclass
class WatchedRank:
    """One rank: its process, its ring where the hook runs, what was learned of it."""

    live: LiveRank
    iteration: Iteration
    ring: RingReader | None = None
    ending: Ending | None = None
    is_leave_asked: bool = False
    """Whether its hook was asked to let us trace it."""
    stacks: list[StackSample] = field(default_factory=list)
    schedule: list[tuple[int, int]] = field(default_factory=list)
    """Main thread, (on a CPU, waiting for one) in ns: when learned, and last."""

    def read_schedule(self) -> None:
        """Note what the kernel says of the main thread's turns on a CPU."""
        now = proc.thread_cpu_ns(self.live.pid, self.live.pid)
        if now[0]:
            self.schedule[1:] = [now]

    @property
    def scheduled_ns(self) -> tuple[int, int] | None:
        """Time on a CPU and time waiting for one since the iteration was learned."""
        if len(self.schedule) < 2:
            return None
        (cpu, wait), (last_cpu, last_wait) = self.schedule[0], self.schedule[-1]
        return last_cpu - cpu, last_wait - wait

    @property
    def rank(self) -> int:
        return self.live.rank

    def last_event_ns(self) -> int | None:
        """CLOCK_MONOTONIC of the last event."""
        event = self.ring.last_event() if self.ring is not None else None
        return event.time_ns if event is not None else None

    def step_times(self) -> StepTimes | None:
        """Return the steps in Unix time; None where none was seen."""
        steps = list(self.iteration.steps)
        if not steps or self.ring is None:
            return None
        offset = self.ring.unix_offset_ns
        has_data = any(step.data_ns for step in steps)
        return StepTimes(
            start_ns=tuple(step.start_ns + offset for step in steps),
            duration_ns=tuple(step.duration_ns for step in steps),
            data_ns=tuple(step.data_ns for step in steps) if has_data else (),
            optimizer_ns=tuple(step.optimizer_ns for step in steps),
            first_step=self.iteration.num_steps - len(steps),
        )


def ending_of(
    rank: WatchedRank,
    folder: Path | None,
    collected_status: Callable[[int], int | None] = lambda pid: None,
) -> Ending | None:
    """Return how a rank ended, as far as the kernel and its hook tell; None while it lives.

    ``collected_status`` gives the wait status of a pid that its launcher was quicker to collect.
    """
    story = read_ending(folder, rank.rank, rank.live.pid) if folder is not None else None
    stat = proc.read_stat(rank.live.pid)
    is_gone = stat is None or (
        rank.live.start_ticks != 0 and stat.start_ticks != rank.live.start_ticks
    )
    if is_gone:
        status = collected_status(rank.live.pid)
        if status is not None:
            return Ending(_exit_code(status), time.time_ns(), story)
        # Python's own end sets the flag, whatever the exit code; a signal does not.
        is_silent = story is None and rank.ring is not None and not rank.ring.is_exiting
        return Ending(None, time.time_ns(), story, is_silent)
    assert stat is not None
    if stat.state in "ZX":
        return Ending(_exit_code(stat.exit_code), time.time_ns(), story)
    if story is not None and story.get("error_type"):
        # It is on its way out: the others are still there to be looked at.
        return Ending(None, time.time_ns(), story)
    return None


def _exit_code(status: int) -> int:
    """Return what a wait status says: the exit code, or the signal's number below zero."""
    return -(status & 0x7F) if status & 0x7F else status >> 8


def exit_of(ending: Ending | None) -> RankExit | None:
    """Return a rank's end as evidence; one without a word is still an end."""
    if ending is None:
        return None
    if ending.is_silent:
        return RankExit(time_ns=ending.time_ns)
    return read_exit(ending.story, ending.exit_code)


def training_places(rank: WatchedRank) -> tuple[str, ...]:
    """Return the user functions on the training thread's newest stack, outermost first."""
    return tuple(
        f"{os.path.basename(frame['filename'])}:{frame['name']}"  # noqa: PTH119
        for frame in reversed(_training_frames(rank))
        if is_user_file(frame["filename"])
    )


def training_stack(rank: WatchedRank) -> int:
    """Return a number for the training thread's newest stack, lines and all; 0 without one."""
    frames = _training_frames(rank)
    return hash(tuple((f["filename"], f["name"], f.get("line")) for f in frames)) if frames else 0


def _training_frames(rank: WatchedRank) -> list[dict[str, Any]]:
    """Innermost first."""
    if not rank.stacks:
        return []
    wanted = (rank.ring.thread if rank.ring is not None else None) or rank.live.pid
    for thread in rank.stacks[-1].threads:
        if thread.get("os_thread_id") == wanted:
            frames: list[dict[str, Any]] = thread["frames"]
            return frames
    return []


def is_user_file(path: str) -> bool:
    """Whether a frame's file is the user's, told by its path alone: the job has its own Python."""
    foreign = ("/site-packages/", "/dist-packages/", "/lib/python3.", "eroica/collect/")
    return not path.startswith("<") and not any(part in path for part in foreign)
