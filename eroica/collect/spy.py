"""py-spy from outside: stacks of a process tree at one moment, or a sampling profile of it."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIMIT_EACH_S = 0.1  # one takes 10-50 ms of a core, and they share the cores
_LIBC = ctypes.CDLL(None)  # loaded here: a child between fork and exec loads nothing


class CannotTrace(Exception):
    """py-spy is missing or may not read the process; ``str()`` names the remedy."""


def find_spy() -> str | None:
    """Return py-spy: beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def dump(pid: int, *, is_blocking: bool = True, limit_s: float = 5.0) -> list[dict[str, Any]]:
    """Return py-spy's JSON threads of one process; raises CannotTrace."""
    spy = find_spy()
    if spy is None:
        raise CannotTrace("py-spy is not installed: pip install py-spy")
    command = [spy, "dump", "--json", "--full-filenames", "--pid", str(pid)]
    if not is_blocking:
        command.append("--nonblocking")
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise CannotTrace(f"py-spy did not finish within {limit_s:g} s on pid {pid}") from None
    except OSError as error:
        raise CannotTrace(f"{spy} cannot be run: {error}") from None
    if done.returncode != 0:
        raise CannotTrace(_remedy(pid, done.stderr.decode(errors="replace")))
    try:
        threads: list[dict[str, Any]] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise CannotTrace(f"py-spy's answer for pid {pid} is not JSON: {error}") from None
    return threads


def dump_all(
    pids: list[int], *, is_blocking: bool = True, limit_s: float = 5.0
) -> dict[int, list[dict[str, Any]] | str]:
    """Return each process's threads, or the reason why not; all are asked at the same time.

    ``limit_s`` is for all together; where they are many, a tenth of a second each.
    """
    # Threads of our own would do, but a handful of processes started together is simpler to end.
    spy = find_spy()
    if spy is None:
        return dict.fromkeys(pids, "py-spy is not installed: pip install py-spy")
    running: dict[int, subprocess.Popen[bytes]] = {}
    result: dict[int, list[dict[str, Any]] | str] = {}
    for pid in pids:
        try:
            running[pid] = _start_dump(spy, pid, is_blocking)
        except OSError as error:
            result[pid] = f"{spy} cannot be run: {error}"
    limit_s = max(limit_s, _LIMIT_EACH_S * len(pids))
    until = time.monotonic() + limit_s
    for pid, process in running.items():
        try:
            out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
            result[pid] = (
                json.loads(out)
                if process.returncode == 0
                else _remedy(pid, err.decode(errors="replace"))
            )
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            result[pid] = f"py-spy did not finish within {limit_s:g} s on pid {pid}"
        except json.JSONDecodeError as error:
            result[pid] = f"py-spy's answer for pid {pid} is not JSON: {error}"
    return result


def _start_dump(spy: str, pid: int, is_blocking: bool) -> "subprocess.Popen[bytes]":
    command = [spy, "dump", "--json", "--full-filenames", "--pid", str(pid)]
    command += [] if is_blocking else ["--nonblocking"]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _remedy(pid: int, text: str) -> str:
    last = (text.strip().splitlines() or ["no message"])[-1]
    if "ermission" in text or "not permitted" in text:
        return (
            f"py-spy may not read pid {pid} ({last}): run as the job's user with CAP_SYS_PTRACE"
            " (containers: --cap-add SYS_PTRACE), or start the job with `eroica run`"
        )
    return f"py-spy failed on pid {pid}: {last}"


class Recording:
    """A py-spy sampling profile of a process tree, running until ``stop``."""

    def __init__(self, pid: int, path: Path, *, hz: int = 20, are_idle_wanted: bool = True) -> None:
        spy = find_spy()
        if spy is None:
            raise CannotTrace("py-spy is not installed: pip install py-spy")
        self.path = path
        self.hz = hz
        # Non-blocking: a torn sample is dropped, but the job is never paused.
        self._process = subprocess.Popen(
            [
                *(spy, "record", "--pid", str(pid), "--rate", str(hz), "--format", "raw"),
                *("--subprocesses", "--threads", "--nonblocking", "--full-filenames"),
                *(["--idle"] if are_idle_wanted else []),
                *("--duration", "unlimited", "--output", str(path)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_be_modest,
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Have it write its file; ``stop`` waits for that."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def stop(self, limit_s: float = 5.0) -> str:
        """End the recording and return its text; empty when nothing was sampled."""
        self.interrupt()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        try:
            text = self.path.read_text(errors="replace")
            self.path.unlink()  # a job is sampled again and again, and its folder is in memory
        except OSError:
            return ""
        return text


def _be_modest() -> None:
    with contextlib.suppress(OSError):
        os.nice(5)
    # Killed in mid-run we could not end it, and it would read the job's memory to the job's end.
    end_with_parent(signal.SIGKILL)


def end_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends.

    Called in a child between fork and exec.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
