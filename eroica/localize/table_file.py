"""A pattern table of very many ranks on disk: dense Parquet, one row group a function.

Where ``write_parquet`` of summarize keeps everything of every rank, this keeps the three numbers
alone, as uint16 in 1/65535 (the error of 8e-6 is far below any threshold), so that a function of a
million ranks is 6 MB and is read without decoding. Functions, ranks, hosts and roles are in the
file's metadata.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.columns import PatternTable
from eroica.errors import InputError
from eroica.localize.distance import Block, Numbers, blocks_of
from eroica.records import Function

FORMAT = b"eroica.table.1"
NAMES = ("beta", "mu", "sigma")


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """What is one a rank, packed: arrays as bytes, hosts as a table of names and indexes."""

    ranks: bytes
    roles: bytes = b""
    host_names: tuple[str, ...] = ()
    host_ids: bytes = b""


@dataclass(frozen=True)
class TableFile:
    """An opened table; iterate ``blocks()`` as often as wanted."""

    path: Path
    functions: tuple[Function, ...]
    ranks_R: NDArray[np.int64]
    roles_R: NDArray[np.int32] | None
    host_names: tuple[str, ...]
    host_ids_R: NDArray[np.int32] | None

    def blocks(self) -> Iterator[Block]:
        """Yield one function after another; its arrays live until the next one is asked for."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as file:
            for position, function in enumerate(self.functions):
                group = file.read_row_group(position, columns=list(NAMES), use_threads=False)
                beta, mu, sigma = (group[name].chunk(0).to_numpy() for name in NAMES)
                yield Block(function, beta, mu, sigma)


def is_table_file(path: str | Path) -> bool:
    """Whether the file is a dense table, by its metadata alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return (file.schema_arrow.metadata or {}).get(b"eroica") == FORMAT
    except (OSError, pa.ArrowException):
        return False


def open_table(path: str | Path) -> TableFile:
    """Open a dense table; InputError where it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            told = file.schema_arrow.metadata or {}
            if told.get(b"eroica") != FORMAT:
                raise InputError(
                    f"{path} holds no pattern table",
                    f"columns {file.schema.names}",
                    next_step="name a patterns.parquet of eroica, or the traces",
                )
            functions = msgspec.msgpack.decode(told[b"functions"], type=tuple[Function, ...])
            about = msgspec.msgpack.decode(told[b"ranks"], type=Ranks)
            if file.num_row_groups != len(functions):
                raise InputError(
                    f"{path} is cut short",
                    f"{file.num_row_groups} of {len(functions)} functions",
                    "write the table again",
                )
    except (OSError, pa.ArrowException, msgspec.DecodeError, KeyError) as error:
        raise InputError(
            f"{path} cannot be read",
            str(error).splitlines()[0],
            next_step="export the table again, or name its file alone",
        ) from error
    hosts = np.frombuffer(about.host_ids, "<i4") if about.host_ids else None
    roles = np.frombuffer(about.roles, "<i4") if about.roles else None
    return TableFile(
        path=Path(path),
        functions=functions,
        ranks_R=np.frombuffer(about.ranks, "<i8"),
        roles_R=roles,
        host_names=about.host_names,
        host_ids_R=hosts,
    )


def write_table(
    path: str | Path,
    functions: Sequence[Function],
    blocks: Iterable[Block],
    *,
    ranks_R: NDArray[np.int64],
    roles_R: NDArray[np.int32] | None = None,
    hosts_R: Sequence[str] = (),
) -> None:
    """Write blocks one by one, in the order of ``functions``; the file appears when whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    names = tuple(dict.fromkeys(hosts_R))
    number = {name: i for i, name in enumerate(names)}
    about = Ranks(
        ranks=np.asarray(ranks_R, "<i8").tobytes(),
        roles=b"" if roles_R is None else np.asarray(roles_R, "<i4").tobytes(),
        host_names=names,
        host_ids=np.array([number[h] for h in hosts_R], "<i4").tobytes(),
    )
    schema = pa.schema(
        [(name, pa.uint16()) for name in NAMES],
        metadata={
            b"eroica": FORMAT,
            b"functions": msgspec.msgpack.encode(tuple(functions)),
            b"ranks": msgspec.msgpack.encode(about),
        },
    )
    unfinished = path.with_name(path.name + ".part")
    with pq.ParquetWriter(
        unfinished, schema, compression="none", use_dictionary=False, write_statistics=False
    ) as writer:
        for block in blocks:
            columns = [quantized(c) for c in (block.beta_R, block.mu_R, block.sigma_R)]
            writer.write_table(
                pa.table(columns, schema=schema), row_group_size=max(1, len(block.beta_R))
            )
    unfinished.replace(path)


def quantized(values_R: Numbers) -> NDArray[np.uint16]:
    """Return fractions 0..1 in 1/65535, rounded; what is out of range is clipped."""
    if values_R.dtype == np.uint16:
        return np.asarray(values_R, np.uint16)
    return np.asarray(np.rint(np.clip(values_R, 0, 1) * np.float32(65535)), np.uint16)


def write_pattern_table(path: str | Path, table: PatternTable) -> None:
    """Write a table in memory."""
    roles = sorted(set(table.roles_R))
    number = {role: i for i, role in enumerate(roles)}
    write_table(
        path,
        table.functions,
        blocks_of(table),
        ranks_R=table.ranks_R,
        roles_R=np.array([number[r] for r in table.roles_R], np.int32) if roles else None,
        hosts_R=table.hosts_R,
    )
