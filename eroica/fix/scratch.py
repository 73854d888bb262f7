"""Scratch copies of a project, in which a rehearsal may write what it likes.

Small files are copied. A large one costs nothing where the file system can share its blocks; else
it is linked, for data sets are read only. But not what a job may write itself (checkpoints, logs):
through a link the rehearsed job would write into the user's own. Such files are copied up to a
bound, and beyond it left out.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SKIP = (".git", ".hg", ".eroica", ".venv", "venv", "__pycache__", "node_modules", "wandb", "mlruns")
LINK_BYTES = 50_000_000
COPY_BYTES = 2_000_000_000
"""Of what a job may write itself; all such files of a copy together."""
_WRITTEN = re.compile(r"\.(pt|pth|ckpt|safetensors|distcp|log|out|err|tmp)$|tfevents", re.I)
_FICLONE = 0x40049409


@dataclass
class Copied:
    """What of a project is not its copy's own."""

    linked: list[Path] = field(default_factory=list)
    """The user's files that the copy shares."""
    left_out: list[Path] = field(default_factory=list)
    num_bytes: int = 0
    """Copied of large files that a job may write."""


def copy_tree(source: Path, target: Path) -> Copied:
    """Copy a project; links stay links to where they led."""
    copied = Copied()
    target.mkdir(parents=True)
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in SKIP]
        here = target / Path(folder).relative_to(source)
        here.mkdir(exist_ok=True)
        for name in list(folders):
            if (Path(folder) / name).is_symlink():
                folders.remove(name)
                (here / name).symlink_to((Path(folder) / name).resolve())
        for name in files:
            file = Path(folder) / name
            if file.is_file():  # no pipe, no device, no link to nowhere
                _copy_file(file, here / name, copied)
    return copied


def _copy_file(file: Path, target: Path, copied: Copied) -> None:
    size = file.stat().st_size
    if not file.is_symlink() and size <= LINK_BYTES:
        shutil.copy2(file, target)
    elif _share_blocks(file, target):
        return
    elif not _WRITTEN.search(file.name):
        target.symlink_to(file.resolve())
        copied.linked.append(file.resolve())
    elif copied.num_bytes + size <= COPY_BYTES:
        copied.num_bytes += size
        shutil.copy2(file, target)
    else:
        copied.left_out.append(file)


def _share_blocks(file: Path, target: Path) -> bool:
    """Make a copy that shares the blocks until one is written; False where that cannot be."""
    try:
        with file.open("rb") as old, target.open("wb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        shutil.copystat(file, target)
    except OSError:
        target.unlink(missing_ok=True)
        return False
    return True


Stamps = dict[Path, tuple[int, int]]


def stamps(files: Iterable[Path]) -> Stamps:
    """Size and time of change of files, to see later whether they were written."""
    found: Stamps = {}
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found[file] = (status.st_size, status.st_mtime_ns)
    return found


def notes_on(copied: Copied, before: Mapping[Path, tuple[int, int]]) -> list[str]:
    """Name what was left out of the copy, and what of the user's the job wrote to all the same."""
    now = stamps(before)
    written = [str(file) for file in before if now.get(file) != before[file]]
    notes = [f"{file} was written by a rehearsed job: both runs share it" for file in written]
    return notes + [f"{file} is too large to copy, and was left out" for file in copied.left_out]
