"""Carries statuses, orders and reports between hosts through a shared folder or object store.

For networks on which the agents may not open a port. Files are written whole under another name
first, their names are checked, and each carries a signature: what another user puts there is not
believed.
"""

import logging
import re
import threading
import time
from typing import TypeVar

import msgspec

from eroica.errors import EroicaError
from eroica.watch.exchange import Exchange
from eroica.watch.shelves import Shelf
from eroica.watch.wire import (
    MAX_REPORT_BYTES,
    MAX_STATUS_BYTES,
    Orders,
    Status,
    digest,
    is_signed,
    sign,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
_POLL_S = 0.5
_AGAIN_S = 2.0
_PROOF_BYTES = 64
_STATUS = re.compile(r"status-(\d{1,9})")
_REPORT = re.compile(r"report-(\d{1,9})-(\d{1,9})")


class _Signed:
    """Records on a shelf, each with its name signed into it."""

    def __init__(self, shelf: Shelf, key: bytes) -> None:
        self.shelf, self.key = shelf, key

    def put(self, name: str, data: bytes) -> None:
        proof = sign(self.key, "file", name, digest(data)).encode()
        self.shelf.write(name, proof + data)

    def get(self, name: str, limit: int) -> bytes | None:
        whole = self.shelf.read(name, limit + _PROOF_BYTES)
        if whole is None:
            return None
        proof, data = whole[:_PROOF_BYTES], whole[_PROOF_BYTES:]
        if not is_signed(self.key, proof.decode("latin-1"), "file", name, digest(data)):
            raise OSError(f"{name} is not signed with the job's key")
        return data

    def get_record(self, name: str, kind: type[T]) -> T | None:
        data = self.get(name, MAX_STATUS_BYTES)
        return None if data is None else msgspec.json.decode(data, type=kind)


class _Beat:
    """Calls ``turn`` every half second until closed; a failing store is told once and retried."""

    def __init__(self, name: str) -> None:
        self._is_closed = threading.Event()
        self._told = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def turn(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._is_closed.wait(_POLL_S):
            try:
                self.turn()
            except (OSError, EroicaError, msgspec.DecodeError) as error:
                if str(error) != self._told:
                    self._told = str(error)
                    logger.warning("the shared folder: %s", error)

    def stop(self) -> None:
        self._is_closed.set()
        self._thread.join(3)


class FolderServer(_Beat):
    """The side of rank 0's host: writes orders, reads what the others wrote."""

    def __init__(self, shelf: Shelf, key: bytes, exchange: Exchange) -> None:
        super().__init__("eroica-hosts")
        self.files, self.exchange = _Signed(shelf, key), exchange
        self.problem: str | None = None
        self._written: tuple[int, float] = (-1, 0.0)
        self._serials: dict[int, int] = {}
        self._taken: set[tuple[int, int]] = set()
        self._unread: set[str] = set()
        self._is_cleared = False
        self.start()

    def turn(self) -> None:
        if not self._is_cleared:  # an earlier run may have had the same key
            self._clear()
            self._is_cleared = True
        now, orders = time.monotonic(), self.exchange.orders
        if orders.sequence != self._written[0] or now - self._written[1] > _AGAIN_S:
            self.files.put("orders", msgspec.json.encode([now, orders]))
            self._written = (orders.sequence, now)
        for name in self.files.shelf.names():
            try:
                self._take(name)
            except (OSError, msgspec.DecodeError) as error:
                level = logging.DEBUG if name in self._unread else logging.WARNING
                self._unread.add(name)
                logger.log(level, "%s is left unread: %s", name, error)

    def _take(self, name: str) -> None:
        if _STATUS.fullmatch(name):
            status = self.files.get_record(name, Status)
            # A file that does not change is no sign of life.
            if status is not None and self._serials.get(status.first_rank) != status.serial:
                self._serials[status.first_rank] = status.serial
                self.exchange.take_status(status)
        elif match := _REPORT.fullmatch(name):
            key = (int(match[1]), int(match[2]))
            if key[0] < self.exchange.orders.incident:
                self.files.shelf.remove(name)  # of an incident that is over
                self._taken.discard(key)
                return
            if key in self._taken:
                return
            data = self.files.get(name, MAX_REPORT_BYTES)
            if data is not None and self.exchange.take_report(*key, data) is None:
                self._taken.add(key)

    def _clear(self) -> None:
        for name in self.files.shelf.names():
            if _STATUS.fullmatch(name) or _REPORT.fullmatch(name):
                self.files.shelf.remove(name)

    def close(self) -> None:
        """Leave the last orders, which say where the verdict is, and nothing else."""
        self.stop()
        self.exchange.close()
        try:
            self.files.put("orders", msgspec.json.encode([time.monotonic(), self.exchange.orders]))
            self._clear()
        except OSError as error:
            logger.warning("the shared folder: %s", error)


class FolderLink(_Beat):
    """The side of the other hosts."""

    def __init__(self, shelf: Shelf, key: bytes, status: Status) -> None:
        super().__init__("eroica-listen")
        self.files = _Signed(shelf, key)
        self.orders: Orders | None = None
        self.heard_at: float | None = None
        self._beat: float | None = None
        self._status, self._serial, self._told_at = status, 0, 0.0
        self.start()

    def tell(self, status: Status) -> None:
        self._status, self._told_at = status, 0.0

    def turn(self) -> None:
        now = time.monotonic()
        if now - self._told_at > _AGAIN_S:
            self._told_at = now
            self._serial += 1
            status = msgspec.structs.replace(self._status, serial=self._serial)
            self.files.put(f"status-{status.first_rank:09d}", msgspec.json.encode(status))
        found = self.files.get_record("orders", tuple[float, Orders])
        if found is None:
            return
        beat, orders = found
        if beat != self._beat:
            # What an earlier agent left there does not change, and so is not believed.
            if self._beat is not None:
                self.heard_at, self.orders = now, orders
            self._beat = beat

    def send_report(self, incident: int, first_rank: int, data: bytes) -> None:
        self.files.put(f"report-{incident:09d}-{first_rank:09d}", data)

    def close(self) -> None:
        self.stop()
