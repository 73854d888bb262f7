"""``eroica run``: starts a command, watches its ranks and, with ``once``, ends with one verdict.

Order of verdicts: failed before stuck before slow before healthy. Nothing here decides on a
cause: the evidence goes to localization. Long because the stages of one watch share its state
and are read in the order in which they happen.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from eroica.collect.gather import RankCapture, gather, read_what_is_left
from eroica.columns import HardwareSamples, RankPatterns
from eroica.config import Parameters, load
from eroica.records import CounterUse, HostEvidence, JobEvidence, StepTimes
from eroica.watch import rules, warm
from eroica.watch.command import Command, make_folder
from eroica.watch.evidence import build, build_rank, read_settings
from eroica.watch.hardware import HARDWARE_NS, HardwareWatch
from eroica.watch.live import WatchedJob
from eroica.watch.metrics import Metrics
from eroica.watch.nsight import Nsight
from eroica.watch.ranks import WatchedRank, exit_of
from eroica.watch.result import WatchResult
from eroica.watch.stuck import StuckWatch
from eroica.watch.team import Team
from eroica.watch.watching import Collection

logger = logging.getLogger(__name__)

TICK_S = 0.05
_NOTHING_LEARNED_S = 60.0
_LAUNCHER_ENDS_S = 3.0


def watch(
    command: Sequence[str],
    *,
    once: bool = True,
    after_s: float = 30.0,
    output: IO[bytes] | None = None,
    source_root: str | None = None,
    keep_traces: Path | None = None,
    parameters: Parameters | None = None,
    progress: Callable[[str], None] = lambda text: None,
    on_incident: Callable[[WatchResult], None] | None = None,
    metrics: Metrics | None = None,
    nsys: Path | None = None,
) -> WatchResult:
    """Run ``command`` under watch; its output goes to ``output`` (stderr).

    ``once``: until stuck, a rank exits, the command ends, or ``after_s`` seconds of training
    after the iteration is learned (60 s from the start if nothing is); then the job is ended
    with all its processes. Else the job runs to its end, ``on_incident`` is called for each
    incident and ``metrics`` are kept. ``nsys``, with ``once``: Nsight Systems records some steps
    into that folder, not the profiler. Raises InputError where the command cannot be started.
    """
    if not once:
        from eroica.watch.agent import watch_on

        return watch_on(
            command,
            on_incident=on_incident or (lambda result: None),
            source_root=source_root,
            parameters=parameters or load(),
            progress=progress,
            metrics=metrics,
        )
    watcher = Watcher(
        command,
        after_s,
        output,
        source_root,
        parameters or load(),
        progress,
        keep_traces,
        Nsight(nsys) if nsys is not None else None,
    )
    try:
        return watcher.run()
    finally:
        watcher.close()


class Watcher:
    """One run of a command and what is known of it so far."""

    def __init__(
        self,
        words: Sequence[str],
        after_s: float,
        output: IO[bytes] | None,
        source_root: str | None,
        parameters: Parameters,
        progress: Callable[[str], None],
        keep_traces: Path | None = None,
        nsight: Nsight | None = None,
    ) -> None:
        self.parameters = parameters
        self.progress = progress
        self.after_s = after_s
        self.source_root = source_root
        self.folder = make_folder()
        self.started = time.monotonic()
        started = nsight.wrap(words) if nsight is not None else words
        self.command = Command(started, self.folder, output=output)
        self.job = WatchedJob(self.command.pid, self.folder, parameters)
        self.hardware = HardwareWatch(self.job)
        self.collection = Collection(
            self.job, self.folder, parameters, after_s, progress, self.hardware
        )
        self.stuck = StuckWatch(self.job, parameters, progress)
        self.team = Team(self.job, progress=progress)
        self.collection.join(self.team)
        self.collection.nsight = nsight
        self._is_handed_on = False
        self.keep_traces = keep_traces
        self.learned_at: float | None = None
        self.warnings: list[str] = []
        self.onset_ns: int | None = None
        self.detected_ns: int | None = None
        self._refreshed_at = 0.0
        self.counters: dict[int, dict[str, CounterUse]] = {}
        self.host: HostEvidence | None = None
        self.samples: list[HardwareSamples] = []

    # --- the loop

    def run(self) -> WatchResult:
        self.progress("starting " + " ".join(self.command.words))
        hint = None
        while hint is None:
            self.job.wait(TICK_S)
            is_ended = self.command.exit_code() is not None
            hint = self.team.agree(self._turn(), is_ended=is_ended)
        result = self.team.join(self._finish("" if hint == "unknown" else hint))
        self._is_handed_on = result.team is not None
        return result

    def _turn(self) -> str | None:
        """Look once; return the hint when the watch is over."""
        now = time.monotonic()
        if now - self._refreshed_at > 0.25:
            self._refreshed_at = now
            self.job.refresh()
        self.job.tick()
        self.hardware.poll()
        if self.learned_at is None and self.job.is_learned:
            self.learned_at = now
            warm.preload()
            self.progress("learned the iteration")
        if self.job.has_failed:
            self.onset_ns = time.time_ns()
            return "failed"
        code = self.command.exit_code()
        if code is not None:
            return "failed" if code else "healthy"
        if self.stuck.poll(now):
            self.onset_ns = self.stuck.onset_ns
            return "stuck"
        self.collection.poll(now)
        return self._is_over(now)

    def _is_over(self, now: float) -> str | None:
        if self.learned_at is not None:
            return "healthy" if now - self.learned_at >= self.after_s else None
        return "unknown" if now - self.started >= _NOTHING_LEARNED_S else None

    # --- the end

    def _finish(self, hint: str) -> WatchResult:
        self.detected_ns = time.time_ns() if hint in ("failed", "stuck") else None
        self.progress({"stuck": "stuck", "failed": "a rank failed"}.get(hint, "done watching"))
        if hint not in ("failed", "stuck"):
            self.collection.finish(is_running=self.command.exit_code() is None)
        captures = self._gather(hint)
        self._note_hardware()
        if hint == "failed" and self._others_wait_on():
            hint = "stuck"
        self.collection.finish(is_running=False)
        self.team.await_gathered()
        # What is known is read while the job is being ended, which takes a launcher a second.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="eroica-end") as pool:
            ending = pool.submit(self.command.end)
            patterns, evidence = self._conclude(captures, hint or None)
            code = ending.result()
        return WatchResult(
            evidence=evidence,
            patterns=patterns,
            hint=hint or None,
            exit_code=code,
            seconds=time.monotonic() - self.started,
            warnings=self.warnings,
            hardware=self.samples,
            window=self.collection.window_number,
        )

    def _note_hardware(self) -> None:
        """Take the counters while the ranks still are; their processes end with the watch."""
        host = self.job.live_job().host
        if any(rank.ending is not None for rank in self.job.ranks.values()):
            self.hardware.refresh()
        since_ns = time.time_ns() - HARDWARE_NS
        self.counters = {r: self.hardware.of_rank(r, since_ns) for r in self.job.ranks}
        self.host = self.hardware.of_host(host, since_ns)
        self.samples = self.hardware.for_folder(self.job.ranks, time.time_ns(), host)

    def _others_wait_on(self) -> bool:
        """A rank died, and nobody ends the others: torchrun would have done so within seconds."""
        until = time.monotonic() + _LAUNCHER_ENDS_S
        while time.monotonic() < until:
            self.job.refresh()
            if self.command.exit_code() is not None or not self.job.alive:
                return False
            self.job.wait(TICK_S)
            self.job.tick()  # whose end came a moment after the others' complaint of it
        return True

    def _gather(self, hint: str) -> dict[int, RankCapture]:
        captures: dict[int, RankCapture] = {}
        if self.job.alive:
            # The stuck rule has taken samples a second apart already; after a failure the
            # launcher ends the others at once: no time for a second one.
            for capture in gather(
                self.job.live_job(self.command.words),
                num_samples=1,
                answer_s=1.0 if hint == "stuck" else 6.0,
                progress=self.progress,
            ):
                captures[capture.rank] = capture
                if hint == "stuck":
                    capture.stacks = [*self.job.ranks[capture.rank].stacks[-2:-1], *capture.stacks]
        for rank in self.job.ranks.values():
            capture = captures.setdefault(
                rank.rank, RankCapture(rank.rank, rank.live.pid, rank.live.local_rank)
            )
            read_what_is_left(capture, self.folder)
        return captures

    def _conclude(
        self, captures: dict[int, RankCapture], hint: str | None
    ) -> tuple[list[RankPatterns], JobEvidence]:
        """Read what was gathered. A stuck or failed job needs no patterns: its steps are over."""
        patterns: list[RankPatterns] = []
        if hint not in ("stuck", "failed"):
            settings = {rank: read_settings(one.facts) for rank, one in captures.items()}
            host = self.job.live_job().host
            patterns = self.collection.patterns(settings, project_root=self.source_root, host=host)
        if self.keep_traces is not None:
            self._keep_traces(self.keep_traces)
        self.warnings += self.collection.problems
        return patterns, self._evidence(captures, hint)

    def _keep_traces(self, target: Path) -> None:
        try:
            target.mkdir(parents=True, exist_ok=True)
            for window in self.collection.windows.done:
                for path in window.traces.values():
                    shutil.copy(path, target / path.name)
        except OSError as error:  # the verdict was waited for, and does not need them
            self.warnings.append(f"traces are not kept in {target}: {error}")

    def _evidence(self, captures: dict[int, RankCapture], hint: str | None) -> JobEvidence:
        tail = self.command.log_tail()
        before, now = self._step_ms()
        ranks = [
            build_rank(
                captures[rank.rank],
                host=self.job.live_job().host,
                exit=exit_of(rank.ending),
                steps=self._steps_of(rank),
                stalls=self.collection.stalls.samples.get(rank.rank, ()),
                samples=self.collection.samples.get(rank.rank),
                last_event_ns=self._last_event_unix(rank),
                scheduled_ns=rank.scheduled_ns,
                counters=self.counters.get(rank.rank),
            )
            for rank in self.job.ranks.values()
        ]
        return build(
            ranks,
            world_size=self.job.world_size or len(ranks),
            command=self.command.words,
            source_root=self.source_root,
            hint=hint,
            onset_ns=self.onset_ns,
            detected_ns=self.detected_ns,
            window_ns=self.collection.windows.last_ns,
            taken_ns=time.time_ns(),
            warnings=self.warnings,
            log_text=tail,
            step_ms_before=before,
            step_ms_now=now,
            hosts=[self.host] if self.host is not None else [],
        )

    def _steps_of(self, rank: WatchedRank) -> StepTimes | None:
        offset = rank.ring.unix_offset_ns if rank.ring is not None else 0
        return self.collection.settled_steps(rank.step_times(), offset)

    def _step_ms(self) -> tuple[float | None, float | None]:
        """Return the best and the last mean step of the lowest rank that has some, in ms."""
        for rank in sorted(self.job.ranks.values(), key=lambda one: one.rank):
            steps = self._steps_of(rank)
            if steps is not None and len(steps.duration_ns) >= 2:
                return rules.best_and_last_ms(steps.duration_ns[1:])
        return None, None

    def _last_event_unix(self, rank: WatchedRank) -> int | None:
        last = rank.last_event_ns()
        if last is None or rank.ring is None:
            return None
        return last + rank.ring.unix_offset_ns

    def close(self) -> None:
        """End what is left, whatever happened, and take the folder away."""
        with contextlib.ExitStack() as stack:  # the last is called first, and each is called
            stack.callback(self.command.remove_folder)
            stack.callback(self.job.close)
            stack.callback(self.command.end, grace_s=0.2)
            stack.callback(self.collection.close)
            stack.callback(self.hardware.close)
            if not self._is_handed_on:
                stack.callback(self.team.close)
