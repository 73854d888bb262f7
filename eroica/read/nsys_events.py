"""The events of one process of an Nsight Systems export, table by table, into columns."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eroica.columns import CollectiveColumns, Int64, Timeline, Track
from eroica.errors import InputError
from eroica.read.nccl import op_of_kernel
from eroica.read.opening import readable
from eroica.records import Warning

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
UNKNOWN_PROCESS = -1
_CHUNK = 1 << 16
# What torch.autograd.profiler.emit_nvtx puts behind an operator's name.
_OP_SUFFIX = re.compile(r", (?:seq|op_id) = .*$", re.S)


@dataclass(frozen=True)
class _Source:
    """A table, the category its rows get, and where their names are."""

    table: str
    category: str
    names: tuple[str, ...] = ()
    """Columns that refer to StringIds, the best first."""
    fixed_name: str = ""
    is_device: bool = False


SOURCES = (
    _Source(KERNELS, "kernel", ("demangledName", "shortName", "mangledName"), "kernel", True),
    _Source("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "kernel", (), "CUDA graph", True),
    _Source("CUPTI_ACTIVITY_KIND_MEMCPY", "gpu_memcpy", (), "Memcpy", True),
    _Source("CUPTI_ACTIVITY_KIND_MEMSET", "gpu_memset", (), "Memset", True),
    _Source("CUPTI_ACTIVITY_KIND_RUNTIME", "cuda_runtime", ("nameId",), "runtime call"),
    _Source("NVTX_EVENTS", "user_annotation", ("textId",), "range"),
    _Source("OSRT_API", "os_runtime", ("nameId",), "system call"),
)
# CUDA's cudaMemcpyKind as CUPTI numbers it (CUpti_ActivityMemcpyKind), in Kineto's words.
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}


def tables_of(database: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Real tables and their columns."""
    rows = database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    )
    return {
        name: frozenset(
            row[0] for row in database.execute("SELECT name FROM pragma_table_info(?)", (name,))
        )
        for (name,) in rows.fetchall()
    }


@dataclass
class _Columns:
    """Event columns while they grow, a piece a table."""

    start: list[Int64] = field(default_factory=list)
    duration: list[Int64] = field(default_factory=list)
    name: list[Int64] = field(default_factory=list)
    category: list[Int64] = field(default_factory=list)
    track: list[Int64] = field(default_factory=list)
    correlation: list[Int64] = field(default_factory=list)


