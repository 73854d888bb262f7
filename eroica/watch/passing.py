"""Signals sent to eroica are meant for the job it stands before: they are passed on.

A scheduler that pre-empts a job or asks it for a checkpoint signals the process it started, which
under ``eroica run`` is eroica. Ctrl-C in a terminal reaches the job by itself.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import FrameType

logger = logging.getLogger(__name__)

_PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Passing:
    """What was passed on so far."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._had_terminal = shares_terminal()
        self.is_ending = False
        """Whether the job was asked to end: how it ends is then no failure of its own."""

    def pass_on(self, number: int, frame: FrameType | None = None) -> None:
        self.is_ending = self.is_ending or number in _ENDING
        # A terminal sends these to the job as well: twice would cut its own clean-up short.
        if number == signal.SIGINT and shares_terminal():
            return
        if number == signal.SIGHUP and self._had_terminal:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._process.send_signal(number)


@contextlib.contextmanager
def signals_to(process: "subprocess.Popen[bytes]") -> Iterator[Passing]:
    """Pass signals on to ``process``; does nothing off the main thread, where they cannot be had.

    A signal that is ignored (``nohup``) stays ignored, here and in the job that inherits that.
    """
    passing = Passing(process)
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _PASSED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, passing.pass_on)
    try:
        yield passing
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def shares_terminal() -> bool:
    """Whether the terminal sends its signals to this process group, the job's as well."""
    try:
        handle = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(handle) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(handle)
