"""A sampling profile of all ranks and their children over the watched time, by py-spy.

Two recordings run side by side: all threads, and only those on CPU; the second says how much of
a stack's time was work. Both read memory without pausing anyone.
"""

import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eroica.collect.spy import CannotTrace, Recording
from eroica.records import Place, SampledStack, Samples
from eroica.watch.frames import is_own_work, without_hook

logger = logging.getLogger(__name__)

ALL_HZ = 20
ACTIVE_HZ = 10
_MAX_JOINED = 60  # lines of one command line

_PROCESS = re.compile(r'process (\d+):"(.*?)";(?=process \d+:"|thread \()', re.DOTALL)
_THREAD = re.compile(r"thread \((?:0x)?([0-9A-Fa-f]+)\)(?:: ([^;]*))?(?:;|$)")
_FRAME = re.compile(r"^(?P<name>.+) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")


@dataclass(frozen=True)
class RawStack:
    """One line of py-spy's raw format."""

    pids: tuple[int, ...]
    """From the traced root to the process the stack is of."""
    thread: str
    frames: tuple[Place, ...]
    """Innermost first."""
    count: int


def parse_raw(text: str, root_pid: int | None = None) -> list[RawStack]:
    """Read py-spy's raw output with processes and threads; lines of other forms are dropped.

    A command line with line breaks (``python -c``) breaks the format's lines as well: lines are
    joined until they hold a whole stack.
    """
    found = []
    pending: list[str] = []
    for line in text.splitlines():
        pending.append(line)
        stack = _parse_line("\n".join(pending), root_pid)
        if stack is None and line.startswith(("process ", "thread (")):
            pending = [line]
            stack = _parse_line(line, root_pid)
        if stack is not None:
            found.append(stack)
            pending = []
        del pending[:-_MAX_JOINED]
    return found


def _parse_line(line: str, root_pid: int | None) -> RawStack | None:
    body, _, number = line.rpartition(" ")
    if not number.isdigit():
        return None
    pids = []
    while match := _PROCESS.match(body):
        pids.append(int(match[1]))
        body = body[match.end() :]
    thread = _THREAD.match(body)
    if thread is None:
        return None
    frames = [_place(part) for part in _split_frames(body[thread.end() :])]
    return RawStack(
        pids=tuple(pids) or ((root_pid,) if root_pid is not None else ()),
        thread=(thread[2] or thread[1]).strip(),
        frames=tuple(reversed([frame for frame in frames if frame is not None])),
        count=int(number),
    )


def _split_frames(text: str) -> list[str]:
    return [part for part in text.split(";") if part]


def _place(text: str) -> Place | None:
    match = _FRAME.match(text)
    if match is None:
        return Place(name=text)
    line = match["line"]
    return Place(name=match["name"], file=match["file"], line=int(line) if line else None)


def build_samples(
    all_stacks: Iterable[RawStack],
    active: Iterable[RawStack],
    ranks: Mapping[int, int],
    start_ns: int,
    end_ns: int,
    *,
    active_scale: float = ALL_HZ / ACTIVE_HZ,
) -> dict[int, Samples]:
    """Return rank to its profile; ``ranks`` maps pid to rank."""
    on_cpu: dict[tuple[int, str, str, tuple[Place, ...]], int] = {}
    for stack in active:
        if key := _key(stack, ranks):
            on_cpu[key] = on_cpu.get(key, 0) + stack.count
    seen: dict[tuple[int, str, str, tuple[Place, ...]], int] = {}
    for stack in all_stacks:
        if key := _key(stack, ranks):
            seen[key] = seen.get(key, 0) + stack.count
    found: dict[int, list[SampledStack]] = {}
    for key, count in seen.items():
        rank, process, thread, frames = key
        share = min(count, round(on_cpu.get(key, 0) * active_scale))
        found.setdefault(rank, []).append(
            SampledStack(
                frames=frames, count=count, active_count=share, thread=thread, process=process
            )
        )
    return {
        rank: Samples(
            start_ns=start_ns,
            end_ns=end_ns,
            num_samples=_num_samples(stacks),
            stacks=tuple(sorted(stacks, key=lambda one: -one.count)),
        )
        for rank, stacks in sorted(found.items())
    }


def _key(
    stack: RawStack, ranks: Mapping[int, int]
) -> tuple[int, str, str, tuple[Place, ...]] | None:
    depth = next((i for i in reversed(range(len(stack.pids))) if stack.pids[i] in ranks), None)
    if depth is None or not stack.frames:
        return None
    if is_own_work(stack.frames):
        return None
    frames = without_hook(stack.frames)
    if not frames:
        return None
    is_child = depth < len(stack.pids) - 1
    thread = stack.thread if not is_child else f"{stack.pids[-1]} {stack.thread}"
    return ranks[stack.pids[depth]], _kind_of_child(frames) if is_child else "", thread, frames


def _kind_of_child(frames: tuple[Place, ...]) -> str:
    names = {frame.name for frame in frames}
    if "_worker_loop" in names:
        return "loader worker"
    return "child"


def _num_samples(stacks: Iterable[SampledStack]) -> int:
    """Samples taken: those of the main thread, else of the thread seen most often."""
    counts: dict[tuple[str, str], int] = {}
    for stack in stacks:
        key = (stack.process, stack.thread)
        counts[key] = counts.get(key, 0) + stack.count
    if ("", "MainThread") in counts:
        return counts["", "MainThread"]
    own = [count for (process, _), count in counts.items() if not process]
    return max(own or counts.values(), default=0)


@dataclass
class Profile:
    """The two recordings of one process tree."""

    root_pid: int
    folder: Path
    start_ns: int = field(default_factory=time.time_ns)
    problem: str | None = None
    _recordings: list[Recording] = field(default_factory=list)

    @property
    def is_started(self) -> bool:
        return bool(self._recordings)

    def start(self) -> None:
        """Begin; a missing permission is kept as ``problem``."""
        try:
            for name, hz, idle in (("all", ALL_HZ, True), ("active", ACTIVE_HZ, False)):
                path = self.folder / f"{name}-{self.root_pid}.raw"
                self._recordings.append(Recording(self.root_pid, path, hz=hz, are_idle_wanted=idle))
        except (CannotTrace, OSError) as error:
            self.problem = f"sampling profile: {error}"

    def stop(self, ranks: Mapping[int, int]) -> dict[int, Samples]:
        """End the recordings; return rank to profile, empty where nothing could be read."""
        end_ns = time.time_ns()
        for recording in self._recordings:
            recording.interrupt()
        texts = [recording.stop() for recording in self._recordings]
        self._recordings = []
        if len(texts) < 2 or not texts[0]:
            self.problem = self.problem or "sampling profile: py-spy could not read the job"
            return {}
        stacks, active = (parse_raw(text, self.root_pid) for text in texts)
        return build_samples(stacks, active, ranks, self.start_ns, end_ns)
