"""Nsight Systems SQLite exports -> Timeline, one a process that used a GPU.

The schema differs with every release (27 to 40 columns of the kernel table have been seen), so
tables and columns are looked up, never assumed; what is missing is left out. The file is opened
read-only and immutable, its schema untrusted; views and virtual tables are not touched.
Layout: docs.nvidia.com/nsight-systems, "Exporter Schema Reference".
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from eroica.columns import Timeline
from eroica.errors import InputError
from eroica.read import names
from eroica.read.nsys_events import (
    KERNELS,
    SOURCES,
    UNKNOWN_PROCESS,
    EventReader,
    tables_of,
)

_MARK_OF_EXPORT = ("StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_GPU")
_ACTIVITY_TABLES = (KERNELS, "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")


def is_nsys(path: Path) -> bool:
    """Whether an SQLite file is an export of Nsight Systems; False for one that is damaged."""
    try:
        with _open(path) as database:
            tables = tables_of(database)
    except InputError:
        return False
    return any(name in tables for name in _MARK_OF_EXPORT) or any(
        name.startswith("CUPTI_ACTIVITY") for name in tables
    )


def list_ranks(path: str | Path, *, rank: int | None = None) -> list[int]:
    """Ranks the export holds: one a process with GPU work, in the order of their devices.

    With one process the rank is the one asked for, else the name's, else MPI's, else 0.
    """
    path = Path(path)
    with _open(path) as database:
        return sorted(_processes(database, path, rank))


def read_timeline(path: str | Path, *, rank: int | None = None) -> Timeline:
    """Read one rank of an export. InputError where it is damaged or has no such rank."""
    path = Path(path)
    with _open(path) as database:
        processes = _processes(database, path, rank if rank is not None else names.rank_of(path))
        if rank is None:
            rank = min(processes)
        if rank not in processes:
            raise InputError(
                f"{path} holds no rank {rank}",
                f"its processes are ranks {sorted(processes)}",
                "put the rank into the name: ..._rank3.sqlite",
            )
        reader = EventReader(database, path, processes[rank])
        for source in SOURCES:
            reader.add(source)
        return reader.finish(rank, len(processes) if len(processes) > 1 else None)


# --- the database -----------------------------------------------------------------------------


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write; SQLite's errors become InputError."""
    database = None
    try:
        uri = path.absolute().as_uri() + "?mode=ro&immutable=1"
        database = sqlite3.connect(uri, uri=True)
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        database.execute("PRAGMA trusted_schema=OFF")
        yield database
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the names in a damaged schema
        raise InputError(
            f"{path} cannot be read as an Nsight Systems export",
            str(error),
            "export it again: nsys export --type sqlite REPORT.nsys-rep",
        ) from error
    finally:
        if database is not None:
            database.close()


def _processes(database: sqlite3.Connection, path: Path, rank: int | None) -> dict[int, int]:
    """Rank -> process number (``globalPid >> 24``), in the order of devices."""
    columns = tables_of(database)
    if not any(table in columns for table in _ACTIVITY_TABLES):
        raise InputError(
            f"{path} holds no activity",
            "it has neither kernels nor CUDA calls nor NVTX ranges",
            "record again with nsys profile --trace=cuda,nvtx",
        )
    found: list[tuple[int, int]] = []
    for table in (KERNELS, "CUPTI_ACTIVITY_KIND_MEMCPY"):
        if {"globalPid", "deviceId"} <= columns.get(table, frozenset()):
            found += database.execute(
                f"SELECT globalPid >> 24, MIN(deviceId) FROM {table} GROUP BY 1"
            ).fetchall()
    devices: dict[int, int] = {}
    for process, device in found:
        if isinstance(process, int) and isinstance(device, int):
            devices[process] = min(device, devices.get(process, device))
    ordered = sorted(devices, key=lambda process: (devices[process], process))
    if len(ordered) > 1:
        return dict(enumerate(ordered))
    if rank is None:
        rank = _mpi_rank(database, columns)
    return {rank or 0: ordered[0] if ordered else UNKNOWN_PROCESS}


def _mpi_rank(database: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> int | None:
    """NVTX tells it where nsys traced MPI: ``MPI Rank 3``."""
    if "text" not in columns.get("NVTX_EVENTS", frozenset()):
        return None
    row = database.execute(
        "SELECT text FROM NVTX_EVENTS WHERE text GLOB 'MPI Rank [0-9]*' LIMIT 1"
    ).fetchone()
    found = re.match(r"MPI Rank (\d{1,7})$", row[0]) if row and isinstance(row[0], str) else None
    return int(found[1]) if found else None
