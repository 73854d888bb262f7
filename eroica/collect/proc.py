"""What the kernel says of processes: states for people, counters for the rule of no progress."""

import logging
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from eroica.records import ProcessState, ThreadState

logger = logging.getLogger(__name__)
_PROC = Path("/proc")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def read_text(path: str) -> str:
    """Return a /proc file, empty where the process went or will not be read."""
    # Below pathlib and io: this is called for each rank ten times a second.
    pieces = []
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        while piece := os.read(handle, 1 << 16):
            pieces.append(piece)
    except OSError:
        return ""
    finally:
        os.close(handle)
    return b"".join(pieces).decode(errors="replace")


@dataclass(frozen=True)
class Stat:
    """The part of /proc/PID/stat that matters."""

    pid: int
    name: str
    state: str
    parent_pid: int
    cpu_ns: int
    start_ticks: int
    exit_code: int
    """As waitpid gives it; only of a zombie."""


def read_stat(pid: int, root: Path = _PROC) -> Stat | None:
    """Return a process's stat; None when it is gone."""
    text = read_text(f"{root}/{pid}/stat")
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Stat(
        pid=pid,
        name=head.partition("(")[2],
        state=fields[0],
        parent_pid=int(fields[1]),
        cpu_ns=(int(fields[11]) + int(fields[12])) * _TICK_NS,
        start_ticks=int(fields[19]),
        exit_code=int(fields[49]) if len(fields) > 49 else 0,
    )


def is_alive(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state not in "ZX"


def all_stats(root: Path = _PROC) -> dict[int, Stat]:
    """Return every process of the host that can be seen."""
    stats = (read_stat(int(name), root) for name in os.listdir(root) if name.isdigit())  # noqa: PTH208
    return {stat.pid: stat for stat in stats if stat is not None}


def descendants(pid: int, stats: dict[int, Stat] | None = None) -> list[int]:
    """Return all living children of a process, and theirs, parents first."""
    known = all_stats() if stats is None else stats
    children: dict[int, list[int]] = {}
    for stat in known.values():
        children.setdefault(stat.parent_pid, []).append(stat.pid)
    found: dict[int, None] = {}  # in order
    queue = deque([pid])
    while queue:
        for child in sorted(children.get(queue.popleft(), [])):
            if child not in found:
                found[child] = None
                queue.append(child)
    return list(found)


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty where not permitted."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in data.split(b"\0") if b"=" in item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def read_command(pid: int) -> tuple[str, ...]:
    text = read_text(f"/proc/{pid}/cmdline")
    return tuple(text.rstrip("\0").split("\0")) if text else ()


def thread_cpu_ns(pid: int, tid: int) -> tuple[int, int]:
    """Return how long a thread was on a CPU and how long it waited for one, in ns."""
    fields = read_text(f"/proc/{pid}/task/{tid}/schedstat").split()
    return (int(fields[0]), int(fields[1])) if len(fields) > 1 else (0, 0)


def process_cpu_ns(pid: int) -> tuple[int, int]:
    """Return CPU time and time waiting for a CPU, summed over a process's living threads, in ns."""
    try:
        tids = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return 0, 0
    times = [thread_cpu_ns(pid, int(tid)) for tid in tids]
    return sum(cpu for cpu, _ in times), sum(wait for _, wait in times)


def io_bytes(pid: int) -> int:
    """Return the bytes a process read and wrote through system calls, sockets' recv excepted."""
    total = 0
    for line in read_text(f"/proc/{pid}/io").splitlines():
        if line.startswith(("rchar:", "wchar:")):
            total += int(line.split()[1])
    return total


def thread_state(pid: int, tid: int) -> str:
    """Return a thread's state, a letter as in ps; empty where it is gone."""
    fields = read_text(f"/proc/{pid}/task/{tid}/stat").rpartition(")")[2].split()
    return fields[0] if fields else ""


def read_process(pid: int) -> ProcessState | None:
    """Return a process and its threads as the kernel shows them; None when it is gone."""
    stat = read_stat(pid)
    if stat is None:
        return None
    io = dict(
        line.split(": ", 1) for line in read_text(f"/proc/{pid}/io").splitlines() if ": " in line
    )
    pages = read_text(f"/proc/{pid}/statm").split()
    try:
        tids = sorted(int(tid) for tid in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    except OSError:
        tids = []
    return ProcessState(
        pid=pid,
        parent_pid=stat.parent_pid,
        command=" ".join(read_command(pid)),
        state=stat.state,
        cpu_ns=process_cpu_ns(pid)[0] or stat.cpu_ns,
        read_bytes=int(io["rchar"]) if "rchar" in io else None,
        written_bytes=int(io["wchar"]) if "wchar" in io else None,
        resident_bytes=int(pages[1]) * os.sysconf("SC_PAGESIZE") if len(pages) > 1 else None,
        threads=tuple(_read_thread(pid, tid) for tid in tids),
    )


def _read_thread(pid: int, tid: int) -> ThreadState:
    base = f"/proc/{pid}/task/{tid}"
    stat = read_text(f"{base}/stat").rpartition(")")[2].split()
    schedule = read_text(f"{base}/schedstat").split()
    return ThreadState(
        os_thread_id=tid,
        name=read_text(f"{base}/comm").strip(),
        state=stat[0] if stat else "",
        wait_channel=read_text(f"{base}/wchan").strip(),
        syscall=read_text(f"{base}/syscall").strip(),
        cpu_ns=int(schedule[0]) if schedule else None,
        wait_ns=int(schedule[1]) if len(schedule) > 1 else None,
    )
