"""Runs a command for a bounded time, reads its progress, and leaves no process behind."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

TOKEN = "EROICA_REHEARSAL"
MAX_OUTPUT_LINES = 5000
_LOOK_S = 0.2  # how soon a run ends once it is called off
PROGRESS = re.compile(
    r"\b(epoch|step|stage|iter|iteration|it|batch|round|phase)\b\D{0,3}(\d+)", re.I
)
_LOSS = re.compile(r"loss\D{0,3}([-+]?\d[\d.]*(?:[eE][-+]?\d+)?)", re.I)
_MS = re.compile(r"([\d.]+)\s*ms\s*/\s*(?:it|iter|step|batch)", re.I)


@dataclass
class Watcher:
    """Who looks on while a command runs: is told its progress, and may call it off."""

    tell: Callable[[str], None] = lambda line: None
    called_off: threading.Event = field(default_factory=threading.Event)


@dataclass
class Run:
    """What one bounded run did. ``status`` is None where the watchdog ended it."""

    status: int | None = None
    seconds: float = 0.0
    lines: list[tuple[float, str]] = field(default_factory=list)
    """Seconds since start, and the line (stdout and stderr together)."""
    left_behind: int = 0
    was_aborted_at_its_end: bool = False
    """All ranks had ended their work when the interpreter's way out aborted one."""

    @property
    def is_done(self) -> bool:
        return self.status == 0 or self.was_aborted_at_its_end

    @property
    def progress(self) -> list[tuple[float, str, int]]:
        """Lines that name a step: when, the key of the line, the last number."""
        found = []
        for when, line in self.lines:
            matches = PROGRESS.findall(line)
            if matches:
                key = " ".join(f"{word.lower()} {number}" for word, number in matches)
                found.append((when, key, int(matches[-1][1])))
        return found

    @property
    def losses(self) -> dict[str, float]:
        """Losses by the progress they were printed with."""
        found = {}
        for _, line in self.lines:
            key, loss = PROGRESS.findall(line), _LOSS.search(line)
            if key and loss:
                found[" ".join(f"{w.lower()} {n}" for w, n in key)] = float(loss[1])
        return found

    @property
    def last_loss(self) -> float | None:
        values = [match[1] for _, line in self.lines for match in _LOSS.finditer(line)]
        return float(values[-1]) if values else None

    def step_ms(self) -> list[float]:
        """Step times in ms: as printed, else from when the lines with step numbers came."""
        printed = [float(v) for _, line in self.lines for v in _MS.findall(line)]
        if printed:
            return printed[1:] or printed
        marks = self.progress
        times = [
            (b[0] - a[0]) / (b[2] - a[2]) * 1e3 for a, b in itertools.pairwise(marks) if b[2] > a[2]
        ]
        return times[1:] or times

    def tail(self, lines: int = 8) -> str:
        return "\n".join(line for _, line in self.lines[-lines:])


def run_bounded(
    command: Sequence[str],
    folder: Path,
    limit_s: float,
    environment: dict[str, str] | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Run a command for at most ``limit_s`` seconds; a missing program is status 127.

    One that its watcher calls off ends at once, as one that ran out of time.
    """
    watcher = watcher or Watcher()
    token = uuid.uuid4().hex
    inherited = {k: v for k, v in os.environ.items() if not _is_of_a_job(k)}
    env = {**inherited, "PYTHONUNBUFFERED": "1", **(environment or {}), TOKEN: token}
    run, start = Run(), time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return Run(status=127, lines=[(0.0, f"{command[0]}: {error}")])
    assert process.stdout is not None
    reader = threading.Thread(
        target=_read, args=(process.stdout, run, start, watcher.tell), daemon=True
    )
    reader.start()
    try:
        run.status = _wait(process, start + limit_s, watcher.called_off)
    finally:
        run.seconds = time.monotonic() - start
        left = end_all(token, process)
        run.left_behind = left if run.status is not None else 0
        reader.join(5)
        process.stdout.close()
    return run


def _wait(
    process: "subprocess.Popen[str]", until: float, called_off: threading.Event
) -> int | None:
    """The exit status, as soon as there is one; None at the time given, or when called off."""
    while not called_off.is_set() and (left := until - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(_LOOK_S, left))
    return process.poll()


def _is_of_a_job(key: str) -> bool:
    """Variables of a surrounding job or watcher must not leak into the rehearsal."""
    return key in {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMP_NUM_THREADS",
    } or key.startswith("TORCHELASTIC_")


def _read(stream: IO[str], run: Run, start: float, tell: Callable[[str], None]) -> None:
    with contextlib.suppress(ValueError):  # closed while a stray child still held it
        for line in stream:
            run.lines.append((time.monotonic() - start, line.rstrip("\n")))
            if found := PROGRESS.findall(line):
                tell(" ".join(f"{word.lower()} {number}" for word, number in found[:3]))
            if len(run.lines) > MAX_OUTPUT_LINES:
                del run.lines[100:200]


def end_all(token: str, process: "subprocess.Popen[str]") -> int:
    """Kill every process that carries the token; returns how many outlived the command."""
    ended = 0
    for _ in range(20):
        alive = [pid for pid in with_token(token) if pid != os.getpid()]
        if not alive:
            break
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                ended += pid != process.pid
        if process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
        process.wait()
    return ended


def with_token(token: str) -> list[int]:
    """Return the live processes whose environment carries the token."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes() and (
                (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
            ):
                found.append(int(entry.name))
        except OSError:  # ended meanwhile, or not ours to read
            continue
    return found
