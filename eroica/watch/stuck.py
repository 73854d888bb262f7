"""Applies the stuck rule to a live job: silence first, then signs of life, a second apart."""

import logging
import time
from collections.abc import Callable

from eroica.config import Parameters
from eroica.units import NS_PER_S
from eroica.watch import rules
from eroica.watch.live import WatchedJob

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_RANK_LEFT_S = 3.0
_MAX_LOOKS = 300  # a silence of hours in which work is done is looked at each second


class StuckWatch:
    """Polled at every tick; looking closely costs some 15 ms a rank and only silent jobs pay."""

    def __init__(
        self,
        job: WatchedJob,
        parameters: Parameters,
        progress: Callable[[str], None],
        *,
        is_patient: bool = False,
    ) -> None:
        self.job = job
        self.parameters = parameters
        self.progress = progress
        self.is_patient = is_patient
        self.onset_ns: int | None = None
        """Unix time of the last event, once stuck."""
        self._looks: dict[int, rules.Activity] | None = None
        self._stacks: dict[int, list[int]] = {}
        """Of the last looks of this silence, by rank."""
        self._quiet_looks: dict[int, rules.Activity] = {}
        self._looked_at = 0.0
        self._progress_at = time.monotonic()
        self._left_at: float | None = None

    def poll(self, now: float) -> bool:
        """Return whether the job is stuck; ``now`` is CLOCK_MONOTONIC in seconds."""
        if not self.job.alive:
            return False
        silent_s, limit_s = self._silence(now)
        if silent_s < limit_s - _LOOK_S:
            self._looks = None
            if self.job.mean_step_ns() is None:
                self._note_progress(now)
            return False
        if self._looks is None:
            self._stacks = {}
            self.progress(f"silent for {silent_s:.0f} s: looking for signs of life")
            self._look(now)
            return False
        if now - self._looked_at < _LOOK_S:
            return False
        return self._judge(now, silent_s, limit_s)

    def _judge(self, now: float, silent_s: float, limit_s: float) -> bool:
        before = self._looks or {}
        self._look(now)
        signs = [
            rules.progress_between(
                before[rank], look, is_varied=rules.is_varied(self._stacks[rank])
            )
            for rank, look in (self._looks or {}).items()
            if rank in before
        ]
        if rules.is_stuck(silent_s, limit_s, signs, is_patient=self.is_patient):
            self.onset_ns = time.time_ns() - int(silent_s * NS_PER_S)
            return True
        if signs and max(signs) is not rules.Progress.NONE and self.job.mean_step_ns() is None:
            self._progress_at = now
            self._looks = None
        return False

    def _silence(self, now: float) -> tuple[float, float]:
        """Return how long the job has been silent and how long it may be, in seconds."""
        mean_ns = self.job.mean_step_ns()
        limit_s = rules.silence_limit_s(mean_ns, self.parameters)
        if self._has_lost_a_rank(now):
            limit_s = min(limit_s, self.parameters.stuck_min_s)
        if mean_ns is None:
            return now - self._progress_at, limit_s
        since_ns = self.job.silent_since_ns()
        return (now - since_ns / NS_PER_S if since_ns else 0.0), limit_s

    def _has_lost_a_rank(self, now: float) -> bool:
        if all(rank.ending is None for rank in self.job.ranks.values()):
            return False
        self._left_at = self._left_at or now
        return now - self._left_at > _RANK_LEFT_S

    def _look(self, now: float) -> None:
        self._looks = self.job.activity(are_places_wanted=True)
        self._looked_at = now
        for rank, look in self._looks.items():
            stacks = self._stacks.setdefault(rank, [])
            stacks.append(look.stack)
            del stacks[:-_MAX_LOOKS]

    def _note_progress(self, now: float) -> None:
        """Before anything is learned: remember when something last happened, without stacks."""
        if now - self._looked_at < _LOOK_S:
            return
        before, self._looked_at = self._quiet_looks, now
        self._quiet_looks = self.job.activity()
        for rank, look in self._quiet_looks.items():
            if rank not in before or rules.progress_between(before[rank], look):
                self._progress_at = now
