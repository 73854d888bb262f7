"""Starts the job's command with the hook on its path, and ends it with all its processes."""

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from eroica.collect import proc
from eroica.collect.hook.folder import make_private
from eroica.collect.spy import end_with_parent
from eroica.errors import InputError

logger = logging.getLogger(__name__)

INJECT = Path(__file__).parents[1] / "collect" / "inject"
_PR_SET_CHILD_SUBREAPER = 36
_LOG_LIMIT = 1 << 22  # of the copy that is kept; the output itself goes through whole
_TAIL_BYTES = 1 << 16


def make_folder() -> Path:
    """Make a private folder for one run's rings, in memory where that is possible.

    Raises OSError where there is room for one nowhere.
    """
    try:
        return _make_below(Path("/dev/shm"))
    except OSError as error:
        logger.debug("no folder in memory: %s", error)
        return _make_below(Path(tempfile.gettempdir()))


def _make_below(root: Path) -> Path:
    base = root / f"eroica-{os.getuid()}"
    if not make_private(str(base)):
        raise OSError(f"{base} cannot be made, or is not ours alone")
    return Path(tempfile.mkdtemp(prefix="run-", dir=base))


def start_plainly(
    words: Sequence[str], environment: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a command that shares our terminal and outlives us; InputError where it cannot."""
    try:
        return subprocess.Popen(words, env=environment)
    except OSError as error:
        raise _cannot_start(words, error) from error


def _cannot_start(words: Sequence[str], error: OSError) -> InputError:
    return InputError(f"cannot start {words[0]!r}", str(error), "eroica run -- COMMAND ...")


class Command:
    """A job started by us.

    ``is_ours``: its output goes through us to ``output`` (its tail to a log file too), and it is
    to be ended by ``end``. Else it shares our terminal and outlives us.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        *,
        output: IO[bytes] | None = None,
        is_ours: bool = True,
    ) -> None:
        self.words = tuple(words)
        self.folder = folder
        self.log_path = folder / "output.log"
        if is_ours:
            become_subreaper()
        environment = dict(os.environ)
        paths = [str(INJECT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        environment["EROICA_RUN"] = str(folder)
        environment.setdefault("KINETO_LOG_LEVEL", "99")
        environment.setdefault("PYTHONUNBUFFERED", "1")
        try:
            self.process = self._start(environment, is_ours=is_ours)
        except InputError:
            self.remove_folder()
            raise
        self._is_ending = False
        self._output = output if output is not None else sys.stderr.buffer
        self._thread = threading.Thread(target=self._copy, name="eroica-output", daemon=True)
        if is_ours:
            self._thread.start()

    def _start(self, environment: dict[str, str], *, is_ours: bool) -> "subprocess.Popen[bytes]":
        if not is_ours:
            return start_plainly(self.words, environment)
        try:
            return subprocess.Popen(
                self.words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Its output goes through us: were we killed, it would hang or break on that.
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )
        except OSError as error:
            raise _cannot_start(self.words, error) from error

    @property
    def pid(self) -> int:
        return self.process.pid

    def exit_code(self) -> int | None:
        """Return the command's exit code, None while it runs."""
        return self.process.poll()

    def _copy(self) -> None:
        """Pass the job's output on; a full disk or a closed terminal never stops the job.

        Of the log the end is kept when it is cut: what ended the job may just have been said.
        """
        assert self.process.stdout is not None
        handle = self.process.stdout.fileno()
        written = 0
        log = self._open_log()
        while data := os.read(handle, 1 << 16):
            if self._is_ending:  # what a launcher says of being ended helps nobody
                continue
            with contextlib.suppress(OSError, ValueError):
                self._output.write(data)
                self._output.flush()
            if log is None:
                continue
            with contextlib.suppress(OSError):
                if written > _LOG_LIMIT:
                    end = self.log_tail(_TAIL_BYTES).encode(errors="replace")
                    log.seek(0)
                    log.truncate()
                    log.write(end)
                    written = len(end)
                log.write(data)
                written += len(data)
        if log is not None:
            log.close()

    def _open_log(self) -> IO[bytes] | None:
        try:
            return self.log_path.open("wb", buffering=0)
        except OSError as error:
            logger.warning("the job's output is not kept: %s", error)
            return None

    def log_tail(self, num_bytes: int = _TAIL_BYTES) -> str:
        """Return the end of the job's output."""
        try:
            data = self.log_path.read_bytes()
        except OSError:
            return ""
        return data[-num_bytes:].decode(errors="replace")

    def members(self) -> list[int]:
        """Return every living process of the job: descendants, and orphans that carry its mark."""
        stats = proc.all_stats()
        found = set(proc.descendants(self.pid, stats))
        found.add(self.pid)
        mark = str(self.folder)
        for stat in stats.values():
            # Orphans come to us, their subreaper; their environment says whose they are.
            is_orphan = stat.parent_pid in (os.getpid(), 1) and stat.pid not in found
            if is_orphan and proc.read_environment(stat.pid).get("EROICA_RUN") == mark:
                found.add(stat.pid)
                found.update(proc.descendants(stat.pid, stats))
        return [pid for pid in found if pid in stats and stats[pid].state not in "ZX"]

    def end(self, *, grace_s: float = 1.0) -> int | None:
        """End the job with all its processes and return its exit code, if it had ended itself.

        First SIGTERM to all at once, after ``grace_s`` SIGKILL to the rest, until none is left.
        """
        code = self.exit_code()
        self._is_ending = code is None
        self._signal_all(signal.SIGTERM)
        until = time.monotonic() + grace_s
        while self.members() and time.monotonic() < until:
            self._reap()
            time.sleep(0.05)
        for _ in range(40):
            if not self._signal_all(signal.SIGKILL):
                break
            self._reap()
            time.sleep(0.05)
        self._reap()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self._thread.join(2)
        if not self._thread.is_alive() and self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def _signal_all(self, number: signal.Signals) -> int:
        members = self.members()
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                if number is signal.SIGTERM:  # a stopped process takes it only when continued
                    os.kill(pid, signal.SIGCONT)
        return len(members)

    def _reap(self) -> None:
        """Collect orphans of the job that became our children; other children are left alone."""
        self.process.poll()
        for stat in proc.all_stats().values():
            if stat.parent_pid == os.getpid() and stat.state == "Z" and self._is_adopted(stat.pid):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(stat.pid, os.WNOHANG)

    def _is_adopted(self, pid: int) -> bool:
        """Zombies have no environment any more: they are the job's if in a session of its own."""
        if pid == self.pid:
            return False
        try:
            return os.getsid(pid) != os.getsid(0)
        except OSError:
            return False

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def become_subreaper() -> None:
    """Have orphans of the job come to this process, so that none outlives it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        logger.warning("cannot become a subreaper: orphans of the job may be left")
