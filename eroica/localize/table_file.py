"""A pattern table of very many ranks on disk: dense Parquet, one row group a function.

Where ``write_parquet`` of summarize keeps everything of every rank, this keeps the three numbers
alone, as float16 (8e-6 off at the lower bound of beta, 2e-4 at 1: far below any threshold), so that
a function of a million ranks is 6 MB. Any reader of Parquet shows the numbers; since pages are
neither compressed nor nullable and one page holds a column of a function, this one maps them, and
what no rule looks at (mu and sigma of small functions, most of a table) is never read. Functions,
ranks, hosts and roles are in the file's metadata.
"""

import inspect
import mmap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.localize.distance import Block, Numbers
from eroica.records import Function

FORMAT = b"eroica.table.2"
NAMES = ("beta", "mu", "sigma")
_WIDTH = 2  # bytes of a float16
_MAX_HEADER = 64  # of a page, in bytes


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

        count = len(self.ranks_R)
        with pq.ParquetFile(self.path) as file, _Map(self.path) as data:
            offsets = [data.offsets(file.metadata.row_group(n), count) for n in _numbers(file)]
            for position, function in enumerate(self.functions):
                here = offsets[position]
                if here is None:  # written or packed by another program
                    yield Block(function, *_decoded(file, position))
                    continue
                following = offsets[position + 1] if position + 1 < len(offsets) else None
                data.fetch(following, count)
                yield Block(function, *(data.column(offset, count) for offset in here))
                data.forget(here, count)

    def chosen(self, ids: Collection[str]) -> list[Block]:
        """Return the functions of these ids alone, without a look at the others."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as file:
            return [
                Block(function, *_decoded(file, position))
                for position, function in enumerate(self.functions)
                if function.id in ids
            ]


def _numbers(file: Any) -> range:  # noqa: ANN401
    return range(file.metadata.num_row_groups)


def _decoded(file: Any, position: int) -> list[Numbers]:  # noqa: ANN401
    group = file.read_row_group(position, columns=list(NAMES), use_threads=False)
    return [group[name].combine_chunks().to_numpy() for name in NAMES]


class _Map:
    """A file mapped to memory: columns are views, and only pages that are looked at are read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "_Map":
        with self.path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self

    def __exit__(self, *_: object) -> None:
        """The map ends with its last view: closing it under a view would not be possible."""

    def offsets(self, group: Any, count: int) -> tuple[int, ...] | None:  # noqa: ANN401
        """Where the numbers of each column lie; None where they are not plain in one page."""
        found = []
        for number in range(group.num_columns):
            column = group.column(number)
            start, size = column.data_page_offset, column.total_compressed_size
            if (
                group.num_rows != count
                or column.compression != "UNCOMPRESSED"
                or column.has_dictionary_page
                or column.physical_type != "FIXED_LEN_BYTE_ARRAY"
                or not 0 < size - _WIDTH * count <= _MAX_HEADER
                or _page_size(self.data[start : start + _MAX_HEADER]) != _WIDTH * count
            ):
                return None
            found.append(start + size - _WIDTH * count)
        return tuple(found)

    def column(self, offset: int, count: int) -> Numbers:
        return np.frombuffer(self.data, "<f2", count, offset)

    def fetch(self, offsets: tuple[int, ...] | None, count: int) -> None:
        """Have beta, which is always looked at, read from the disk meanwhile."""
        if offsets is not None and hasattr(mmap, "MADV_WILLNEED"):
            self._advise(mmap.MADV_WILLNEED, offsets[0], _WIDTH * count)

    def forget(self, offsets: tuple[int, ...], count: int) -> None:
        """Give the pages of a function back: they are not this process's memory any more."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._advise(mmap.MADV_DONTNEED, offsets[0], offsets[-1] + _WIDTH * count - offsets[0])

    def _advise(self, what: int, start: int, length: int) -> None:
        begin = start - start % mmap.PAGESIZE
        self.data.madvise(what, begin, length + start - begin)


def _page_size(header: bytes) -> int:
    """The size of a page's content by its header: compact Thrift, fields 1 (type), 2 (size)."""
    if header[:1] != b"\x15" or header[2:3] != b"\x15":
        return -1
    value = shift = 0
    for byte in header[3:13]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1)
    return -1


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
            if tuple(file.schema_arrow.names) != NAMES:
                raise ValueError(f"found the columns {file.schema_arrow.names[:8]}")
        return _opened(Path(path), functions, about)
    except (OSError, pa.ArrowException, msgspec.DecodeError, KeyError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read",
            str(error).splitlines()[0] if str(error) else type(error).__name__,
            next_step="export the table again, or name its file alone",
        ) from error


def _opened(path: Path, functions: tuple[Function, ...], about: Ranks) -> TableFile:
    """Return the table; ValueError where what is told of its ranks does not fit together."""
    ranks = np.frombuffer(about.ranks, "<i8")
    hosts = np.frombuffer(about.host_ids, "<i4") if about.host_ids else None
    roles = np.frombuffer(about.roles, "<i4") if about.roles else None
    if any(column is not None and len(column) != len(ranks) for column in (hosts, roles)):
        raise ValueError(f"hosts or roles of another number than the {len(ranks)} ranks")
    if hosts is not None and not ((hosts >= 0) & (hosts < len(about.host_names))).all():
        raise ValueError("a rank on a host without a name")
    return TableFile(
        path=path,
        functions=functions,
        ranks_R=ranks,
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
        [pa.field(name, pa.float16(), nullable=False) for name in NAMES],
        metadata={
            b"eroica": FORMAT,
            b"functions": msgspec.msgpack.encode(tuple(functions)),
            b"ranks": msgspec.msgpack.encode(about),
        },
    )
    unfinished = path.with_name(path.name + ".part")
    try:
        with pq.ParquetWriter(unfinished, schema, **_one_page_a_column(pq)) as writer:
            for block in blocks:
                columns = [halved(c) for c in (block.beta_R, block.mu_R, block.sigma_R)]
                rows = pa.table(columns, schema=schema)
                writer.write_table(rows, row_group_size=max(1, len(block.beta_R)))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)  # it is there only where writing failed


def _one_page_a_column(pq: Any) -> dict[str, Any]:  # noqa: ANN401
    """Options of the writer. Newer pyarrow limits the rows of a page."""
    options: dict[str, Any] = {
        "compression": "none",
        "use_dictionary": False,
        "write_statistics": False,
        "data_page_size": 1 << 30,
    }
    if "max_rows_per_page" in inspect.signature(pq.write_table).parameters:
        options["max_rows_per_page"] = 1 << 40
    return options


def halved(values_R: Numbers) -> NDArray[np.float16]:
    """Return fractions 0..1 as float16; what is out of range is clipped."""
    return np.asarray(np.clip(values_R, 0, 1), np.float16)
