"""The ranks of a live job as the agent sees them: rings, steps, signs of life, exits."""

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from eroica.collect import proc
from eroica.collect.asking import NoAnswer, ask
from eroica.collect.gather import RankCapture, StackSample, read_ending, take_stacks
from eroica.collect.hook import layout
from eroica.collect.processes import LiveJob, LiveRank, find_jobs
from eroica.collect.rings import RingReader, find_rings
from eroica.config import Parameters
from eroica.records import StepTimes
from eroica.watch.iteration import Iteration
from eroica.watch.rules import Activity

logger = logging.getLogger(__name__)

_SCHEDULE_EVERY_NS = 500_000_000


@dataclass
class Ending:
    """How a rank ended, as far as the outside can tell."""

    exit_code: int | None
    time_ns: int
    story: dict[str, object] | None = None

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


class WatchedJob:
    """All ranks on this host of the job started by ``root_pid``."""

    def __init__(self, root_pid: int, folder: Path | None, parameters: Parameters) -> None:
        self.root_pid = root_pid
        self.folder = folder
        self.parameters = parameters
        self.ranks: dict[int, WatchedRank] = {}
        self.world_size = 0
        self.num_restarts = 0
        self._created_ns = time.monotonic_ns()
        self._last_scan_ns = 0
        self._scheduled_ns = 0

    @property
    def alive(self) -> list[WatchedRank]:
        return [rank for rank in self.ranks.values() if rank.ending is None]

    @property
    def is_learned(self) -> bool:
        return any(
            rank.iteration.is_learned or rank.iteration.is_slow_enough
            for rank in self.ranks.values()
        )

    def live_job(self, command: tuple[str, ...] = ()) -> LiveJob:
        """Return the job as ``collect`` gathers from it."""
        return LiveJob(
            key=str(self.root_pid),
            ranks={r.rank: r.live for r in self.ranks.values() if r.ending is None},
            world_size=self.world_size or len(self.ranks),
            launcher_pid=self.root_pid,
            command=command,
            directory=None,
            folder=str(self.folder) if any(r.ring for r in self.ranks.values()) else None,
        )

    def adopt(self, job: LiveJob) -> None:
        """Take over the ranks of a job found in /proc, and their rings where there are any."""
        self.world_size = job.world_size
        for rank, live in job.ranks.items():
            self.ranks[rank] = WatchedRank(live, self._new_iteration())
        for rank, path in find_rings(self.folder).items() if self.folder is not None else ():
            if rank in self.ranks:
                self._take_ring(rank, path)

    # --- finding ranks

    def refresh(self) -> None:
        """Look for new ranks and restarts: by rings, and by /proc where no ring comes."""
        if self.folder is not None:
            for rank, path in find_rings(self.folder).items():
                self._take_ring(rank, path)
        now = time.monotonic_ns()
        if not self.root_pid:  # a detached agent: who has no ring is not its business
            return
        has_all = self.ranks and len(self.ranks) >= self.world_size > 0
        if not has_all and now - self._created_ns > 3e9 and now - self._last_scan_ns > 1e9:
            self._last_scan_ns = now
            self._scan()

    def _take_ring(self, rank: int, path: Path) -> None:
        known = self.ranks.get(rank)
        try:
            if known is not None and known.ring is not None:
                if path.stat().st_ino == known.ring.inode:
                    return
                self.num_restarts += 1
                logger.info("rank %d was started again", rank)
            ring = RingReader(path)
        except (OSError, ValueError) as error:
            logger.debug("ring of rank %d: %s", rank, error)
            return
        stat = proc.read_stat(ring.pid)
        live = LiveRank(rank, ring.pid, ring.local_rank, stat.start_ticks if stat else 0)
        self.ranks[rank] = WatchedRank(live, self._new_iteration(), ring)
        self.world_size = ring.world_size

    def _scan(self) -> None:
        for job in find_jobs(below=self.root_pid):
            self.world_size = self.world_size or job.world_size
            for rank, live in job.ranks.items():
                if rank not in self.ranks:
                    self.ranks[rank] = WatchedRank(live, self._new_iteration())

    def _new_iteration(self) -> Iteration:
        return Iteration(self.parameters.learn_repeats, self.parameters.lost_events)

    # --- each tick

    def tick(self) -> None:
        """Read new events and notice exits."""
        for rank in self.ranks.values():
            if rank.ring is not None:
                rank.iteration.add(rank.ring.read_new())
            if rank.ending is None:
                rank.ending = self._ending_of(rank)
        now = time.monotonic_ns()
        if now - self._scheduled_ns > _SCHEDULE_EVERY_NS:
            self._scheduled_ns = now
            for rank in self.ranks.values():
                if rank.ending is None and rank.iteration.is_learned:
                    rank.read_schedule()

    def _ending_of(self, rank: WatchedRank) -> Ending | None:
        story = None
        if self.folder is not None:
            story = read_ending(self.folder, rank.rank, rank.live.pid)
        stat = proc.read_stat(rank.live.pid)
        is_gone = stat is None or (
            rank.live.start_ticks != 0 and stat.start_ticks != rank.live.start_ticks
        )
        if is_gone:
            return Ending(None, time.time_ns(), story)
        assert stat is not None
        if stat.state in "ZX":
            code = stat.exit_code
            value = -(code & 0x7F) if code & 0x7F else code >> 8
            return Ending(value, time.time_ns(), story)
        if story is not None and story.get("error_type"):
            # It is on its way out: the others are still there to be looked at.
            return Ending(None, time.time_ns(), story)
        return None

    def silent_since_ns(self) -> int | None:
        """CLOCK_MONOTONIC of the newest event of any living rank; None before the first."""
        times = [rank.last_event_ns() for rank in self.alive]
        known = [value for value in times if value is not None]
        return max(known) if known else None

    def mean_step_ns(self) -> float | None:
        """Mean of the last steps over ranks; None before an iteration (or three steps) is known."""
        durations: list[int] = []
        for rank in self.ranks.values():
            steps = rank.iteration.steps
            if rank.iteration.is_learned or len(steps) >= 3:
                last = list(steps)[-self.parameters.slow_mean_steps :]
                durations += [step.duration_ns for step in last]
        return sum(durations) / len(durations) if durations else None

    # --- signs of life

    def activity(self, *, are_places_wanted: bool = False) -> dict[int, Activity]:
        """Look at all living ranks once; stacks and collectives only where they are wanted."""
        places: dict[int, tuple[str, ...]] = {}
        if are_places_wanted:
            self.take_samples()
            places = {rank.rank: training_places(rank) for rank in self.alive}
        stats = proc.all_stats()
        return {
            rank.rank: self._activity_of(rank, places.get(rank.rank, ()), stats, are_places_wanted)
            for rank in self.alive
        }

    def take_samples(self) -> None:
        """Take one stack sample of each living rank; the last few are kept."""
        captures = {r.rank: RankCapture(r.rank, r.live.pid, r.live.local_rank) for r in self.alive}
        take_stacks(captures, {}, are_children_wanted=False)
        for rank, capture in captures.items():
            watched = self.ranks[rank]
            watched.stacks = [*watched.stacks[-3:], *capture.stacks]

    def _activity_of(
        self,
        rank: WatchedRank,
        places: tuple[str, ...],
        stats: dict[int, proc.Stat],
        is_retired_wanted: bool,
    ) -> Activity:
        pid = rank.live.pid
        children = proc.descendants(pid, stats)
        thread = (rank.ring.thread if rank.ring is not None else None) or pid
        own = stats.get(pid)
        times = [proc.process_cpu_ns(p) for p in [pid, *children]]
        return Activity(
            time_ns=time.monotonic_ns(),
            position=rank.ring.position if rank.ring is not None else 0,
            training_cpu_ns=proc.thread_cpu_ns(pid, thread)[0],
            total_cpu_ns=sum(cpu for cpu, _ in times),
            waiting_ns=sum(wait for _, wait in times),
            io_bytes=sum(proc.io_bytes(p) for p in [pid, *children]),
            retired=self._retired(rank) if is_retired_wanted else 0,
            places=places,
            is_leaving=rank.ring is not None and rank.ring.is_exiting,
            is_profiled=rank.ring is not None and bool(rank.ring.count(layout.W_WINDOW)),
            is_stopped=own is not None and own.state in "Tt",
        )

    def _retired(self, rank: WatchedRank) -> int:
        if rank.ring is None or self.folder is None:
            return 0
        try:
            status = ask(self.folder, rank.rank, "collectives", limit_s=0.5)
        except NoAnswer:
            return 0
        return sum(int(group.get("last_completed_collective", 0)) for group in status.values())

    def close(self) -> None:
        for rank in self.ranks.values():
            if rank.ring is not None:
                rank.ring.close()


def training_places(rank: WatchedRank) -> tuple[str, ...]:
    """Return the user functions on the training thread's newest stack, outermost first."""
    if not rank.stacks:
        return ()
    wanted = (rank.ring.thread if rank.ring is not None else None) or rank.live.pid
    for thread in rank.stacks[-1].threads:
        if thread.get("os_thread_id") == wanted:
            return tuple(
                f"{os.path.basename(frame['filename'])}:{frame['name']}"  # noqa: PTH119
                for frame in reversed(thread["frames"])
                if is_user_file(frame["filename"])
            )
    return ()


def is_user_file(path: str) -> bool:
    """Whether a frame's file is the user's, told by its path alone: the job has its own Python."""
    foreign = ("/site-packages/", "/dist-packages/", "/lib/python3.", "eroica/collect/")
    return not path.startswith("<") and not any(part in path for part in foreign)
