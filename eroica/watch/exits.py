"""Wakes the watch at the moment a process ends.

A launcher collects its dead within a tenth of a second, and with them the exit code: who looks
only now and then often finds the process gone. A process's handle (pidfd) becomes readable when
it ends, so that the code can be read while it is still there, and no look is spent on waiting.
"""

import contextlib
import logging
import os
import select
import time
from collections.abc import Iterable

logger = logging.getLogger(__name__)


class ExitAlarm:
    """Sleeps until a followed process ends; plain sleep where the kernel has no such handles."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._pids: dict[int, int] = {}  # handle -> pid
        self._seen: set[int] = set()

    def follow(self, pids: Iterable[int]) -> None:
        """Follow these processes and no others; each is waited for once."""
        wanted = set(pids)
        for handle, pid in list(self._pids.items()):
            if pid not in wanted:
                self._drop(handle)
        self._seen &= wanted
        for pid in wanted - self._seen:
            self._seen.add(pid)
            try:
                handle = os.pidfd_open(pid)
            except (OSError, AttributeError) as error:
                # Gone already, or refused (old kernel, a container's filter): looks remain.
                logger.debug("no handle of pid %d: %s", pid, error)
                continue
            self._pids[handle] = pid
            self._poll.register(handle, select.POLLIN)

    def follows(self, pid: int) -> bool:
        """Whether ``wait`` will tell of this process's end."""
        return pid in self._seen and pid in self._pids.values()

    def wait(self, seconds: float) -> list[int]:
        """Sleep for ``seconds``, less where a process ends; return the pids of those that did."""
        if not self._pids:
            time.sleep(seconds)
            return []
        ended = [handle for handle, _ in self._poll.poll(seconds * 1000)]
        pids = [self._pids[handle] for handle in ended]
        for handle in ended:
            self._drop(handle)
        return pids

    def _drop(self, handle: int) -> None:
        del self._pids[handle]
        with contextlib.suppress(KeyError):
            self._poll.unregister(handle)
        os.close(handle)

    def close(self) -> None:
        for handle in list(self._pids):
            self._drop(handle)
