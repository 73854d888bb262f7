"""The ranks of a live job as the agent sees them: rings, steps, signs of life, exits.

Longer than most modules: finding ranks and following them share what is known of each.
"""

import logging
import os
import time
from pathlib import Path

from eroica.collect import proc
from eroica.collect.asking import NoAnswer, ask
from eroica.collect.gather import RankCapture, has_written_ending, take_stacks
from eroica.collect.hook import layout
from eroica.collect.processes import LiveJob, LiveRank, find_jobs
from eroica.collect.rings import RingReader, find_rings
from eroica.config import Parameters
from eroica.watch.exits import ExitAlarm
from eroica.watch.iteration import Iteration
from eroica.watch.ranks import (
    Ending,
    WatchedRank,
    ending_of,
    training_places,
    training_stack,
)
from eroica.watch.rules import Activity

logger = logging.getLogger(__name__)

_SCHEDULE_EVERY_NS = 500_000_000
_ASK_EVERY_NS = 1_000_000_000
_SCAN_AFTER_NS = 3_000_000_000  # a hook makes its ring while Python starts
_SCAN_EVERY_NS, _MAX_SCAN_EVERY_NS = 1_000_000_000, 30_000_000_000
_TRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def needs_leave_to_trace(scope: Path = _TRACE_SCOPE) -> bool:
    """Whether the kernel (Yama) lets a process be traced only by whom it names."""
    return proc.read_text(str(scope)).strip() == "1"


