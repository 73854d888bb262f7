"""Watching a job for its whole life: incidents are told as they happen, the job runs on.

Slow: the mean of the last 50 steps more than 5 % over the recent best; then one window and a
short sampling profile, not again within ten minutes unless it became a further 5 % slower, at
most six a day. Stuck or failed: once until steps come again. Longer than most modules: the order
of looks and tellings is one loop's state.
"""

import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from eroica.collect.gather import RankCapture, gather, read_what_is_left
from eroica.columns import RankPatterns
from eroica.config import Parameters
from eroica.records import JobEvidence, Samples
from eroica.units import NS_PER_S
from eroica.watch import rules
from eroica.watch.evidence import build, build_rank
from eroica.watch.following import Following
from eroica.watch.hardware import HARDWARE_NS, HardwareWatch
from eroica.watch.live import WatchedJob
from eroica.watch.looks import CloseLooks
from eroica.watch.metrics import Metrics
from eroica.watch.ranks import exit_of
from eroica.watch.result import WatchResult
from eroica.watch.stalls import Allowance, StallWatch
from eroica.watch.stuck import StuckWatch
from eroica.watch.team import Team

logger = logging.getLogger(__name__)

TICK_S = 0.2  # ends of ranks are told of at once; waking up is most of what idle watching costs
_SETTLE_STEPS = 20  # before the healthy window: the first steps are not like the rest
_MEASURE_S = 3.0
_MAX_FAULTS = 5  # in a row
_LAST_WORD_S = 8.0


