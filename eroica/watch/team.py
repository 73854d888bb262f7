"""This host's part in a job of several hosts: nothing, leading (rank 0 is here) or following.

The loop asks ``agree`` what its own verdict means for the job; the leader calls for reports and
joins them, the others report and learn where the verdict is. Whoever cannot reach the leader
goes on alone, and the leader goes on without those it does not hear. Longer than most modules:
both sides of one conversation are read side by side.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable

import msgspec

from eroica.collect import proc
from eroica.collect.processes import host_name
from eroica.errors import EroicaError
from eroica.watch.agreement import Said, decide, is_stuck_everywhere
from eroica.watch.carriers import Link, Server, open_link, open_server
from eroica.watch.exchange import Exchange
from eroica.watch.live import WatchedJob
from eroica.watch.membership import Membership, read_membership
from eroica.watch.reporting import collect_reports, send_report, wait_for, warn
from eroica.watch.result import WatchResult
from eroica.watch.wire import Orders, Status, VerdictPlace, WindowPlan

logger = logging.getLogger(__name__)

_SETTLED_S = 4.0  # ranks of one host come within this, where no launcher says how many
_JOIN_S = 15.0  # agents find each other within this, or are not there
_LOST_S = 6.0
_STUCK_HOLDS_S = 2.5  # the rule looks once a second
_GATHER_S = 12.0
_LINGER_S = 3.0
_TICK_S = 0.05


class Team:
    """Alone until ``poll`` finds that the job has other hosts."""

    def __init__(
        self,
        job: WatchedJob,
        *,
        share: str | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.job, self.progress = job, progress
        self.share = share or os.environ.get("EROICA_SHARED_DIR")
        self.host = host_name()
        self.membership: Membership | None = None
        self.exchange: Exchange | None = None
        self.server: Server | None = None
        self.link: Link | None = None
        self.problems: list[str] = []
        self.is_baseline = False
        """Leader: windows announced from now on are of the job's healthy time."""
        self._seen_at: float | None = None
        self._joined_at = 0.0
        self._is_decided = False
        self._own = Said("")
        self._stuck_at = -1e9
        self._status: Status | None = None
        self._windows: deque[WindowPlan] = deque()
        self._last_window = -1
        self._known: set[int] = set()

    # --- who is who

    @property
    def is_leader(self) -> bool:
        return self.exchange is not None

    @property
    def is_follower(self) -> bool:
        """Whether another host decides; not any more once it is silent."""
        return self.link is not None and not self._is_alone(time.monotonic())

    def poll(self, now: float) -> None:
        """Find out whether the job has other hosts; then hear what they say."""
        if not self._is_decided and self.job.ranks:
            self._seen_at = self._seen_at or now
            self._find(now)
        if self.exchange is not None:
            self._note_hosts(self.exchange, now)
        elif self.link is not None and self.link.orders is not None:
            self._follow_windows(self.link.orders)

    def _find(self, now: float) -> None:
        is_settled = now - (self._seen_at or now) > _SETTLED_S
        rank = min(self.job.ranks.values(), key=lambda one: one.rank)
        given = proc.read_environment(rank.live.pid)
        found = read_membership(given, self.job.ranks, self.job.world_size, is_settled=is_settled)
        self._is_decided = found is not None or is_settled
        if found is None:
            return
        try:
            self._join(found, now)
        except (EroicaError, OSError) as error:
            self.problems.append(f"the job's other hosts are not joined: {error}")
            logger.warning("%s", self.problems[-1])

    def _join(self, found: Membership, now: float) -> None:
        self._joined_at = now
        if found.is_leader:
            self.exchange, self.server = open_server(found, self.share, self.host)
        else:
            self._status = Status(first_rank=found.first_rank, host=self.host)
            self.link = open_link(found, self.share, self._status)
        self.membership = found
        part = "this is the host of rank 0" if found.is_leader else f"rank 0 is at {found.address}"
        self.progress(f"a job of several hosts: {part}")

    def _note_hosts(self, exchange: Exchange, now: float) -> None:
        for status in exchange.living(now):
            if status.first_rank not in self._known:
                self._known.add(status.first_rank)
                self.progress(f"host {status.host} joined")
        for status in exchange.lost(now):
            if status.first_rank in self._known:
                self._known.remove(status.first_rank)
                self.progress(f"host {status.host} fell silent")

    def _is_alone(self, now: float) -> bool:
        if self.link is None:
            return True
        heard, orders = self.link.heard_at, self.link.orders
        if heard is None or orders is None:
            return now - self._joined_at > _JOIN_S
        return now - heard > orders.hold_s + _LOST_S

    # --- one verdict at the end of a watch

    def agree(self, hint: str | None, *, is_ended: bool) -> str | None:
        """Return the job's hint once its watch is over, given what this host's rules say now."""
        now = time.monotonic()
        self.poll(now)
        own = self._own = self._remember(hint, is_ended, now)
        if self.exchange is not None:
            others = [Said(one.hint, one.is_ended) for one in self.exchange.living(now)]
            decision = decide(own, others)
            if decision == "failed" or (decision is not None and not self._is_awaited(now)):
                self.call(decision)
                return decision
            return None
        if self.link is None:
            return hint
        self._tell(hint=own.hint, is_ended=is_ended)
        if self.link.orders is not None and self.link.orders.phase != "watch":
            return self.link.orders.hint
        if own.hint == "failed" or (own.hint and is_ended) or self._is_alone(now):
            return own.hint or None
        return None

    def _remember(self, hint: str | None, is_ended: bool, now: float) -> Said:
        """The stuck rule speaks once a second; between its looks its word holds."""
        if hint == "stuck":
            self._stuck_at = now
        elif hint is None and now - self._stuck_at < _STUCK_HOLDS_S:
            hint = "stuck"
        return Said(hint or "", is_ended)

    def _is_awaited(self, now: float) -> bool:
        """Whether agents that have not joined yet may still come, and it may matter."""
        assert self.exchange is not None and self.membership is not None
        here = len(self.job.ranks) + sum(len(one.ranks) for one in self.exchange.living(now))
        return here < self.membership.world_size and now - self._joined_at < _JOIN_S

    def call(self, hint: str) -> int:
        """Ask all hosts to gather for a new incident, unless they do; return its number."""
        if self.exchange is None:
            return 1
        if self.exchange.orders.phase == "collect":
            return self.exchange.orders.incident
        number = self.exchange.orders.incident + 1
        self.exchange.announce(phase="collect", incident=number, hint=hint)
        return number

    def await_gathered(self, *, wait: Callable[[], None] = lambda: None) -> None:
        """Wait until all hosts have gathered: what one of them ends, the others see failing."""
        if self.exchange is not None:
            exchange, number = self.exchange, self.exchange.orders.incident

            def has_all() -> bool:
                living = exchange.living(time.monotonic())
                return all(one.gathered >= number or one.is_ended for one in living)

            wait_for(has_all, _GATHER_S, wait)
            exchange.announce(phase="end")
        elif self.link is not None:
            link = self.link
            number = link.orders.incident if link.orders is not None else 1
            self._tell(gathered=max(1, number))

            def is_end() -> bool:
                phase = link.orders.phase if link.orders is not None else ""
                return phase == "end" or self._is_alone(time.monotonic())

            if not self._own.is_ended:
                wait_for(is_end, _GATHER_S + _LOST_S, wait)

    def join(self, result: WatchResult, *, wait: Callable[[], None] = lambda: None) -> WatchResult:
        """Leader: add the others' reports. Others: report, and learn where the verdict is."""
        if self.membership is None:
            warn(result, self.problems)
        elif self.exchange is not None:
            problem = self.server.problem if self.server is not None else None
            collect_reports(
                result,
                self.exchange,
                self.membership,
                host=self.host,
                problems=[*self.problems, *([problem] if problem else [])],
                wait=wait,
            )
            result.team = self
        elif self.link is not None:
            result.elsewhere = send_report(
                result,
                self.link,
                self.membership,
                host=self.host,
                is_alone=lambda: self._is_alone(time.monotonic()),
                wait=wait,
            )
        return result

    # --- the leader's verdict

    def tell_verdict(self, place: VerdictPlace) -> None:
        """Tell the other hosts where the verdict is."""
        if self.exchange is not None:
            self.exchange.announce(
                verdict=msgspec.structs.replace(place, host=self.host),
                verdict_of=self.exchange.orders.incident,
            )

    # --- a watch that goes on

    @property
    def orders(self) -> Orders | None:
        """Follower: what the leader wants."""
        return self.link.orders if self.link is not None else None

    def resume(self) -> None:
        """Leader: the incident is over, told or not."""
        if self.exchange is not None and self.exchange.orders.phase != "watch":
            self.exchange.announce(phase="watch")

    def is_stuck(self, is_stuck_here: bool) -> bool:
        """Whether the job is, given that this host is (or is not)."""
        if not is_stuck_here or self.exchange is None:
            return is_stuck_here
        living = self.exchange.living(time.monotonic())
        return is_stuck_everywhere([Said(one.hint, one.is_ended) for one in living])

    @property
    def has_failed_elsewhere(self) -> bool:
        """Whether a rank failed on another host that has not reported it yet."""
        if self.exchange is None:
            return False
        number = self.exchange.orders.incident
        failed = [s for s in self.exchange.living(time.monotonic()) if s.hint == "failed"]
        return any((number, s.first_rank) not in self.exchange.reports for s in failed)

    @property
    def missing(self) -> list[str]:
        """Hosts that were heard of and are silent."""
        if self.exchange is None:
            return []
        return [one.host for one in self.exchange.lost(time.monotonic())]

    def tell(self, hint: str, *, is_ended: bool = False) -> None:
        """Follower: say what this host's own rules say now."""
        if self.link is not None:
            self._tell(hint=hint, is_ended=is_ended)

    def _tell(self, **changes: object) -> None:
        assert self._status is not None and self.link is not None
        ranks = tuple(sorted(self.job.ranks))
        changed = msgspec.structs.replace(self._status, ranks=ranks, **changes)
        if changed != self._status:
            self._status = msgspec.structs.replace(changed, serial=changed.serial + 1)
            self.link.tell(self._status)

    # --- windows

    def announce_window(self, plan: WindowPlan) -> None:
        if self.exchange is not None:
            plan = msgspec.structs.replace(plan, is_baseline=self.is_baseline)
            self.exchange.announce(window=plan)

    def next_window(self) -> WindowPlan | None:
        """Follower: the steps to profile, once each."""
        return self._windows.popleft() if self._windows else None

    def _follow_windows(self, orders: Orders) -> None:
        if orders.window is not None and orders.window.number > self._last_window:
            self._last_window = orders.window.number
            self._windows.append(orders.window)

    def close(self) -> None:
        """Leader: let the others hear the last word before the line is cut."""
        if self.exchange is not None and self.exchange.orders.verdict is not None:
            exchange, sequence = self.exchange, self.exchange.orders.sequence

            def is_heard() -> bool:
                living = exchange.living(time.monotonic())
                return all(exchange.delivered.get(s.first_rank, 0) >= sequence for s in living)

            if self.share is None:
                wait_for(is_heard, _LINGER_S)
                time.sleep(_TICK_S)
        for part in (self.server, self.link):
            if part is not None:
                part.close()
        self.server = self.link = None