class WatchedJob:
    """All ranks on this host of the job started by ``root_pid``."""

    def __init__(self, root_pid: int, folder: Path | None, parameters: Parameters) -> None:
        self.root_pid = root_pid
        self.folder = folder
        self.parameters = parameters
        self.ranks: dict[int, WatchedRank] = {}
        self.world_size = 0
        self.num_restarts = 0
        self._restarted: dict[int, Path] = {}
        self._left_pids: set[int] = set()
        self._exits = ExitAlarm()
        self._created_ns = time.monotonic_ns()
        self._last_scan_ns = 0
        self._scan_every_ns = _SCAN_EVERY_NS
        self._scheduled_ns = 0
        self._asked_ns = 0
        self._mean_of: list[tuple[int, int, int | None]] = []
        self._mean_ns: float | None = None

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
        if needs_leave_to_trace():
            self._ask_for_leave()
        now = time.monotonic_ns()
        if not self.root_pid:  # a detached agent: who has no ring is not its business
            return
        has_all = self.ranks and len(self.ranks) >= self.world_size > 0
        is_due = now - self._last_scan_ns > self._scan_every_ns
        if not has_all and now - self._created_ns > _SCAN_AFTER_NS and is_due:
            number, self._last_scan_ns = len(self.ranks), now
            self._scan()
            # Where the rest of the job is on other hosts, there is nothing to find for ever.
            is_vain = self.ranks and len(self.ranks) == number
            longer = min(2 * self._scan_every_ns, _MAX_SCAN_EVERY_NS)
            self._scan_every_ns = longer if is_vain else _SCAN_EVERY_NS

    @property
    def is_restarted(self) -> bool:
        """Whether ranks were started again after others had failed: ``follow`` goes over to them.

        Until then ``ranks`` are the old ones, so that how they ended can still be told.
        """
        return bool(self._restarted)

    def follow(self) -> None:
        """Go over to the ranks that a launcher started in the place of failed ones."""
        self.num_restarts += 1
        self._scan_every_ns = _SCAN_EVERY_NS
        logger.info("ranks were started again: %s", sorted(self._restarted))
        rings, self._restarted = self._restarted, {}
        for rank in list(self.ranks.values()):
            rank.ending = rank.ending or self._ending_of(rank)
            if rank.ending is not None or rank.rank in rings:
                if rank.ring is not None:
                    rank.ring.close()
                self._left_pids.add(rank.live.pid)
                del self.ranks[rank.rank]
        for rank_number, path in rings.items():
            self._take_ring(rank_number, path)

    def _take_ring(self, rank: int, path: Path) -> None:
        known = self.ranks.get(rank)
        try:
            if known is not None and known.ring is not None:
                if path.stat().st_ino == known.ring.inode:
                    return
                if self._has_failed(known):
                    self._restarted[rank] = path
                    return
            ring = RingReader(path)
            if ring.pid in self._left_pids:  # of a rank that failed; its successor has none yet
                ring.close()
                return
        except (OSError, ValueError) as error:
            logger.debug("ring of rank %d: %s", rank, error)
            return
        if known is not None and known.ring is not None:
            known.ring.close()  # a process of the same rank after another, or one anew in its place
        stat = proc.read_stat(ring.pid)
        live = LiveRank(rank, ring.pid, ring.local_rank, stat.start_ticks if stat else 0)
        self.ranks[rank] = WatchedRank(live, self._new_iteration(), ring)
        self.world_size = ring.world_size

    def _has_failed(self, rank: WatchedRank) -> bool:
        """Whether a rank of which there is a newer process ended other than by itself."""
        rank.ending = rank.ending or self._ending_of(rank)
        return rank.ending is not None and (rank.ending.is_failure or rank.ending.is_silent)

    def _ask_for_leave(self) -> None:
        """Have the hooks of new ranks allow this process and its children to trace them."""
        for rank in self.alive:
            is_ready = rank.ring is not None and rank.ring.position > 0
            if is_ready and not rank.is_leave_asked and self.folder is not None:
                rank.is_leave_asked = True
                try:
                    ask(self.folder, rank.rank, "allow_trace", limit_s=0.5, pid=os.getpid())
                except NoAnswer as error:
                    logger.debug("leave to trace: %s", error)

    def _scan(self) -> None:
        for job in find_jobs(below=self.root_pid):
            self.world_size = self.world_size or job.world_size
            for rank, live in job.ranks.items():
                if rank not in self.ranks:
                    self.ranks[rank] = WatchedRank(live, self._new_iteration())

    def _new_iteration(self) -> Iteration:
        return Iteration(self.parameters.learn_repeats, self.parameters.lost_events)

    # --- each tick

    def wait(self, seconds: float) -> None:
        """Sleep until the next look; the end of a rank is noticed at once."""
        self._exits.follow(rank.live.pid for rank in self.alive)
        if self._exits.wait(seconds):
            self.tick()

    @property
    def has_failed(self) -> bool:
        """Whether a rank failed, or ranks that ended without a word were started again."""
        return self.is_restarted or any(
            rank.ending is not None and rank.ending.is_failure for rank in self.ranks.values()
        )

    def tick(self) -> None:
        """Read new events and notice exits."""
        now = time.monotonic_ns()
        # Where the kernel tells of an end (``wait``), asking it ten times a second is for nothing.
        is_asked = now - self._asked_ns > _ASK_EVERY_NS
        self._asked_ns = now if is_asked else self._asked_ns
        for rank in self.ranks.values():
            if rank.ring is not None:
                rank.iteration.add(rank.ring.read_new())
            if rank.ending is None and (is_asked or self._may_have_ended(rank)):
                rank.ending = self._ending_of(rank)
        if now - self._scheduled_ns > _SCHEDULE_EVERY_NS:
            self._scheduled_ns = now
            for rank in self.ranks.values():
                if rank.ending is None and rank.iteration.is_learned:
                    rank.read_schedule()

    def _ending_of(self, rank: WatchedRank) -> Ending | None:
        return ending_of(rank, self.folder, self._exits.collected_status)

    def _may_have_ended(self, rank: WatchedRank) -> bool:
        if not self._exits.follows(rank.live.pid):
            return True
        return self.folder is not None and has_written_ending(self.folder, rank.rank)

    def silent_since_ns(self) -> int | None:
        """CLOCK_MONOTONIC of the newest event of any living rank; None before the first."""
        times = [rank.last_event_ns() for rank in self.alive]
        known = [value for value in times if value is not None]
        return max(known) if known else None

    def mean_step_ns(self) -> float | None:
        """Mean of the last steps over ranks; None before an iteration (or three steps) is known.

        Asked several times a look, so it is computed once for the same steps.
        """
        key = [(id(r), r.iteration.num_steps, r.iteration.period) for r in self.ranks.values()]
        if key != self._mean_of:
            self._mean_of, self._mean_ns = key, self._mean_step_ns()
        return self._mean_ns

    def _mean_step_ns(self) -> float | None:
        total, number = 0, 0
        for rank in self.ranks.values():
            steps = rank.iteration.steps
            if steps and (rank.iteration.is_learned or len(steps) >= 3):
                # A step begins where the one before ended: no need to add them up.
                last = min(len(steps), self.parameters.slow_mean_steps)
                total += steps[-1].end_ns - steps[-last].start_ns
                number += last
        return total / number if number else None

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
        take_stacks(captures, {}, are_children_wanted=False, folder=self.folder)
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
        waits = [proc.thread_state(pid, thread), *(stats[p].state for p in children if p in stats)]
        return Activity(
            time_ns=time.monotonic_ns(),
            position=rank.ring.position if rank.ring is not None else 0,
            training_cpu_ns=proc.thread_cpu_ns(pid, thread)[0],
            total_cpu_ns=sum(cpu for cpu, _ in times),
            children_cpu_ns=sum(cpu for cpu, _ in times[1:]),
            is_in_storage="D" in waits,
            stack=training_stack(rank) if is_retired_wanted else 0,
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
        self._exits.close()
        for rank in self.ranks.values():
            if rank.ring is not None:
                rank.ring.close()