class Continuous:
    """The loop; ``is_over`` says when the job has ended."""

    def __init__(
        self,
        job: WatchedJob,
        folder: Path,
        parameters: Parameters,
        *,
        on_incident: Callable[[WatchResult], None],
        progress: Callable[[str], None],
        command: tuple[str, ...] = (),
        source_root: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.job = job
        self.folder = folder
        self.parameters = parameters
        self.on_incident = on_incident
        self.progress = progress
        self.command = command
        self.source_root = source_root
        self.metrics = metrics if metrics is not None else Metrics()
        self.stalls = StallWatch(job, parameters, Allowance())
        self.stuck = StuckWatch(job, parameters, progress, is_patient=True)
        self.policy = rules.WindowPolicy(parameters)
        # The first steps are not fed: they pass before the window of the healthy time.
        self.rule = rules.SlowRule(parameters, num_settling=0)
        self.hardware = HardwareWatch(job)
        self.team = Team(job, progress=progress)
        self.looks = CloseLooks(
            job, folder, parameters, hardware=self.hardware, team=self.team, source_root=source_root
        )
        self.following = Following(
            job, self.team, self.looks, evidence=self.evidence, progress=progress
        )
        self.state = "starting"
        self.recent_ns: float | None = None
        self.num_incidents = 0
        self._fed_steps = 0
        self._fed_pid: int | None = None
        self._told: str | None = None
        self._told_position = 0
        self._told_pids: set[int] = set()
        self._refreshed_at = 0.0
        self._is_baseline_taken = False

    def run(self, is_over: Callable[[], bool]) -> None:
        """Watch until the job is over, or until the watch fails again and again."""
        faults = 0
        while not is_over():
            try:
                self.job.wait(TICK_S)
                self.turn(time.monotonic())
                faults = 0
            except Exception as error:  # the job runs on, and so does what stands before it
                faults += 1
                logger.warning("the watch failed: %r", error)
                logger.debug("where it failed", exc_info=True)
                self.team.resume()
                if faults >= _MAX_FAULTS:
                    self.progress(f"watching is off ({error!r}); the job runs on")
                    return
        self.metrics.state = "ended"
        try:
            self._report_last_failure()
            self.job.tick()
        except Exception as error:  # what the job itself returned is told all the same
            logger.warning("the end of the watch failed: %r", error)
            logger.debug("where it failed", exc_info=True)

    def _report_last_failure(self) -> None:
        """The job of this host has ended by a failure that the host of rank 0 is to hear of."""
        until = time.monotonic() + _LAST_WORD_S
        while self.following.has_failed and self.team.is_follower and time.monotonic() < until:
            time.sleep(TICK_S)
            self.following.turn(time.monotonic(), has_new_failure=False, is_stuck=False)

    def turn(self, now: float) -> None:
        """Look once."""
        if now - self._refreshed_at > 0.5:
            self.job.refresh()
            self._note_metrics()
            self._refreshed_at = now  # a look that fails is a fault of each turn until it does not
        self.job.tick()
        self.hardware.poll()
        self.team.poll(now)
        if self._told is not None and self._position() > self._told_position + 40:
            self.progress("steps come again")
            self._told = None
        if self._told is None:
            self._judge(now)
        if self.job.is_restarted:
            self._follow_restart()

    def _note_metrics(self) -> None:
        rule, metrics = self.rule, self.metrics
        mean_ns, is_slow = self.job.mean_step_ns(), False
        if rule.mean_ns is not None and rule.best_ns is not None:
            is_slow = rule.mean_ns > self.parameters.slow_factor * rule.best_ns
        metrics.state = "slow" if self.state == "training" and is_slow else self.state
        metrics.step_s = mean_ns / NS_PER_S if mean_ns else None
        metrics.best_step_s = rule.best_ns / NS_PER_S if rule.best_ns else None
        metrics.num_steps = self._num_steps()
        metrics.ranks_alive, metrics.world_size = len(self.job.alive), self.job.world_size
        metrics.restarts = self.job.num_restarts
        metrics.missing_hosts = tuple(self.team.missing)

    def _follow_restart(self) -> None:
        """Watch the new ranks as a job of its own; its healthy time was the same code's."""
        self.job.follow()
        self.progress("ranks were started again")
        self.stuck = StuckWatch(self.job, self.parameters, self.progress, is_patient=True)
        self.rule = rules.SlowRule(self.parameters)
        self._told, self._fed_steps, self._fed_pid = None, 0, None

    def _has_new_failure(self) -> bool:
        """Whether a rank failed that was not told of; a job may go on without one of its ranks."""
        ended = {rank.live.pid: rank.ending for rank in self.job.ranks.values() if rank.ending}
        failed = {pid for pid, ending in ended.items() if ending.is_failure}
        is_new = not failed <= self._told_pids
        if self.job.is_restarted and not self._told_pids & ended.keys():
            is_new = True
        self._told_pids |= failed
        return is_new

    def _judge(self, now: float) -> None:
        has_failed, is_stuck = self._has_new_failure(), self.stuck.poll(now)
        if self.team.is_follower:
            self.state = "training" if self.job.is_learned else "starting"
            self.following.turn(now, has_new_failure=has_failed, is_stuck=is_stuck)
        elif has_failed or self.following.has_failed or self.team.has_failed_elsewhere:
            self.following.has_failed = False
            self._tell("failed", time.time_ns())
        elif self.team.is_stuck(is_stuck):
            self._tell("stuck", self.stuck.onset_ns)
        elif self.job.is_learned:
            self.state = "training"
            if not self._is_baseline_taken and self._num_steps() > _SETTLE_STEPS:
                self._is_baseline_taken = True
                self.looks.begin_baseline(*self.looks.take())
                self._skip_steps()
            elif self._feed() and self.rule.mean_ns is not None:
                if self.policy.allows(now, self.rule.mean_ns):
                    self.policy.note(now, self.rule.mean_ns)
                    self._tell_slow()
            else:
                self.stalls.poll(now)

    def _num_steps(self) -> int:
        return max((rank.iteration.num_steps for rank in self.job.ranks.values()), default=0)

    def _position(self) -> int:
        """Events of the rank that has most: ranks that leave take nothing away from it."""
        return max((r.ring.position for r in self.job.alive if r.ring is not None), default=0)

    def _reference(self) -> list[int]:
        """Durations of the lowest living rank's steps that were not fed to the slow rule yet."""
        rank = min(self.job.alive, key=lambda one: one.rank, default=None)
        if rank is None:
            return []
        num_steps, steps = rank.iteration.num_steps, rank.iteration.steps
        if rank.live.pid != self._fed_pid:  # the one before ended: the steps so far were fed
            self._fed_steps = num_steps if self._fed_pid is not None else 0
            self._fed_pid = rank.live.pid
        number = min(max(0, num_steps - self._fed_steps), len(steps))
        self._fed_steps = num_steps
        return [steps[i].duration_ns for i in range(len(steps) - number, len(steps))]

    def _feed(self) -> bool:
        is_slow = False
        for duration in self._reference():
            is_slow = self.rule.add(duration) or is_slow
        return is_slow

    def _skip_steps(self) -> None:
        """Steps that the profiler slowed down are not the job's."""
        self.job.tick()
        self._reference()

    # --- incidents

    def _tell_slow(self) -> None:
        self.progress("slower than before: taking a window")
        noticed_ns = time.time_ns()
        windows, samples = self.looks.take(is_sampled=True)
        self.team.call("slow")  # the other hosts read their traces meanwhile
        self._skip_steps()
        self._measure_now()
        number = next((one.number for one in reversed(windows) if one.traces), None)
        patterns = self.looks.read(windows, samples)
        self._tell("slow", noticed_ns, patterns, samples, window=number)
        self._told = None  # the policy says when the next one may come

    def _measure_now(self) -> None:
        """Say how long steps take now: the rule's mean still holds many from before."""
        until = time.monotonic() + _MEASURE_S
        fresh: list[int] = []
        while len(fresh) < 10 and time.monotonic() < until:
            time.sleep(TICK_S)
            self.job.tick()
            fresh += self._reference()
        if fresh:
            self.recent_ns = statistics.median(fresh)

    def _tell(
        self,
        hint: str,
        onset_ns: int | None,
        patterns: list[RankPatterns] | None = None,
        samples: dict[int, Samples] | None = None,
        window: int | None = None,
    ) -> None:
        self.state, self._told = hint, hint
        self._told_position = self._position()
        self.num_incidents += 1
        self.team.call(hint)
        # Windows came after a slow job was noticed; a stuck one has been silent for a while.
        noticed_ns = onset_ns if hint == "slow" else time.time_ns()
        result = WatchResult(
            evidence=self.evidence(hint, onset_ns, samples or {}, noticed_ns),
            patterns=patterns or [],
            baseline=self.looks.baseline,
            hint=hint,
            window=window,
            hardware=self.hardware.for_folder(
                self.job.ranks, time.time_ns(), self.job.live_job().host
            ),
        )
        self.looks.problems = []
        try:
            self.on_incident(self.team.join(result, wait=self.job.tick))
        except Exception as error:  # the job runs on, and so must its watch
            logger.warning("the %s incident could not be told: %r", hint, error)
            logger.debug("where it failed", exc_info=True)
        self.team.resume()

    def evidence(
        self,
        hint: str | None,
        onset_ns: int | None,
        samples: dict[int, Samples],
        noticed_ns: int | None = None,
    ) -> JobEvidence:
        """Gather from all living ranks and join it with what is known of them."""
        captures: dict[int, RankCapture] = {}
        if self.job.alive:
            number = 2 if hint == "stuck" else 1
            live = self.job.live_job(self.command)
            captures = {c.rank: c for c in gather(live, num_samples=number, progress=self.progress)}
            self.job.tick()  # the end of one may come a moment after the others' complaint of it
        host = self.job.live_job().host
        if hint == "failed":
            self.hardware.refresh()
        since_ns = time.time_ns() - HARDWARE_NS
        ranks = []
        for rank in self.job.ranks.values():
            capture = captures.get(rank.rank) or RankCapture(rank.rank, rank.live.pid)
            read_what_is_left(capture, self.folder)
            last = rank.last_event_ns()
            offset = rank.ring.unix_offset_ns if rank.ring is not None else 0
            ranks.append(
                build_rank(
                    capture,
                    host=host,
                    exit=exit_of(rank.ending),
                    steps=rank.step_times(),
                    stalls=self.stalls.samples.get(rank.rank, ()),
                    samples=samples.get(rank.rank),
                    last_event_ns=last + offset if last is not None else None,
                    counters=self.hardware.of_rank(rank.rank, since_ns),
                )
            )
        best, recent = self.rule.best_ns, self.recent_ns
        return build(
            ranks,
            world_size=self.job.world_size or len(ranks),
            command=self.command,
            source_root=self.source_root,
            hint=hint,
            onset_ns=onset_ns,
            detected_ns=noticed_ns,
            window_ns=self.looks.windows.last_ns if hint == "slow" else None,
            taken_ns=time.time_ns(),
            warnings=self.looks.problems,
            step_ms_before=best / NS_PER_S * 1e3 if best else None,
            step_ms_now=recent / NS_PER_S * 1e3 if recent else None,
            hosts=[self.hardware.of_host(host, since_ns)],
        )

    def last_evidence(self, hint: str) -> JobEvidence:
        """Return what is left to tell at the job's end; nothing where even that fails."""
        try:
            return self.evidence(hint, None, {})
        except Exception as error:
            logger.warning("what is left of the job could not be read: %r", error)
            return build([], world_size=self.job.world_size, hint=hint)

    def close(self) -> None:
        self.team.close()
        self.looks.close()
        self.hardware.close()
