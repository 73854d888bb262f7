"""Counters of the kernel: what a thread, a rank, its cgroup and the host use and wait for.

A source is a few counters that are read together, as cheaply as may be: files stay open and are
read in place. ``Kernel`` tells where the kernel's files are, so that tests can make them up.
What a counter means over time is said by its form: a gauge is taken as it is, of a rate the
increase a second counts, of a count the increase.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

NAN = float("nan")
Form = Literal["gauge", "rate", "count"]
_MAX_INTERFACES = 16
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Counter:
    """``scale`` turns the raw number into the unit its name tells; ratios are 0..1."""

    name: str
    form: Form = "gauge"
    scale: float = 1.0


class Source(Protocol):
    """Counters read together; ``read`` gives raw numbers in their order, NaN where one failed."""

    counters: tuple[Counter, ...]

    def read(self) -> Sequence[float]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Kernel:
    """Where the kernel's files lie."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


class OpenFile:
    """A kernel file that is kept open: reading it again costs one system call."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """Return its content, empty where it can no longer be read."""
        try:
            return os.pread(self._handle, _READ_BYTES, 0)
        except OSError:
            return b""

    def close(self) -> None:
        os.close(self._handle)


class FileSource:
    """Counters parsed out of files; ``parse`` gets their contents and gives the numbers."""

    def __init__(
        self,
        paths: Sequence[Path],
        counters: Iterable[Counter],
        parse: Callable[[list[bytes]], Sequence[float]],
    ) -> None:
        """Raise OSError where a file is not there."""
        self.counters = tuple(counters)
        self._files: list[OpenFile] = []
        self._parse = parse
        try:
            for path in paths:
                self._files.append(OpenFile(path))
        except OSError:
            self.close()
            raise

    def read(self) -> Sequence[float]:
        try:
            values = self._parse([file.read() for file in self._files])
        except (ValueError, IndexError, KeyError, StopIteration, ZeroDivisionError):
            values = ()
        return values if len(values) == len(self.counters) else (NAN,) * len(self.counters)

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files = []


# --- a rank


def thread_source(kernel: Kernel, pid: int, tid: int) -> Source:
    """The training thread: share of time on a CPU, and ready to run but waiting for one."""
    counters = (
        Counter("training_thread.cpu", "rate", 1e-9),
        Counter("training_thread.wait", "rate", 1e-9),
    )
    path = kernel.proc / str(pid) / "task" / str(tid) / "schedstat"
    return FileSource([path], counters, lambda texts: [float(v) for v in texts[0].split()[:2]])


class RankSource:
    """All threads of a rank: cores used, cores waited for, major faults and threads a second."""

    counters: tuple[Counter, ...] = (
        Counter("rank.cpu", "rate", 1e-9),
        Counter("rank.wait", "rate", 1e-9),
        Counter("rank.major_faults_per_s", "rate"),
        Counter("rank.threads"),
    )

    def __init__(self, kernel: Kernel, pid: int) -> None:
        self._folder = kernel.proc / str(pid)
        self._last: dict[str, tuple[int, int]] = {}
        self._ended = [0, 0]

    def read(self) -> Sequence[float]:
        """Threads that ended keep what they had used, so that the sums never fall."""
        try:
            names = os.listdir(self._folder / "task")  # noqa: PTH208
            # The name in it may be cut in the middle of a character.
            stat = (self._folder / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return (NAN,) * 4
        if len(stat) < 10:
            return (NAN,) * 4
        now: dict[str, tuple[int, int]] = {}
        for name in names:
            used = _numbers_of(self._folder / "task" / name / "schedstat")
            if len(used) > 1:
                now[name] = (int(used[0]), int(used[1]))
        for name in self._last.keys() - now.keys():
            self._ended = [a + b for a, b in zip(self._ended, self._last[name], strict=True)]
        self._last = now
        cpu, wait = (
            ended + sum(used[position] for used in now.values())
            for position, ended in enumerate(self._ended)
        )
        return (float(cpu), float(wait), float(stat[9]), float(len(names)))

    def close(self) -> None:
        self._last = {}


def _numbers_of(path: Path) -> list[float]:
    try:
        return [float(word) for word in path.read_bytes().split()]
    except (OSError, ValueError):
        return []


# --- the host


def network_source(kernel: Kernel) -> Source:
    """Bytes, errors and drops of the interfaces that are hardware, else of all but loopback."""
    folder = kernel.sys / "class" / "net"
    names = sorted(path.name for path in folder.iterdir() if path.name != "lo")
    real = [name for name in names if (folder / name / "device").exists()]
    wanted = (real or names)[:_MAX_INTERFACES]
    if not wanted:
        raise FileNotFoundError(f"no network interface below {folder}")
    parts = (
        ("rx_bytes_per_s", "rate", 0),
        ("tx_bytes_per_s", "rate", 8),
        ("errors", "count", 2),
        ("drops", "count", 3),
    )
    counters = [Counter(f"net.{name}.{what}", form) for name in wanted for what, form, _ in parts]  # type: ignore[arg-type]

    def parse(texts: list[bytes]) -> list[float]:
        lines = {
            head.strip(): tail.split()
            for head, _, tail in (line.partition(b":") for line in texts[0].splitlines()[2:])
        }
        values: list[float] = []
        for name in wanted:
            fields = [float(word) for word in lines[name.encode()]]
            values += [fields[0], fields[8], fields[2] + fields[10], fields[3] + fields[11]]
        return values

    return FileSource([kernel.proc / "net" / "dev"], counters, parse)


def pressure_source(kernel: Kernel) -> Source:
    """Share of time in which tasks wait for a CPU (some), all for memory or storage (full)."""
    kinds = (("cpu", b"some"), ("memory", b"full"), ("io", b"full"))
    counters = [Counter(f"pressure.{kind}", "rate", 1e-6) for kind, _ in kinds]
    paths = [kernel.proc / "pressure" / kind for kind, _ in kinds]

    def parse(texts: list[bytes]) -> list[float]:
        values = []
        for text, (_, word) in zip(texts, kinds, strict=True):
            line = next(line for line in text.splitlines() if line.startswith(word))
            values.append(float(line.rpartition(b"total=")[2]))
        return values

    return FileSource(paths, counters, parse)


def memory_source(kernel: Kernel) -> Source:
    """Pages that came back from swap, faults that read the disk, processes killed for memory."""
    wanted = (
        (b"pswpin", Counter("vm.swap_in_pages_per_s", "rate")),
        (b"pgmajfault", Counter("vm.major_faults_per_s", "rate")),
        (b"oom_kill", Counter("vm.oom_kills", "count")),
    )

    def parse(texts: list[bytes]) -> list[float]:
        found = dict(line.split() for line in texts[0].splitlines())
        return [float(found.get(key, NAN)) for key, _ in wanted]

    return FileSource([kernel.proc / "vmstat"], [counter for _, counter in wanted], parse)


def processor_source(kernel: Kernel) -> Source:
    """Cores that were busy, also with what this container does not see; and stolen by a host."""
    tick = 1.0 / os.sysconf("SC_CLK_TCK")
    counters = (
        Counter("host.busy_cores", "rate", tick),
        Counter("host.stolen_cores", "rate", tick),
    )

    def parse(texts: list[bytes]) -> list[float]:
        user, nice, system, _, _, irq, soft, steal = (
            float(word) for word in texts[0].split(maxsplit=9)[1:9]
        )
        return [user + nice + system + irq + soft, steal]

    return FileSource([kernel.proc / "stat"], counters, parse)


def clock_source(kernel: Kernel) -> Source:
    """Mean clock of some CPUs in Hz and how often they were throttled for heat."""
    folder = kernel.sys / "devices" / "system" / "cpu"
    cpus = [folder / f"cpu{number}" for number in range(os.cpu_count() or 1)]
    some = cpus[:: max(1, len(cpus) // 8)]
    clocks = [p for cpu in some if (p := cpu / "cpufreq" / "scaling_cur_freq").exists()]
    heats = [p for cpu in some if (p := cpu / "thermal_throttle" / "core_throttle_count").exists()]
    counters = [Counter("host.clock_hz", "gauge", 1e3)] * bool(clocks)
    counters += [Counter("host.heat_throttles", "count")] * bool(heats)
    if not counters:
        raise FileNotFoundError("neither clocks nor heat of the CPUs are told")

    def parse(texts: list[bytes]) -> list[float]:
        values = [float(text) for text in texts]
        mean = sum(values[: len(clocks)]) / max(1, len(clocks))
        return [mean] * bool(clocks) + [sum(values[len(clocks) :])] * bool(heats)

    return FileSource([*clocks, *heats], counters, parse)
