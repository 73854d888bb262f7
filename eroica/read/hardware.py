"""Hardware samples -> HardwareSamples: eroica's own JSONL, CSV with a time column, npz.

The JSONL that ``eroica collect`` and the agent write: one header line, then a row a sample, so
that a file cut off anywhere is whole up to its last line::

    {"eroica": "hardware", "version": 1, "host": "node7", "rank": null,
     "counters": ["gpu0.sm_activity", "nic.mlx5_0.tx_bytes_per_s"]}
    [1795958704532322472, 0.83, 1.2e9]

A row is Unix time in ns, then the counters in the header's order; null where one failed.
Names are ``<device>.<counter>``; a counter in 0..1 is a share of the peak, one whose name ends in
``_per_s`` a rate, in ``_bytes`` a size, others are counts. CSV needs a first column ``time_ns``,
``time_s`` / ``unix_time`` (seconds) or ``timestamp`` (ISO, or nvidia-smi's form); npz an array
``time_ns`` and one array a counter.
"""

import csv
import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeGuard

import numpy as np

from eroica.columns import HardwareSamples
from eroica.errors import InputError
from eroica.read import names
from eroica.read.source import read_bytes

MAX_BYTES = 1 << 30
_MAX_COUNTERS = 4096
_UNIT = re.compile(r"\s*\[(?P<unit>[^\]]*)\]\s*$")
_NUMBER = re.compile(r"^\s*(-?\d[\d.eE+-]*)\s*(?:%|W|MiB|MHz|C)?\s*$")
_SCALE = {"%": 0.01, "mib": 1 << 20, "mhz": 1e6}
# MemoryError: numpy makes room for the shape that stands in an array's head.
_BROKEN_ARRAYS = (
    *(zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError, TypeError),
    *(NotImplementedError, MemoryError),
)
_NEXT = "the forms that are read stand in docs/formats.md; eroica collect writes one"


def header(counters: Sequence[str], *, host: str = "", rank: int | None = None) -> str:
    """The first line of a JSONL file of samples, with its newline."""
    fields = {"eroica": "hardware", "version": 1, "host": host, "rank": rank}
    return json.dumps({**fields, "counters": list(counters)}) + "\n"


def row(time_ns: int, values: Iterable[float | None]) -> str:
    """One sample's line; NaN and None become null."""
    clean = [None if v is None or not math.isfinite(v) else v for v in values]
    return json.dumps([time_ns, *clean]) + "\n"


def to_text(samples: HardwareSamples) -> str:
    """All samples as such a file; four digits of each, which is more than a counter knows."""
    names = list(samples.values_N)
    table = np.array([samples.values_N[name] for name in names]).T
    table = table.reshape(len(samples.time_ns_N), len(names))
    lines = [header(names, host=samples.host, rank=samples.rank)]
    for time_ns, values in zip(samples.time_ns_N.tolist(), table.tolist(), strict=True):
        lines.append(row(time_ns, (float(f"{value:.4g}") for value in values)))
    return "".join(lines)


def read_hardware(path: str | Path, *, rank: int | None = None) -> HardwareSamples:
    """Read a file of samples, in the order of time. InputError where there are none."""
    path = Path(path)
    if rank is None:
        rank = names.rank_of(path)
    data, _ = read_bytes(path, MAX_BYTES)
    if data.startswith(b"PK\x03\x04"):
        return _read_npz(path, data, rank)
    text = data.decode("utf-8-sig", "replace")
    if text.lstrip().startswith("{"):
        return _read_jsonl(path, text, rank)
    return _read_csv(path, text, rank)


def _read_jsonl(path: Path, text: str, rank: int | None) -> HardwareSamples:
    lines = text.splitlines()
    try:
        head = json.loads(lines[0])
        counters = [str(name) for name in head["counters"]][:_MAX_COUNTERS]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} has no header of hardware samples", str(error), _NEXT) from error
    times, rows = [], []
    for line in lines[1:]:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last line of a writer that was killed
        if isinstance(values, list) and values and _is_time(values[0]):
            times.append(values[0])
            rows.append([_float(value) for value in values[1 : len(counters) + 1]])
    told = head.get("rank")
    return _make(
        path,
        times,
        counters,
        rows,
        rank=told if names.is_rank(told) else rank,
        host=str(head.get("host") or ""),
    )


