"""What a file is, by its first bytes and then its name; never by reading all of it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eroica.errors import InputError
from eroica.read import names
from eroica.read.source import LFS, read_head, warning_of
from eroica.read.stacks import is_stack_text

Kind = Literal[
    "trace",
    "flight",
    "stacks",
    "log",
    "nsys",
    "timeline",
    "timeline_meta",
    "hardware",
    "patterns",
    "pid",
    "tasks",
    "evidence",
    "defect",
    "other",
]

_HEAD = 1 << 16
_NO_EVIDENCE = re.compile(
    r"\.(py|pyi|pyc|ipynb|md|rst|html?|css|js|svg|png|jpe?g|gif|pdf|ya?ml|toml|cfg|ini|sh|diff"
    r"|patch|c|cc|cpp|cu|h|hpp|so|pt|pth|ckpt|safetensors|bin|whl|lock)$",
    re.I,
)
_TRACE = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|baseTimeNanoseconds)"\s*:'
    rb'|"ph"\s*:\s*"[XMisfCBEb]"'
)
_FLIGHT = re.compile(rb'"(?:profiling_name|comm_lib_version|pg_status|nccl_comm_state)"\s*:')
_PYSPY = re.compile(rb'"(?:thread_id|os_thread_id|owns_gil)"\s*:')
_OP_TIMELINE = re.compile(rb'"cat"\s*:\s*"(?:forward|backward)-compute"')
_ELASTIC_ERROR = re.compile(rb'"(?:py_callstack|extraInfo)"\s*:')
_HARDWARE = re.compile(rb'^\s*\{[^\n]*"eroica"\s*:\s*"hardware"')
_CSV_TIME = re.compile(r"^\"?(?:time_ns|time|timestamp|unix_time|time_s)\"?\s*,", re.I)
_PICKLED_FLIGHT = re.compile(rb"profiling_name|pg_config|pg_status|record_id")
_TASK = re.compile(r"^\d+ \S.* state=[A-Z] ", re.M)
_DOCUMENT = re.compile(r"^(readme|license|notice|changelog|contributing)", re.I)


@dataclass(frozen=True)
class Identified:
    """What a file is. ``why`` is the sentence for one that is not read."""

    kind: Kind
    rank: int | None = None
    why: str = ""


def identify(path: Path) -> Identified:
    """Say what a file is and which rank its name tells; never raises for a bad file."""
    try:
        size = path.stat().st_size
        head = read_head(path, _HEAD) if size else b""
    except OSError as error:
        return Identified("defect", why=f"cannot be read: {error.strerror or error}")
    except InputError as error:
        return Identified("defect", why=warning_of(error, path).what)
    if path.name.endswith(".pattern"):
        return Identified("patterns", names.rank_of(path))
    if not size:
        return Identified("defect", why="is empty")
    if head.startswith(LFS):
        return Identified("defect", why="is a Git LFS pointer, not the data itself: git lfs pull")
    binary = _binary(path, head)
    if binary is not None:
        return binary
    if _NO_EVIDENCE.search(path.name) or _DOCUMENT.match(path.name):
        if re.fullmatch(r"meta.*\.ya?ml", path.name):
            return Identified("timeline_meta")
        return Identified("other", why="source or documentation")
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        return _json(path, start)
    return _text(path, head.decode("utf-8", "replace"))


def _binary(path: Path, head: bytes) -> Identified | None:
    if head.startswith(b"SQLite format 3\0"):
        return _sqlite(path)
    if head.startswith(b"PAR1"):
        return _parquet(path)
    if head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5:
        if _PICKLED_FLIGHT.search(head) or _looks_like_flight_name(path):
            return Identified("flight", names.rank_of(path, trailing=True))
        return Identified("other", why="a pickle, and no Flight Recorder dump; it is not opened")
    if head.startswith(b"PK\x03\x04"):
        if path.suffix == ".npz":
            return Identified("hardware", names.rank_of(path))
        return Identified("other", why="a zip archive")
    if b"\0" in head[:1024] and not _TRACE.search(head):
        return Identified("other", why="binary data of no kind that is read")
    return None


def _looks_like_flight_name(path: Path) -> bool:
    return bool(re.search(r"(?:^|[_-])(?:dump|fr|nccl_trace|flight)(?:[_.-]|$)", path.name))


def _sqlite(path: Path) -> Identified:
    from eroica.read.nsys import is_nsys

    if is_nsys(path):
        return Identified("nsys", names.rank_of(path))
    return Identified("other", why="an SQLite database, but no Nsight Systems export")


def _parquet(path: Path) -> Identified:
    from pyarrow import ArrowException
    from pyarrow import parquet as pq

    try:
        columns = set(pq.read_schema(path).names)
    except (ArrowException, OSError) as error:
        return Identified("defect", why=f"is a damaged Parquet file: {error}")
    if {"optype", "start_ts", "duration"} <= columns:
        return Identified("timeline")
    if "beta" in columns or "beta_F" in columns:
        return Identified("patterns")
    if "time_ns" in columns:
        return Identified("hardware", names.rank_of(path))
    return Identified("other", why="a Parquet table of no kind that is read")


def _json(path: Path, start: bytes) -> Identified:
    if path.name == "evidence.json" and start[:1] == b"{":
        return Identified("evidence")
    if _HARDWARE.match(start):
        return Identified("hardware", names.rank_of(path))
    if start[:1] == b"[" and _OP_TIMELINE.search(start):
        return Identified("timeline")
    if _TRACE.search(start):
        return Identified("trace", names.rank_of(path))
    if _FLIGHT.search(start):
        return Identified("flight", names.rank_of(path, trailing=True))
    if _PYSPY.search(start) and b'"frames"' in start:
        return Identified("stacks", names.rank_of(path))
    if _ELASTIC_ERROR.search(start):
        return Identified("log", names.rank_of(path))
    if path.suffix in (".log", ".out", ".err"):  # a log may begin with a bracket
        return Identified("log", log_rank(path))
    return Identified("other", why="JSON, but no trace, dump or stacks")


def _text(path: Path, head: str) -> Identified:
    if is_stack_text(head):
        return Identified("stacks", names.rank_of(path))
    if "pid" in path.name and head.strip().isdecimal():
        return Identified("pid", names.rank_of(path))
    if _TASK.match(head):
        return Identified("tasks", names.rank_of(path))
    if path.suffix == ".csv":
        if _CSV_TIME.match(head):
            return Identified("hardware", names.rank_of(path))
        return Identified("other", why="a CSV table without a time column first")
    return Identified("log", log_rank(path))


def log_rank(path: Path) -> int | None:
    """A log's rank by its name, or by torchrun's ``attempt_0/3/stderr.log``."""
    rank = names.rank_of(path)
    folder = path.parent
    if rank is None and folder.name.isdecimal() and folder.parent.name.startswith("attempt_"):
        number = int(folder.name[:7])
        return number if names.is_rank(number) else None
    return rank