class EventReader:
    """Collects the rows of one process from one table after the other."""

    def __init__(self, database: sqlite3.Connection, path: Path, process: int) -> None:
        self.database, self.path, self.process = database, path, process
        self.tables = tables_of(database)
        self.columns = _Columns()
        self.categories: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.tracks: dict[tuple[bool, int, int], int] = {}
        self.warnings: list[Warning] = []

    def add(self, source: _Source) -> None:
        """Append a table's rows; a missing one is nothing, a damaged one a warning."""
        columns = self.tables.get(source.table, frozenset())
        if not {"start", "end"} <= columns:
            if columns:
                self._warn(source.table, "has no start and end")
            return
        num_dropped = 0
        try:
            for rows in self._rows(source, columns):
                num_dropped += self._take(source, rows)
        except sqlite3.Error as error:
            self._warn(source.table, f"is damaged ({error}); its rows before that are used")
        if num_dropped:
            self._warn(source.table, f"has {num_dropped} rows that end before they start")

    def _rows(self, source: _Source, columns: frozenset[str]) -> Iterator[list[tuple[object, ...]]]:
        """Chunks of (start, duration, name id, text, correlation, place 1, place 2)."""
        one, two = ("deviceId", "streamId") if source.is_device else ("globalTid", "globalTid")
        owner = "globalPid" if source.is_device else "globalTid"
        name_id = next((column for column in source.names if column in columns), "NULL")
        text = _text_column(source, columns)
        where = ["end IS NOT NULL", "start IS NOT NULL"]
        if owner in columns and self.process != UNKNOWN_PROCESS:
            where.append(f"{owner} >> 24 = {int(self.process)}")
        query = (
            f"SELECT CAST(start AS INTEGER), CAST(end AS INTEGER) - CAST(start AS INTEGER), "
            f"{_number(name_id, columns)}, {text}, {_number('correlationId', columns)}, "
            f"{_number(one, columns)}, {_number(two, columns)} "
            f"FROM {source.table} WHERE {' AND '.join(where)}"
        )
        cursor = self.database.execute(query)
        while rows := cursor.fetchmany(_CHUNK):
            yield rows

    def _take(self, source: _Source, rows: Sequence[tuple[object, ...]]) -> int:
        """Append rows; return how many were dropped."""
        start, duration, name_id, text, correlation, one, two = zip(*rows, strict=True)
        duration_ns = _int64(duration)
        keep = duration_ns >= 0
        named = [
            self._name(source, number, words) for number, words in zip(name_id, text, strict=True)
        ]
        places = [self._track(source.is_device, a, b) for a, b in zip(one, two, strict=True)]
        columns = self.columns
        columns.start.append(_int64(start)[keep])
        columns.duration.append(duration_ns[keep])
        columns.name.append(np.array([name for name, _ in named], np.int64)[keep])
        columns.category.append(np.array([kind for _, kind in named], np.int64)[keep])
        columns.track.append(np.array(places, np.int64)[keep])
        columns.correlation.append(_int64(correlation)[keep])
        return int(np.count_nonzero(~keep))

    def _name(self, source: _Source, number: object, text: object) -> tuple[int, int]:
        """(name id, category id) of a row."""
        category = source.category
        if isinstance(text, int):  # a copy's kind
            name = f"Memcpy {_COPY_KINDS.get(text, str(text))}"
        elif isinstance(text, str) and text:
            name = text
        else:
            name = self.strings.get(number, "") if isinstance(number, int) else ""
        name = name or source.fixed_name
        if category == "user_annotation":
            short = _OP_SUFFIX.sub("", name)
            category = "cpu_op" if short != name else category
            name = short
        return (
            self.names.setdefault(name, len(self.names)),
            self.categories.setdefault(category, len(self.categories)),
        )

    def _track(self, is_device: bool, one: object, two: object) -> int:
        key = (is_device, one if isinstance(one, int) else -1, two if isinstance(two, int) else -1)
        return self.tracks.setdefault(key, len(self.tracks))

    @cached_property
    def strings(self) -> dict[int, str]:
        """StringIds, read once."""
        if not {"id", "value"} <= self.tables.get("StringIds", frozenset()):
            return {}
        rows = self.database.execute("SELECT id, value FROM StringIds")
        return {k: v for k, v in rows if isinstance(k, int) and isinstance(v, str)}

    def finish(self, rank: int, world_size: int | None) -> Timeline:
        columns = self.columns
        if not columns.start or not sum(len(part) for part in columns.start):
            raise InputError(
                f"{self.path} holds no events of rank {rank}",
                "its tables are there, but empty",
                "record again with nsys profile --trace=cuda,nvtx",
            )
        name_id = np.concatenate(columns.name).astype(np.int32)
        num_events = len(name_id)
        name_table = tuple(self.names)
        return Timeline(
            path=readable(self.path),
            rank=rank,
            world_size=world_size,
            start_ns_E=np.concatenate(columns.start),
            duration_ns_E=np.concatenate(columns.duration),
            name_id_E=name_id,
            category_id_E=np.concatenate(columns.category).astype(np.int16),
            track_id_E=np.concatenate(columns.track).astype(np.int32),
            python_id_E=np.full(num_events, -1, np.int64),
            python_parent_E=np.full(num_events, -1, np.int64),
            correlation_E=np.concatenate(columns.correlation),
            names=name_table,
            categories=tuple(self.categories),
            tracks=tuple(self._make_track(*key) for key in self.tracks),
            collectives=self._collectives(name_id, name_table),
            base_ns=self._session_start(),
            host=self._host(),
            backend="nccl" if any(op_of_kernel(name) for name in name_table) else "",
            metadata={"source": "nsys"},
            warnings=tuple(self.warnings),
            num_bytes=self.path.stat().st_size,
        )

    def _make_track(self, is_device: bool, one: int, two: int) -> Track:
        pid = str(self.process & 0xFFFFFF) if self.process != UNKNOWN_PROCESS else "0"
        if is_device:
            return Track(
                str(one), str(two), f"stream {two}", is_device=True, device=one, stream=two
            )
        return Track(pid, str(one & 0xFFFFFF), self._thread_name(one))

    def _thread_name(self, global_tid: int) -> str:
        if not {"nameId", "globalTid"} <= self.tables.get("ThreadNames", frozenset()):
            return ""
        row = self.database.execute(
            "SELECT nameId FROM ThreadNames WHERE globalTid = ? LIMIT 1", (global_tid,)
        ).fetchone()
        return self.strings.get(row[0], "") if row else ""

    def _collectives(self, name_id: NDArray[np.int32], table: tuple[str, ...]) -> CollectiveColumns:
        """NCCL kernels in the order they ran; an export knows neither group nor number."""
        op_by_name = [op_of_kernel(name) for name in table]
        ops = tuple(dict.fromkeys(op for op in op_by_name if op))
        number = {op: index for index, op in enumerate(ops)}
        op_id = np.array([number.get(op, -1) for op in op_by_name], np.int32)[name_id]
        events = np.flatnonzero(op_id >= 0)
        starts = np.concatenate(self.columns.start)[events]
        events = events[np.argsort(starts, kind="stable")].astype(np.int64)
        return CollectiveColumns(
            event_C=events,
            op_id_C=op_id[events],
            group_id_C=np.zeros(len(events), np.int32),
            sequence_C=np.full(len(events), -1, np.int64),
            num_bytes_C=np.full(len(events), -1, np.int64),
            ops=ops,
            groups=("",),
        )

    def _session_start(self) -> int:
        table = "TARGET_INFO_SESSION_START_TIME"
        if "utcEpochNs" not in self.tables.get(table, frozenset()):
            return 0
        row = self.database.execute(f"SELECT utcEpochNs FROM {table} LIMIT 1").fetchone()
        return row[0] if row and isinstance(row[0], int) else 0

    def _host(self) -> str:
        if not {"name", "value"} <= self.tables.get("TARGET_INFO_SYSTEM_ENV", frozenset()):
            return ""
        row = self.database.execute(
            "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname' LIMIT 1"
        ).fetchone()
        return row[0] if row and isinstance(row[0], str) else ""

    def _warn(self, table: str, what: str) -> None:
        self.warnings.append(Warning(file=str(self.path), what=f"table {table} {what}"))


def _number(column: str, columns: frozenset[str]) -> str:
    return f"CAST(COALESCE({column}, -1) AS INTEGER)" if column in columns else "-1"


def _text_column(source: _Source, columns: frozenset[str]) -> str:
    """The column with the name itself, where the table has one."""
    if source.table == "NVTX_EVENTS" and "text" in columns:
        return "text"
    if source.table == "CUPTI_ACTIVITY_KIND_MEMCPY" and "copyKind" in columns:
        return "copyKind"
    return "NULL"


def _int64(values: Sequence[object]) -> Int64:
    return np.array([value if isinstance(value, int) else -1 for value in values], np.int64)
