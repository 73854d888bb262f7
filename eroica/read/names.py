"""Ranks and hosts told by file and folder names, where the content does not say."""

import re
from pathlib import Path
from typing import TypeGuard

LARGEST_WORLD = 1_000_000
"""Ranks of the largest job that is believed: what is told beyond would be counted up to."""
# rank3, rank_3, rank-00003, global_rank=3; not local_rank3: that is another number.
_RANK = re.compile(r"(?<![a-z])(?P<local>local[-_]?)?rank[-_=.]?(?P<rank>\d{1,7})(?!\d)", re.I)
_WORKER = re.compile(r"(?<![a-z])worker[-_]?(\d{1,7})(?!\d)", re.I)
_LAST_NUMBER = re.compile(r"(?:^|[-_.])(\d{1,7})$")
_EXTENSIONS = re.compile(
    r"\.(?:gz|zst|json|jsonl|pickle|pkl|txt|log|out|err|bin|dump|trace|pt|stack|pattern)$", re.I
)
# nccl_trace_rank_HOST_3 and HOST.rank3.txt, as launchers that run containers make them
_HOST_THEN_RANK = re.compile(r"rank_(?P<host>[A-Za-z][\w.-]*?)_(?P<rank>\d{1,7})$")
# A folder counts only if that is all its name says: "barrier_in_rank0" tells of a fault.
_RANK_FOLDER = re.compile(r"^(?:global[-_])?(?:rank|worker)[-_=.]?(\d{1,7})$", re.I)
_HOST_FOLDER = re.compile(r"^(?:host|node)[-_=.](?P<host>[\w.-]+)$", re.I)


def stem(path: Path) -> str:
    """The name without its known extensions: ``a.pt.trace.json.gz`` gives ``a``."""
    name = path.name
    while (shorter := _EXTENSIONS.sub("", name)) not in (name, ""):
        name = shorter
    return name


def rank_of(path: Path, *, trailing: bool = False) -> int | None:
    """The rank a name tells: its own, else that of the two folders above it.

    ``trailing`` also takes a last number for a rank (``_dump_3``), which is right for Flight
    Recorder dumps and wrong for files that end in a pid or a time.
    """
    name = stem(path)
    found = _HOST_THEN_RANK.search(name)
    rank = int(found["rank"]) if found else _named(name)
    if rank is None and trailing:
        number = _LAST_NUMBER.search(name)
        rank = int(number[1]) if number else None
    for folder in path.parts[-2:-4:-1]:
        if rank is None:
            rank = _folder_rank(folder)
    return rank if is_rank(rank) else None


def is_rank(value: object) -> TypeGuard[int]:
    """Whether a number that a file tells can be the rank of a job."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_WORLD


def host_of(path: Path) -> str:
    """The host a name tells, or an empty string."""
    found = _HOST_THEN_RANK.search(stem(path))
    if found:
        return found["host"]
    for folder in path.parts[-2:-4:-1]:
        if named := _HOST_FOLDER.match(folder):
            return named["host"]
    return ""


def natural_key(path: Path) -> list[tuple[int, str]]:
    """Sort key under which ``rank2`` comes before ``rank10``."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _named(name: str) -> int | None:
    for match in _RANK.finditer(name):
        if not match["local"]:
            return int(match["rank"])
    worker = _WORKER.search(name)
    return int(worker[1]) if worker else None


def _folder_rank(name: str) -> int | None:
    found = _RANK_FOLDER.match(name)
    return int(found[1]) if found else None


def is_rank_folder(name: str) -> bool:
    """Whether a folder stands for a rank or host of a job rather than for a job."""
    return _folder_rank(name) is not None or bool(_HOST_FOLDER.match(name)) or name == "evidence"


def time_key(path: Path) -> tuple[int, list[tuple[int, str]]]:
    """Sort key by the time in a name (``worker0.1694128201545.pt.trace.json``), then the name."""
    stamps = [int(number) for number in re.findall(r"(?<!\d)1\d{12,18}(?!\d)", path.name)]
    return (int(str(stamps[-1])[:13]) if stamps else 0, natural_key(path))
