"""A watch that goes on, on a host that does not decide: it tells what it sees and reports.

Windows are taken at the steps that the host of rank 0 names; for each incident the evidence of
this host's ranks is sent there, and only a line says where the verdict is.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

from eroica.columns import RankPatterns
from eroica.records import JobEvidence, Samples
from eroica.watch.live import WatchedJob
from eroica.watch.looks import CloseLooks
from eroica.watch.result import WatchResult
from eroica.watch.team import Team
from eroica.watch.watching import has_busy_threads
from eroica.watch.wire import Orders, WindowPlan

logger = logging.getLogger(__name__)

_SAMPLE_S = 3.0
_STUCK_HOLDS_S = 2.5  # the rule looks once a second
_READ_S = 20.0

Evidence = Callable[[str | None, int | None, dict[int, Samples]], JobEvidence]


class Following:
    """``turn`` is called at every tick while another host decides."""

    def __init__(
        self,
        job: WatchedJob,
        team: Team,
        looks: CloseLooks,
        *,
        evidence: Evidence,
        progress: Callable[[str], None],
    ) -> None:
        self.job, self.team, self.looks = job, team, looks
        self.evidence, self.progress = evidence, progress
        self.has_failed = False
        """A rank here failed and nobody has asked about it yet."""
        self._stuck_at = -1e9
        self._handled = 0
        self._reads: dict[int, Future[list[RankPatterns]]] = {}
        self._baselines: set[int] = set()
        self._is_crowded: bool | None = None

    def turn(self, now: float, *, has_new_failure: bool, is_stuck: bool) -> None:
        """Tell what this host's rules say, and do what the host of rank 0 asks for."""
        self.has_failed = self.has_failed or has_new_failure
        if is_stuck:
            self._stuck_at = now
        stuck = "stuck" if now - self._stuck_at < _STUCK_HOLDS_S else ""
        self.team.tell("failed" if self.has_failed else stuck)
        if self._is_crowded is None and self.job.is_learned:
            self._is_crowded = has_busy_threads(self.job)  # takes longer than a plan leaves
        plan = self.team.next_window()
        if plan is not None:
            self._take(plan)
        orders = self.team.orders
        if orders is not None and orders.phase == "collect" and orders.incident > self._handled:
            self._handled = orders.incident
            self._report(orders)

    def _take(self, plan: WindowPlan) -> None:
        windows = self.looks.windows
        first = len(windows.done)
        if self._is_crowded or not windows.arm(length_s=0.0, plan=plan):
            return
        windows.finish(windows.parameters.window_s + 10)
        self._reads[plan.number] = self.looks.pool.submit(self.looks.read, windows.done[first:])
        if plan.is_baseline:
            self._baselines.add(plan.number)
        for number in sorted(self._reads.keys() - self._baselines)[:-2]:
            del self._reads[number]

    def _report(self, orders: Orders) -> None:
        self.progress(f"the host of rank 0 asks what is here: {orders.hint}")
        number: int | None = None
        patterns: list[RankPatterns] = []
        samples: dict[int, Samples] = {}
        if orders.hint == "slow":
            number, patterns = self._latest(lambda window: window not in self._baselines)
            samples = self._sample()
        evidence = self.evidence(orders.hint, None, samples)
        if not patterns:
            patterns = self.looks.read([], samples)
        result = WatchResult(
            evidence=evidence,
            patterns=patterns,
            baseline=self._latest(lambda window: window in self._baselines)[1],
            hint=orders.hint,
            window=number,
        )
        place = self.team.join(result, wait=self.job.tick).elsewhere
        self.has_failed = False
        if place is not None:
            self.progress(f"{place.headline or place.symptom}: incident {place.id} on {place.host}")

    def _latest(self, is_wanted: Callable[[int], bool]) -> tuple[int | None, list[RankPatterns]]:
        """Return number and patterns of the newest window that was read whole."""
        until = time.monotonic() + _READ_S
        for number in sorted(filter(is_wanted, self._reads), reverse=True):
            while not self._reads[number].done() and time.monotonic() < until:
                time.sleep(0.05)
                self.job.tick()
            if not self._reads[number].done() or self._reads[number].exception() is not None:
                continue
            if found := self._reads[number].result():
                return number, found
        return None, []

    def _sample(self) -> dict[int, Samples]:
        profile = self.looks.start_profile()
        until = time.monotonic() + _SAMPLE_S
        while time.monotonic() < until:
            time.sleep(0.05)
            self.job.tick()
        return profile.stop()
