"""Stacks of all ranks at the moment a step runs far over the median.

Rare stalls (garbage collection, checkpoints, evaluation on one rank, recompilation) fall outside
any window of a few steps; this is how they are seen.
"""

import logging
import time
from dataclasses import dataclass, field

from eroica.collect.gather import RankCapture, take_stacks
from eroica.config import Parameters
from eroica.records import StallSample
from eroica.watch import rules
from eroica.watch.evidence import read_stack_sample
from eroica.watch.live import WatchedJob

logger = logging.getLogger(__name__)

_MIN_STALL_NS = 40_000_000  # shorter than the agent's look is nothing it could catch
_MAX_SAMPLES = 150
_MAX_KEPT = 40  # of a watch that goes on: stacks of days ago say nothing of what is slow now
_MAX_PER_STEP = 3
_MIN_GAP_S = 0.15


@dataclass
class Allowance:
    """Some samples at once, then one every so many seconds: py-spy costs the host 50 ms a rank.

    For a job of weeks: on a busy host steps scatter, and each late one would be sampled.
    """

    burst: float = 5.0
    every_s: float = 30.0
    _left: float = 0.0
    _since: float | None = None

    def take(self, now: float) -> bool:
        """Whether a sample may be taken now; ``now`` is monotonic."""
        grown = self.burst if self._since is None else (now - self._since) / self.every_s
        self._left, self._since = min(self.burst, self._left + grown), now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass
class StallWatch:
    """Takes the samples and holds them by rank, the last ones of a long job."""

    job: WatchedJob
    parameters: Parameters
    allowance: Allowance | None = None
    """None for a short watch: as many as it holds."""
    samples: dict[int, list[StallSample]] = field(default_factory=dict)
    num_taken: int = 0
    _taken_at: float = 0.0
    _of_step: dict[tuple[int, int], int] = field(default_factory=dict)

    def poll(self, now: float) -> bool:
        """Look whether a step stalls and sample if so; True where a sample was taken."""
        if now - self._taken_at < _MIN_GAP_S:
            return False
        if self.allowance is None and self.num_taken >= _MAX_SAMPLES:
            return False
        stalled = self._stalled()
        if stalled is None:
            return False
        rank, step, elapsed_ns = stalled
        count = self._of_step.get((rank, step), 0)
        # Later samples of one step come ever later: a long stall is not sampled all the time.
        if count >= _MAX_PER_STEP or (count and now - self._taken_at < 0.3 * 2**count):
            return False
        if self.allowance is not None and not self.allowance.take(now):
            return False
        if len(self._of_step) > _MAX_SAMPLES:
            self._of_step.clear()
        self._of_step[rank, step] = count + 1
        self._taken_at = now
        self.num_taken += 1
        self._take(elapsed_ns)
        return True

    def _stalled(self) -> tuple[int, int, int] | None:
        """Return (rank, step, elapsed) of the rank that has been longest in its step."""
        now_ns = time.monotonic_ns()
        worst: tuple[int, int, int] | None = None
        for rank in self.job.alive:
            steps = rank.iteration.steps
            if rank.ring is None or len(steps) < 5:
                continue
            elapsed = now_ns - steps[-1].end_ns
            if elapsed < _MIN_STALL_NS:
                continue
            last = [steps[-1 - i].duration_ns for i in range(min(len(steps), 50))]
            if not rules.is_stalling(elapsed, last, self.parameters):
                continue
            if worst is None or elapsed > worst[2]:
                worst = (rank.rank, rank.iteration.num_steps, elapsed)
        return worst

    def _take(self, elapsed_ns: int) -> None:
        captures = {
            r.rank: RankCapture(r.rank, r.live.pid, r.live.local_rank) for r in self.job.alive
        }
        take_stacks(captures, {}, are_children_wanted=False, folder=self.job.folder)
        for rank, capture in captures.items():
            steps = self.job.ranks[rank].iteration
            for sample in capture.stacks:
                stacks = read_stack_sample(sample, rank)
                if stacks is not None:
                    kept = self.samples.setdefault(rank, [])
                    kept.append(
                        StallSample(step=steps.num_steps, elapsed_ns=elapsed_ns, stacks=stacks)
                    )
                    del kept[: -(_MAX_SAMPLES if self.allowance is None else _MAX_KEPT)]
