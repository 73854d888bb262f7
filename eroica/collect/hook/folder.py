"""Where the ranks of one job on one host meet their agent: a private folder in memory.

``rank-00003.ring`` events, ``rank-00003.sock`` requests, ``pid-1234`` marks a process that is a
rank (and holds the name of its pid namespace), ``rank-00003.exit.json`` how it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time

_FOREIGN_S = 30 * 86400.0


def find_folder() -> str | None:
    """Return the job's folder, made if need be; None where nothing can be written."""
    folder = os.environ.get("EROICA_RUN")
    if not folder:
        base = _base()
        if base is None:
            return None
        folder = os.path.join(base, "job-" + job_key())
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return None
    if os.stat(folder).st_uid != os.getuid() or not os.access(folder, os.W_OK):
        return None
    return folder


def is_shared() -> bool:
    """Whether an agent made the folder and will take it away."""
    return bool(os.environ.get("EROICA_RUN"))


def leave(folder: str, rank: int) -> None:
    """Take this rank's files away at exit, and the folder with the last one.

    Where an agent attends the folder, how the rank ended stays for it to read; it cleans up.
    """
    os.unlink(os.path.join(folder, "pid-{}".format(os.getpid())))
    if _is_attended(folder):
        return
    if any(name.startswith("pid-") for name in os.listdir(folder)):
        for end in (".ring", ".sock", ".torch", ".fault", ".facts.json", ".exit.json"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, "rank-{:05d}{}".format(rank, end)))
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _is_attended(folder: str) -> bool:
    """Whether a living agent holds the folder's lock; one that was killed holds it no more."""
    import fcntl

    try:
        with open(os.path.join(folder, "agent.lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def sweep() -> None:
    """Take away folders whose ranks are all gone (killed, so that they could not)."""
    base = _base()
    if base is None:
        return
    with contextlib.suppress(OSError):
        for folder in os.listdir(base):
            path = os.path.join(base, folder)
            if folder.startswith(("job-", "run-")) and not _is_used(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_used(folder: str) -> bool:
    marks = [name for name in os.listdir(folder) if name.startswith("pid-")]
    if not marks:  # just made, or left by an agent that was killed before a rank came
        return time.time() - os.stat(folder).st_mtime < 3600
    if _is_attended(folder):
        return True
    return any(_is_living(os.path.join(folder, mark)) for mark in marks)


def _is_living(mark: str) -> bool:
    """Whether the rank that a mark is of may be alive.

    Containers that share /dev/shm (``--ipc=host``) do not see each other's processes: theirs
    are given a month.
    """
    if not is_of_this_namespace(mark):
        return time.time() - os.stat(mark).st_mtime < _FOREIGN_S
    return os.path.exists("/proc/" + os.path.basename(mark)[4:])


def pid_namespace() -> str:
    """Name the space in which this process's pids are numbered; empty where that is not told."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def mark_pid(folder: str) -> None:
    """Mark this process as a rank, with the namespace its pid is of."""
    path = os.path.join(folder, f"pid-{os.getpid()}")
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        os.write(handle, pid_namespace().encode())
    finally:
        os.close(handle)


def is_of_this_namespace(mark: str) -> bool:
    """Whether the pid of a mark means the same process here."""
    try:
        with open(mark) as stream:
            told = stream.read()
    except OSError:
        return True
    return not told or told == pid_namespace()


def job_key() -> str:
    """Name the job as its ranks on this host see it: launcher process, run id, rendezvous."""
    names = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")
    parts = [os.environ.get(name, "") for name in names] + [str(os.getppid()), pid_namespace()]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def _base() -> str | None:
    for root in ("/dev/shm", tempfile.gettempdir()):
        base = os.path.join(root, f"eroica-{os.getuid()}")
        if make_private(base):
            return base
    return None


def make_private(folder: str) -> bool:
    """Make a folder only we can write; False where another user's lies there, or a link.

    In a place that all may write, anybody can have made it before us, to read what we write or
    to answer in our ranks' stead.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError:
        return False
    is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not is_open


def is_child_of_rank(folder: str) -> bool:
    """Whether an ancestor is a rank already: loader workers and compilers inherit RANK."""
    pid = os.getppid()
    for _ in range(16):
        if pid <= 1:
            return False
        if os.path.exists(os.path.join(folder, f"pid-{pid}")):
            return True
        pid = parent_of(pid)
    return False


def parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