def _read_csv(path: Path, text: str, rank: int | None) -> HardwareSamples:
    try:
        table = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as CSV", str(error), _NEXT) from error
    if len(table) < 2 or len(table[0]) < 2:
        raise InputError(f"{path} holds no samples", "it has no second line", _NEXT)
    time_name = table[0][0].strip().lower()
    titles = [_title(cell) for cell in table[0][1 : _MAX_COUNTERS + 1]]
    times, rows = [], []
    for cells in table[1:]:
        time_ns = _cell_time(time_name, cells[0]) if cells else None
        if _is_time(time_ns):
            times.append(time_ns)
            pairs = zip(cells[1:], titles, strict=False)
            rows.append([_cell(cell) * scale for cell, (_, scale) in pairs])
    return _make(path, times, [name for name, _ in titles], rows, rank=rank)


def _read_npz(path: Path, data: bytes, rank: int | None) -> HardwareSamples:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(item.file_size for item in archive.infolist()) > MAX_BYTES:
                raise InputError(
                    f"{path} unpacks to more than 1 GB",
                    next_step=_NEXT,
                    found="samples of a day take some MB",
                )
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files[: _MAX_COUNTERS + 1]}
        times = found.pop("time_ns").astype(np.int64)
        values = {
            name: array.astype(np.float64)
            for name, array in found.items()
            if array.shape == times.shape and array.ndim == 1
        }
    except _BROKEN_ARRAYS as error:
        raise InputError(f"{path} holds no samples", str(error), _NEXT) from error
    if not times.size or not values:
        raise InputError(f"{path} holds no samples", "no array is as long as time_ns", _NEXT)
    order = np.argsort(times, kind="stable")
    return HardwareSamples(times[order], {k: v[order] for k, v in values.items()}, rank=rank)


def _make(
    path: Path,
    times: list[int],
    counters: list[str],
    rows: list[list[float]],
    *,
    rank: int | None = None,
    host: str = "",
) -> HardwareSamples:
    """Columns from rows; short rows are filled with NaN."""
    if not times or not counters:
        raise InputError(f"{path} holds no samples", "no line has a time and values", _NEXT)
    time_ns = np.array(times, np.int64)
    values = np.full((len(rows), len(counters)), np.nan)
    for number, values_of_row in enumerate(rows):
        values[number, : len(values_of_row)] = values_of_row
    order = np.argsort(time_ns, kind="stable")
    columns = {name: values[order, column] for column, name in enumerate(counters)}
    return HardwareSamples(time_ns[order], columns, rank=rank, host=host)


def _is_time(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62


def _float(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else math.nan


def _title(cell: str) -> tuple[str, float]:
    """(name, factor) of a column: ``utilization.gpu [%]`` counts in 0..1."""
    unit = _UNIT.search(cell)
    scale = _SCALE.get(unit["unit"].strip().lower(), 1.0) if unit else 1.0
    return _UNIT.sub("", cell).strip(), scale


def _cell(cell: str) -> float:
    found = _NUMBER.match(cell)
    try:
        return float(found[1]) if found else math.nan
    except ValueError:
        return math.nan


def _cell_time(name: str, cell: str) -> int | None:
    """Unix ns of a time cell; dates without a zone are taken for UTC."""
    cell = cell.strip()
    try:
        if name == "time_ns":
            return int(cell) if len(cell) < 20 else None
        if re.fullmatch(r"-?\d{1,12}(?:\.\d+)?", cell):
            whole, _, part = cell.partition(".")
            return int(whole) * 1_000_000_000 + int(part[:9].ljust(9, "0"))
        moment = datetime.fromisoformat(cell.replace("/", "-"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
