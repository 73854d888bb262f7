"""Ranks together: one function-major table to compare, one Parquet file to keep.

A file holds three kinds of rows, told apart by which columns are filled: functions (``function``,
``record``), patterns (``function``, ``rank`` and the numbers), ranks (``rank``, ``record`` with
everything that is one a rank: window, steps, settings, arrivals, breakdown). So a saved incident
can be localized again from this file alone, and other tools can read the numbers as columns.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.columns import Float32, PatternTable, RankPatterns
from eroica.errors import InputError
from eroica.records import Function
from eroica.summarize.packing import pack, unpack

if TYPE_CHECKING:
    import pyarrow as pa

_FORMAT = b"eroica.patterns.1"
_ROW_GROUP = 1 << 20
_UNLIMITED = 1 << 62
_MAX_PACKED_BYTES = 16 << 20
_function_encoder = msgspec.msgpack.Encoder()
_function_decoder = msgspec.msgpack.Decoder(Function)


def merge(patterns: Sequence[RankPatterns]) -> PatternTable:
    """Return all ranks' patterns function-major, ranks ascending; absent functions are (0, 0, 0).

    mu and sigma that are relative to the best of one rank become relative to the best of all. A
    rank that comes twice (two windows) keeps the later one.
    """
    by_rank = {one.rank: one for one in patterns}
    ranks = [by_rank[rank] for rank in sorted(by_rank)]
    functions, rows_of = _number_functions(ranks)
    shape = (len(functions), len(ranks))
    beta, mu, sigma = (np.zeros(shape, np.float32) for _ in range(3))
    reference = np.zeros(shape, np.float64)
    total, count = np.zeros(shape, np.int64), np.zeros(shape, np.int32)
    for column, (one, rows) in enumerate(zip(ranks, rows_of, strict=True)):
        beta[rows, column] = one.beta_F
        mu[rows, column], sigma[rows, column] = one.mu_F, one.sigma_F
        total[rows, column], count[rows, column] = one.total_ns_F, one.count_F
        if one.reference_F is not None:
            reference[rows, column] = one.reference_F
    _rescale(mu, sigma, reference)
    order = (
        np.argsort(-beta.max(axis=1), kind="stable") if len(ranks) else np.arange(len(functions))
    )
    return PatternTable(
        functions=tuple(functions[i] for i in order),
        ranks_R=np.array([one.rank for one in ranks], np.int64),
        beta_FR=beta[order],
        mu_FR=mu[order],
        sigma_FR=sigma[order],
        total_ns_FR=total[order],
        count_FR=count[order],
        window_ns_R=np.array([one.window_ns for one in ranks], np.int64),
        num_steps_R=np.array(
            [-1 if one.num_steps is None else one.num_steps for one in ranks], np.int32
        ),
        hosts_R=tuple(one.host for one in ranks),
    )


def _rescale(mu: Float32, sigma: Float32, reference: NDArray[np.float64]) -> None:
    """Make mu and sigma relative to the best rate of all ranks, in place.

    A function is compared with itself on the other ranks only.
    """
    if not reference.any():
        return
    best = reference.max(axis=1, keepdims=True)
    scale = np.where(reference > 0, reference / np.where(best > 0, best, 1.0), 1.0)
    mu *= scale
    sigma *= scale


def write_parquet(path: str | Path, patterns: Sequence[RankPatterns]) -> None:
    """Write the ranks' patterns to one Parquet file, replacing it as a whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    functions, rows_of = _number_functions(patterns)
    parts = [_columns(one, rows) for one, rows in zip(patterns, rows_of, strict=True)]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else []
    schema = _schema()
    order = np.argsort(columns[0], kind="stable") if columns else np.empty(0, np.int64)
    names = ("function", "rank", "beta", "mu", "sigma", "reference", "count", "total_ns")
    numbers = {name: pa.array(column[order]) for name, column in zip(names, columns, strict=False)}
    tables = [
        _rows(
            schema,
            function=pa.array(range(len(functions)), pa.int32()),
            record=pa.array([_function_encoder.encode(f) for f in functions], pa.binary()),
        ),
        _rows(schema, **numbers),
        _rows(
            schema,
            rank=pa.array([one.rank for one in patterns], pa.int64()),
            record=pa.array(
                [_rank_record(one, part[0]) for one, part in zip(patterns, parts, strict=True)],
                pa.binary(),
            ),
        ),
    ]
    unfinished = path.with_name(path.name + ".part")
    try:
        with pq.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for table in tables:
                if len(table):
                    writer.write_table(table, row_group_size=_ROW_GROUP)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)  # it is there only where writing failed


def _number_functions(
    patterns: Sequence[RankPatterns],
) -> tuple[list[Function], list[NDArray[np.int32]]]:
    """Return all functions once, and the numbers of each rank's own."""
    number: dict[str, int] = {}
    functions: list[Function] = []
    rows_of = []
    for one in patterns:
        rows = np.empty(len(one.functions), np.int32)
        for i, function in enumerate(one.functions):
            row = number.setdefault(function.id, len(functions))
            if row == len(functions):
                functions.append(function)
            rows[i] = row
        rows_of.append(rows)
    return functions, rows_of


