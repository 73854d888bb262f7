"""``eroica collect --launch``: the same on other hosts, through srun, ssh or kubectl exec."""

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from eroica.errors import InputError
from eroica.incident import PRIVATE, compact, write_atomic
from eroica.records import JobEvidence, Warning
from eroica.units import rank_phrase
from eroica.watch.streaming import Receiver

logger = logging.getLogger(__name__)

LIMIT_S = 180.0
_MAX_AT_ONCE = 32
_MAX_LINE = 1 << 16
_LAST_WORDS_S = 2.0
_GIVE_UP_S = 5.0


@dataclass
class _Launch:
    """One launcher's run: its output goes to the receiver, the end of its stderr is kept."""

    words: list[str]
    receiver: Receiver
    lock: threading.Lock
    last: str = ""
    code: int | None = None
    problem: str | None = None
    _ended_at: float | None = None
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def run(self, limit_s: float) -> None:
        try:
            self._process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self.problem = f"cannot be started: {error}"
            return
        timer = threading.Timer(limit_s, self._end, (f"took more than {limit_s:g} s",))
        timer.daemon = True
        timer.start()
        errors = threading.Thread(target=self._read_errors, daemon=True)
        errors.start()
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while line := stream.readline(_MAX_LINE):
                with self.lock:
                    self.receiver.take(line)
        self.code = self._process.wait()
        timer.cancel()
        errors.join(_LAST_WORDS_S)  # longer, where what it left running holds it: ssh's master

    def _read_errors(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        with self._process.stderr as stream:
            while line := stream.readline(_MAX_LINE):
                self.last = line.decode(errors="replace").strip() or self.last

    def _end(self, why: str) -> None:
        """End the launcher with what it started here."""
        self.problem, self._ended_at = why, time.monotonic()
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def is_given_up(self) -> bool:
        """Whether it was ended, and what it left running still holds its output."""
        return self._ended_at is not None and time.monotonic() - self._ended_at > _GIVE_UP_S

    def sentence(self) -> str | None:
        """Why it may have brought less than was asked for."""
        shown = " ".join(self.words)[:100]
        if self.problem:
            return f"{shown}: {self.problem}" + (f" ({self.last[:200]})" if self.last else "")
        return f"{shown}: exit status {self.code}: {self.last[:200]}" if self.code else None


def collect_elsewhere(
    out: Path,
    launchers: Sequence[Sequence[str]],
    *,
    remote: Sequence[str] = ("eroica",),
    pid: int | None = None,
    limit_s: float = LIMIT_S,
    progress: Callable[[str], None] = lambda text: None,
) -> str:
    """Run ``eroica collect`` through each launcher and unpack what comes below ``out``.

    ``pid`` is one that means the same on each of them, as in containers made alike.
    Returns a sentence of what came; what did not becomes a warning of the evidence.
    InputError where nothing came.
    """
    receiver, lock = Receiver(), threading.Lock()
    call = [*remote, "collect", "-o", "-", *(["--pid", str(pid)] if pid is not None else [])]
    launches = [_Launch([*words, *call], receiver, lock) for words in launchers]
    room = threading.Semaphore(_MAX_AT_ONCE)

    def run(launch: _Launch) -> None:
        with room:
            launch.run(limit_s)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in launches]
    progress("collecting through " + "; ".join(" ".join(words) for words in launchers)[:200])
    for thread in threads:
        thread.start()
    started = time.monotonic()
    while any(
        thread.is_alive() and not launch.is_given_up
        for thread, launch in zip(threads, launches, strict=True)
    ):
        time.sleep(0.05)
        progress(f"waiting for the hosts: {time.monotonic() - started:.0f} s")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with lock:
            hosts = sorted(set(receiver.unpack(out)))
    except OSError as error:
        raise InputError(f"cannot write to {out}", str(error), "eroica collect -o DIR") from error
    said = [sentence for sentence in (one.sentence() for one in launches) if sentence]
    problems = [*receiver.problems, *said]
    if not hosts:
        raise InputError(
            f"no host sent evidence through {' '.join(launchers[0])}",
            "; ".join(problems)[:600] or "the launcher ended well, and nothing came",
            "try the launcher by hand: LAUNCHER eroica --version",
        )
    return _told(out, hosts, problems)


def _told(out: Path, hosts: Sequence[str], problems: list[str]) -> str:
    """Say what came; what did not stands among the warnings of the first host's evidence."""
    found: dict[Path, JobEvidence] = {}
    for host in hosts:
        path = out / host / "evidence.json"
        try:
            found[path] = msgspec.json.decode(path.read_bytes(), type=JobEvidence)
        except (OSError, msgspec.DecodeError) as error:
            problems.append(f"{host}: {error}")
    ranks = sorted({rank.rank for one in found.values() for rank in one.ranks})
    world_size = max((one.world_size for one in found.values()), default=0)
    missing = sorted(set(range(world_size)) - set(ranks))
    for problem in problems:
        logger.warning("%s", problem)
    if problems and found:
        path, evidence = next(iter(found.items()))
        warnings = tuple(Warning(file=None, what=f"collect: {problem}") for problem in problems)
        evidence = msgspec.structs.replace(evidence, warnings=(*evidence.warnings, *warnings))
        write_atomic(path, compact(evidence), PRIVATE)
    rest = f"; nothing came of {rank_phrase(missing)}" if missing else ""
    rest += f"; {'; '.join(problems)[:400]}" if problems else ""
    names = ", ".join(host.removeprefix("host-") for host in hosts[:8])
    more = f" and {len(hosts) - 8} more" if len(hosts) > 8 else ""
    return f"{out}: {rank_phrase(ranks)} of {world_size} from {names}{more}{rest}"
