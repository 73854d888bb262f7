"""What a rank's control group was denied: CPU time over its quota, memory over its limit.

Both hierarchies are read, since nodes with either are about. The quota may stand on the group
itself or on one above it (a pod over its containers): the nearest one that has a limit counts.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from eroica.collect.counters import NAN, Counter, FileSource, Kernel, Source


def _paths(kernel: Kernel, pid: int) -> dict[str, str]:
    """Return controller to the process's path in its hierarchy; ``""`` is the unified one."""
    found: dict[str, str] = {}
    try:
        text = os.fsdecode((kernel.proc / str(pid) / "cgroup").read_bytes())
    except OSError:
        return found
    for line in text.splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        for name in names.split(","):
            found[name] = path
    return found


def _upwards(root: Path, path: str) -> list[Path]:
    """Return the group's folder and those above it, the nearest first.

    In a container the path may be the host's, of which nothing is mounted but its own part.
    """
    below = [part for part in path.split("/") if part not in ("", "..")]
    folders = [root.joinpath(*below[:number]) for number in range(len(below), 0, -1)]
    return [folder for folder in [*folders, root] if folder.is_dir()]


def _first(root: Path, path: str, name: str, limit: str = "") -> Path | None:
    """Return the nearest folder that has the file, and a limit where one is asked for."""
    for folder in _upwards(root, path):
        if (folder / name).exists() and (not limit or _has_limit(folder / limit)):
            return folder
    return None


def _has_limit(path: Path) -> bool:
    try:
        word = path.read_text().split()[0]
    except (OSError, IndexError):
        return False
    return word.isdecimal() and int(word) < 1 << 60  # else max, -1


def cpu_folder(kernel: Kernel, pid: int) -> Path | None:
    """Return the folder of the nearest group with a CPU quota; None without one."""
    mounts = kernel.sys / "fs" / "cgroup"
    paths = _paths(kernel, pid)
    found = _first(mounts, paths.get("", ""), "cpu.stat", "cpu.max") if "" in paths else None
    for name in ("cpu", "cpu,cpuacct", "cpuacct,cpu"):
        if found is None and "cpu" in paths and (mounts / name).is_dir():
            found = _first(mounts / name, paths["cpu"], "cpu.stat", "cpu.cfs_quota_us")
    return found


def cpu_quota_source(kernel: Kernel, pid: int) -> Source:
    """Periods of the quota, those in which the group was stopped, and the quota itself.

    Raw numbers: their increases divide. Raises OSError where no group of the process has one.
    """
    folder = cpu_folder(kernel, pid)
    if folder is None:
        raise FileNotFoundError(f"pid {pid} has no CPU quota")
    counters = (
        Counter("cgroup.periods_per_s", "rate"),
        Counter("cgroup.throttled_periods_per_s", "rate"),
        Counter("cgroup.quota_cores"),
    )
    is_unified = (folder / "cpu.max").exists()
    names = ["cpu.stat"] + (["cpu.max"] if is_unified else _OLD_QUOTA)

    def parse(texts: list[bytes]) -> list[float]:
        found = dict(line.split()[:2] for line in texts[0].splitlines())
        quota, period = texts[1].split()[:2] if is_unified else (texts[1], texts[2])
        cores = NAN if quota.strip() in (b"max", b"-1") else float(quota) / float(period)
        return [float(found[b"nr_periods"]), float(found[b"nr_throttled"]), cores]

    return FileSource([folder / name for name in names], counters, parse)


_OLD_QUOTA = ["cpu.cfs_quota_us", "cpu.cfs_period_us"]


def memory_limit_source(kernel: Kernel, pid: int) -> Source:
    """How often the group ran into its memory limit, was killed for it, and how full it is.

    Raises OSError where no group of the process tells.
    """
    mounts = kernel.sys / "fs" / "cgroup"
    paths = _paths(kernel, pid)
    if "" in paths and (folder := _first(mounts, paths[""], "memory.events", "memory.max")):
        return _unified_memory(folder)
    if "memory" in paths and (folder := _limited_v1(mounts / "memory", paths["memory"])):
        return _old_memory(folder)
    raise FileNotFoundError(f"pid {pid} has no memory limit")


def _limited_v1(root: Path, path: str) -> Path | None:
    return _first(root, path, "memory.oom_control", "memory.limit_in_bytes")


_MEMORY = (
    Counter("cgroup.memory_limit_hits", "count"),
    Counter("cgroup.oom_kills", "count"),
    Counter("cgroup.memory_full"),
)


def _unified_memory(folder: Path) -> Source:
    names = ["memory.events", "memory.current", "memory.max"]
    tells_stalls = (folder / "memory.pressure").exists()
    stalls = Counter("cgroup.pressure_memory", "rate", 1e-6)

    def parse(texts: list[bytes]) -> Sequence[float]:
        found = dict(line.split() for line in texts[0].splitlines())
        hits = float(found.get(b"high", 0)) + float(found.get(b"max", 0))
        stalled = [float(text.rpartition(b"total=")[2]) for text in texts[3:]]
        return [hits, float(found.get(b"oom_kill", 0)), float(texts[1]) / float(texts[2]), *stalled]

    names += ["memory.pressure"] * tells_stalls
    counters = (*_MEMORY, *([stalls] * tells_stalls))
    return FileSource([folder / name for name in names], counters, parse)


def _old_memory(folder: Path) -> Source:
    names = (
        "memory.failcnt",
        "memory.oom_control",
        "memory.usage_in_bytes",
        "memory.limit_in_bytes",
    )

    def parse(texts: list[bytes]) -> Sequence[float]:
        found = dict(line.split() for line in texts[1].splitlines())
        kills = float(found.get(b"oom_kill", NAN))
        return [float(texts[0]), kills, float(texts[2]) / float(texts[3])]

    return FileSource([folder / name for name in names], _MEMORY, parse)