def _columns(one: RankPatterns, rows: NDArray[np.int32]) -> tuple[NDArray[Any], ...]:
    """Return a rank's columns with the numbers of its functions and its own in front."""
    rank = np.full(len(rows), one.rank, np.int64)
    reference = np.zeros(len(rows), np.float32) if one.reference_F is None else one.reference_F
    return (
        *(rows, rank, one.beta_F, one.mu_F, one.sigma_F),
        *(reference, one.count_F, one.total_ns_F),
    )


def read_parquet(path: str | Path) -> list[RankPatterns]:
    """Return the ranks' patterns as they were written, in their order.

    InputError where the file is no Parquet file of eroica.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        if (table.schema.metadata or {}).get(b"eroica") != _FORMAT:
            raise InputError(
                f"{path} holds no patterns of eroica",
                f"found a Parquet file with columns {', '.join(table.column_names[:8])}",
                next_step="name a patterns.parquet of an incident, or the traces",
            )
        return _read_rows(table)
    except (
        OSError,
        pa.ArrowException,
        msgspec.DecodeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"{path} cannot be read",
            f"found {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            "diagnose the traces again to make it anew",
        ) from error


def read_patterns(path: str | Path) -> list[RankPatterns]:
    """Return the patterns in a file, be it Parquet or one packed rank; InputError for others."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(4)
            if head == b"PAR1":
                return read_parquet(path)
            rest = file.read(_MAX_PACKED_BYTES)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read",
            error.strerror or str(error),
            next_step="check the path and its permissions",
        ) from error
    try:
        return [unpack(head + rest)]
    except InputError as error:
        raise InputError(f"{path} holds no patterns", error.found, error.next_step) from error


def _read_rows(table: "pa.Table") -> list[RankPatterns]:
    import pyarrow.compute as pc

    has_record, has_rank = pc.is_valid(table["record"]), pc.is_valid(table["rank"])
    function_rows = table.filter(pc.and_(has_record, pc.invert(has_rank)))
    rank_rows = table.filter(pc.and_(has_record, has_rank))
    rows = table.filter(pc.invert(has_record))
    functions = [_function_decoder.decode(raw) for raw in function_rows["record"].to_pylist()]
    rank = rows["rank"].to_numpy()
    order = np.argsort(rank, kind="stable")
    rank = rank[order]
    columns = {
        name: rows[name].to_numpy()[order]
        for name in ("function", "beta", "mu", "sigma", "reference", "count", "total_ns")
    }
    result = []
    for raw in rank_rows["record"].to_pylist():
        positions, packed = msgspec.msgpack.decode(raw, type=tuple[bytes, bytes])
        one = unpack(packed)
        first, last = np.searchsorted(rank, [one.rank, one.rank + 1])
        # Within a rank the file is in order of function number; give back the rank's own order.
        own = first + np.frombuffer(positions, "<i4")
        if len(own) != last - first:
            raise IndexError(f"rank {one.rank} has {last - first} rows, not {len(own)}")
        result.append(
            replace(
                one,
                functions=tuple(functions[i] for i in columns["function"][own]),
                beta_F=columns["beta"][own].astype(np.float32),
                mu_F=columns["mu"][own].astype(np.float32),
                sigma_F=columns["sigma"][own].astype(np.float32),
                count_F=columns["count"][own].astype(np.int32),
                total_ns_F=columns["total_ns"][own].astype(np.int64),
                reference_F=None
                if one.reference_F is None
                else columns["reference"][own].astype(np.float32),
            )
        )
    return result


def _rank_record(one: RankPatterns, rows: NDArray[np.int32]) -> bytes:
    """Return what is one a rank, and where each function of the rank is among the rank's rows."""
    position = np.empty(len(rows), "<i4")
    position[np.argsort(rows, kind="stable")] = np.arange(len(rows), dtype="<i4")
    empty = np.empty(0, np.float32)
    bare = replace(
        one,
        functions=(),
        beta_F=empty,
        mu_F=empty,
        sigma_F=empty,
        count_F=np.empty(0, np.int32),
        total_ns_F=np.empty(0, np.int64),
        reference_F=None if one.reference_F is None else empty,
    )
    return _function_encoder.encode((position.tobytes(), pack(bare, max_bytes=_UNLIMITED)))


def _rows(schema: "pa.Schema", **columns: "pa.Array") -> "pa.Table":
    """Return a table of the schema in which the columns not given are empty."""
    import pyarrow as pa

    length = max((len(column) for column in columns.values()), default=0)
    filled = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(length, field.type)
        elif column.type != field.type:  # a cast loads pyarrow.compute, 60 ms
            column = column.cast(field.type)
        filled.append(column)
    return pa.table(filled, schema=schema)


def _schema() -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(
        [
            ("function", pa.int32()),
            ("rank", pa.int64()),
            ("beta", pa.float32()),
            ("mu", pa.float32()),
            ("sigma", pa.float32()),
            ("reference", pa.float32()),
            ("count", pa.int32()),
            ("total_ns", pa.int64()),
            ("record", pa.binary()),
        ],
        metadata={b"eroica": _FORMAT},
    )
