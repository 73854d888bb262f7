"""Finds the jobs of this host: ranks by their environment, grouped by what joins them."""

import os
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from eroica.collect import proc
from eroica.collect.hook.folder import is_of_this_namespace, make_private

_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "busybox", "tini"))
"""A script in one of them is not the training, whatever its environment says."""


def host_name() -> str:
    """This host's name in verdicts: EROICA_HOST (a pod's node, say), else the kernel's."""
    return os.environ.get("EROICA_HOST") or socket.gethostname()


@dataclass
class LiveRank:
    """A rank that runs (or ran) on this host."""

    rank: int
    pid: int
    local_rank: int | None = None
    start_ticks: int = 0
    """Tells a process from a later one with its pid."""

    @property
    def is_alive(self) -> bool:
        stat = proc.read_stat(self.pid)
        if stat is None or stat.state in "ZX":
            return False
        return not self.start_ticks or stat.start_ticks == self.start_ticks


@dataclass
class LiveJob:
    """The ranks of one job on this host."""

    key: str
    ranks: dict[int, LiveRank]
    world_size: int
    launcher_pid: int | None = None
    command: tuple[str, ...] = ()
    """Of the launcher where there is one, else of the lowest rank."""
    directory: str | None = None
    folder: str | None = None
    """Where the hook of its ranks lives; None where it runs without."""
    host: str = field(default_factory=host_name)

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self.ranks.values()]

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.world_size) if rank not in self.ranks)


def find_jobs(*, below: int | None = None) -> list[LiveJob]:
    """Return the jobs of this user on this host, newest first; ``below`` limits to descendants.

    A rank is a process with RANK and WORLD_SIZE that did not inherit them from a rank, as loader
    workers and compile workers do. This process and those it was started from are none, though a
    shell in a job's container has the job's RANK; nor is a shell, nor a launcher of ranks.
    """
    stats = proc.all_stats()
    candidates = proc.descendants(below, stats) if below is not None else sorted(stats)
    own = _line_of(os.getpid(), stats)
    known = _Environments(stats)
    ranks = [pid for pid in candidates if pid not in own and known.is_rank(pid)]
    launchers = {stats[pid].parent_pid for pid in ranks if known.is_launched(pid)}
    found: dict[str, list[tuple[LiveRank, dict[str, str]]]] = {}
    for pid in ranks:
        if pid in launchers:
            continue
        given = known.of(pid)
        rank = LiveRank(
            rank=int(given["RANK"]),
            pid=pid,
            local_rank=int(given["LOCAL_RANK"])
            if given.get("LOCAL_RANK", "").isdecimal()
            else None,
            start_ticks=stats[pid].start_ticks,
        )
        found.setdefault(_key(given, stats[pid].parent_pid), []).append((rank, given))
    jobs = [_job(key, members, stats) for key, members in found.items()]
    return sorted(jobs, key=lambda job: -max(rank.start_ticks for rank in job.ranks.values()))


class _Environments:
    """The environments of processes, each read once, and what they say of ranks."""

    def __init__(self, stats: dict[int, proc.Stat]) -> None:
        self.stats = stats
        self._known: dict[int, dict[str, str]] = {}

    def of(self, pid: int) -> dict[str, str]:
        if pid not in self._known:
            self._known[pid] = proc.read_environment(pid) if _is_ours(pid) else {}
        return self._known[pid]

    def is_rank(self, pid: int) -> bool:
        stat = self.stats.get(pid)
        if stat is None or stat.state in "ZX" or stat.name in _SHELLS or not _is_rank(self.of(pid)):
            return False
        return not self._inherits(pid, stat.parent_pid)

    def is_launched(self, pid: int) -> bool:
        """True where the parent has a RANK too, but gave this process a local rank of its own."""
        above = self.of(self.stats[pid].parent_pid)
        return _is_rank(above) and "LOCAL_RANK" in self.of(pid) and "LOCAL_RANK" not in above

    def _inherits(self, pid: int, parent: int) -> bool:
        """True where the next process above that is no shell is the same rank."""
        while parent in self.stats and self.stats[parent].name in _SHELLS:
            parent = self.stats[parent].parent_pid
        given, above = self.of(pid), self.of(parent)
        names = ("RANK", "LOCAL_RANK")
        return "RANK" in above and all(given.get(name) == above.get(name) for name in names)


def _line_of(pid: int, stats: dict[int, proc.Stat]) -> list[int]:
    """A process and those it was started from."""
    line = [pid]
    while line[-1] in stats and stats[line[-1]].parent_pid > 1:
        line.append(stats[line[-1]].parent_pid)
    return line


def find_job_of(pid: int) -> LiveJob | None:
    """Return the job a process belongs to: as a rank, as a rank's child or as the launcher."""
    stats = proc.all_stats()
    jobs = find_jobs()
    for ancestor in _line_of(pid, stats):
        for job in jobs:
            if ancestor in job.pids:
                return job
    for job in jobs:
        if set(proc.descendants(pid, stats)) & set(job.pids):
            return job
    return None


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()  # noqa: PTH116
    except OSError:
        return False


def _is_rank(given: dict[str, str]) -> bool:
    return given.get("RANK", "").isdecimal() and given.get("WORLD_SIZE", "").isdecimal()


def _key(given: dict[str, str], parent: int) -> str:
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")
    parts = [given.get(name, "") for name in names]
    return "|".join(parts) if any(parts) else f"parent {parent}"


def _job(
    key: str, members: list[tuple[LiveRank, dict[str, str]]], stats: dict[int, proc.Stat]
) -> LiveJob:
    # The older process of two with one rank is what the newer one was started by.
    ranks: dict[int, LiveRank] = {}
    for rank, _ in sorted(members, key=lambda member: member[0].start_ticks):
        ranks.setdefault(rank.rank, rank)
    first = ranks[min(ranks)]
    parents = {stats[rank.pid].parent_pid for rank in ranks.values() if rank.pid in stats}
    launcher = parents.pop() if len(parents) == 1 else None
    if launcher is not None and (launcher <= 1 or not _is_launcher(launcher)):
        launcher = None
    given = members[0][1]
    try:
        directory = os.readlink(f"/proc/{first.pid}/cwd")  # noqa: PTH115
    except OSError:
        directory = None
    return LiveJob(
        key=key,
        ranks=dict(sorted(ranks.items())),
        world_size=int(given["WORLD_SIZE"]),
        launcher_pid=launcher,
        command=proc.read_command(launcher or first.pid),
        directory=directory,
        folder=given.get("EROICA_RUN") or find_folder_of(first.pid),
    )


def find_folder_of(pid: int) -> str | None:
    """Return the folder in which a rank that imported eroica itself can be reached."""
    for root in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        base = root / f"eroica-{os.getuid()}"
        if not base.is_dir() or not make_private(str(base)):
            continue
        for marker in base.glob(f"*/pid-{pid}"):
            if is_of_this_namespace(str(marker)):
                return str(marker.parent)
    return None


def _is_launcher(pid: int) -> bool:
    text = " ".join(proc.read_command(pid))
    return any(
        word in text for word in ("torchrun", "torch.distributed", "accelerate", "deepspeed")
    )
