"""What the agent of rank 0's host knows of the others, however it came; and what it wants."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from eroica.watch.wire import MAX_REPORT_BYTES, Orders, Status

_MAX_REPORTS_BYTES = 2 << 30
_LOST_AFTER_S = 6.0  # beyond the longest time an answer is held back


def hold_s(num_hosts: int | None) -> float:
    """How long answers are held: a host asks that often, and 20 a second are 1 % of a core."""
    return min(30.0, max(4.0, (num_hosts or 1) / 20))


@dataclass
class Heard:
    """The newest word of one host; times are of the monotonic clock."""

    status: Status
    at: float


@dataclass
class Exchange:
    """Shared by the loop, which reads and orders, and the carriers, which bring and take."""

    orders: Orders
    heard: dict[int, Heard] = field(default_factory=dict)
    """By the host's first rank."""
    reports: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By incident and first rank."""
    delivered: dict[int, int] = field(default_factory=dict)
    """First rank to the newest orders its host was given."""
    is_closing: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def announce(self, **changes: Any) -> Orders:  # noqa: ANN401
        """Change the orders; all who wait get them at once."""
        with self.changed:
            number = self.orders.sequence + 1
            self.orders = msgspec.structs.replace(self.orders, sequence=number, **changes)
            incident = self.orders.incident
            for key in [key for key in self.reports if key[0] < incident]:
                del self.reports[key]
            self.changed.notify_all()
            return self.orders

    def wait_orders(self, first_rank: int, after: int, limit_s: float) -> Orders:
        """Return the orders once they are newer than ``after``, or as they are at the limit."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_closing or self.orders.sequence > after, limit_s)
            self.delivered[first_rank] = self.orders.sequence
            return self.orders

    def take_status(self, status: Status) -> None:
        with self.changed:
            known = self.heard.get(status.first_rank)
            if known is None or status.serial >= known.status.serial:
                self.heard[status.first_rank] = Heard(status, time.monotonic())
            else:
                known.at = time.monotonic()
            self.changed.notify_all()

    def take_report(self, incident: int, first_rank: int, data: bytes) -> str | None:
        """Keep a report; a sentence where it is refused."""
        with self.changed:
            # A host whose command has ended reports before it is asked.
            if incident not in (self.orders.incident, self.orders.incident + 1):
                return f"nobody asks for incident {incident}"
            if first_rank not in self.heard:
                return f"the host of rank {first_rank} has not said who it is"
            total = sum(map(len, self.reports.values())) + len(data)
            if len(data) > MAX_REPORT_BYTES or total > _MAX_REPORTS_BYTES:
                return f"{len(data)} bytes are too much"
            self.reports[incident, first_rank] = data
            self.changed.notify_all()
        return None

    def living(self, now: float) -> list[Status]:
        """What the hosts say that were heard of lately."""
        limit = self.orders.hold_s + _LOST_AFTER_S
        with self.changed:
            return [one.status for one in self.heard.values() if now - one.at <= limit]

    def lost(self, now: float) -> list[Status]:
        """Hosts that were heard of once and are silent now."""
        living = {status.first_rank for status in self.living(now)}
        with self.changed:
            return [one.status for rank, one in self.heard.items() if rank not in living]

    def close(self) -> None:
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()
