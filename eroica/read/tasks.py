"""Lists of a process's threads with state, wait channel and system call -> ProcessState.

A line a thread: ``5674 python3.11 state=S wchan=futex_do_wait syscall=202 utime_stime=229 25``,
the fields of /proc/PID/task/TID; times are in ticks of 10 ms.
"""

import re
from pathlib import Path

from eroica.read.source import read_head
from eroica.records import ProcessState, ThreadState

_MAX_BYTES = 1 << 22
_TICK_NS = 10_000_000
_LINE = re.compile(
    r"^(?P<tid>\d{1,9}) (?P<name>.*?) state=(?P<state>[A-Z])"
    r"(?: wchan=(?P<wait>\S*))?(?: syscall=(?P<call>\S*))?"
    r"(?: utime_stime=(?P<user>\d{1,15}) (?P<system>\d{1,15}))?"
)


def read_tasks(path: Path) -> ProcessState | None:
    """Read a list of threads; the first is the process itself. None if there is none."""
    threads = []
    for line in read_head(path, _MAX_BYTES).decode("utf-8", "replace").splitlines():
        if found := _LINE.match(line):
            ticks = int(found["user"]) + int(found["system"]) if found["user"] else None
            threads.append(
                ThreadState(
                    os_thread_id=int(found["tid"]),
                    name=found["name"],
                    state=found["state"],
                    wait_channel=found["wait"] or "",
                    syscall=found["call"] or "",
                    cpu_ns=None if ticks is None else ticks * _TICK_NS,
                )
            )
    if not threads:
        return None
    return ProcessState(pid=threads[0].os_thread_id, state=threads[0].state, threads=tuple(threads))
