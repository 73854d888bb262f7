"""Wakes the watch at the moment a process ends, and tells its exit code even if it is too late.

A launcher collects its dead within a tenth of a second, some at once, and with them the exit code:
who looks only now and then often finds the process gone. A process's handle (pidfd) becomes
readable when it ends, so that the code can be read while it is still there, and no look is spent on
waiting. Since Linux 6.15 the handle keeps the code of a process that was collected as well.
"""

import contextlib
import fcntl
import logging
import os
import select
import struct
import time
from collections.abc import Iterable

logger = logging.getLogger(__name__)

# linux/pidfd.h: PIDFD_GET_INFO of a struct pidfd_info as it first was, 64 bytes with the wait
# status last; the mask says what is asked for, and then what was told.
_GET_INFO = 0xC040FF0B
_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")


class ExitAlarm:
    """Sleeps until a followed process ends; plain sleep where the kernel has no such handles."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handles: dict[int, int] = {}
        """By pid, of those whose end is awaited and of those that were told of."""
        self._awaited: dict[int, int] = {}
        """Handle to pid."""
        self._seen: set[int] = set()

    def follow(self, pids: Iterable[int]) -> None:
        """Follow these processes and no others; each is waited for once."""
        wanted = set(pids)
        for pid in self._handles.keys() - wanted:
            self._drop(pid)
        self._seen &= wanted
        for pid in wanted - self._seen:
            self._seen.add(pid)
            try:
                handle = os.pidfd_open(pid)
            except (OSError, AttributeError) as error:
                # Gone already, or refused (old kernel, a container's filter): looks remain.
                logger.debug("no handle of pid %d: %s", pid, error)
                continue
            self._handles[pid] = handle
            self._awaited[handle] = pid
            self._poll.register(handle, select.POLLIN)

    def follows(self, pid: int) -> bool:
        """Whether ``wait`` will tell of this process's end."""
        return self._handles.get(pid) in self._awaited

    def wait(self, seconds: float) -> list[int]:
        """Sleep for ``seconds``, less where a process ends; return the pids of those that did."""
        if not self._awaited:
            time.sleep(seconds)
            return []
        return [self._unawait(handle) for handle, _ in self._poll.poll(seconds * 1000)]

    def collected_status(self, pid: int) -> int | None:
        """Return the wait status of a followed process that its parent has collected already.

        None where the kernel does not keep it, and while the process is still there.
        """
        handle = self._handles.get(pid)
        if handle is None:
            return None
        info = bytearray(_INFO.size)
        _INFO.pack_into(info, 0, _INFO_EXIT, *[0] * 13)
        try:
            fcntl.ioctl(handle, _GET_INFO, info)
        except OSError as error:  # an older kernel
            logger.debug("the end of pid %d is not kept: %s", pid, error)
            return None
        told, *_, status = _INFO.unpack(info)
        return int(status) if told & _INFO_EXIT else None

    def _unawait(self, handle: int) -> int:
        self._poll.unregister(handle)
        return self._awaited.pop(handle)

    def _drop(self, pid: int) -> None:
        handle = self._handles.pop(pid)
        with contextlib.suppress(KeyError):
            self._unawait(handle)
        os.close(handle)

    def close(self) -> None:
        for pid in list(self._handles):
            self._drop(pid)
