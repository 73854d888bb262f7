"""``map_ranks`` and ``summarize_files``: many ranks' files to patterns, whatever runs them.

The work is one file at a time and the reply is 30 KB, so no shuffle is needed: read and summary
happen in the same worker and columns never cross between processes.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from eroica.columns import RankPatterns
from eroica.config import Parameters, load
from eroica.engines.calls import delivered
from eroica.engines.local import count_workers, run_local
from eroica.errors import EroicaError, InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
Engine = Literal["local", "ray"]
Progress = Callable[[int, int], None]
"""Called with (done, total) after each item."""

_COMPRESSED_RATIO = 15  # Kineto JSON under gzip or zstd, measured
_COMPRESSED = (".gz", ".zst", ".zstd")
_SQLITE_MAGIC = b"SQLite format 3\0"


def map_ranks(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    engine: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
    sizes: Sequence[int] | None = None,
) -> Iterator[Result | EroicaError]:
    """Yield ``function(item)`` for each item, in their order; a failing one yields its error.

    ``engine`` is ``local`` or ``ray``; ``sizes`` are the items' uncompressed bytes as far as
    known and decide between threads and processes, for which ``function`` must be a picklable
    module-level function. An unknown engine raises ValueError, a missing Ray MissingExtra; Ctrl-C
    ends the workers and is raised on.
    """
    known = list(sizes or ())
    if engine == "local":
        largest = max(known, default=0)
        number = count_workers(len(items), largest_bytes=largest, workers=workers)
        outcomes = run_local(function, items, workers=number, total_bytes=sum(known))
    elif engine == "ray":
        from eroica.engines.cluster import run_on_ray

        outcomes = run_on_ray(function, items, workers=workers)
    else:
        raise ValueError(f"no engine {engine!r}: choose local or ray")
    for done, outcome in enumerate(outcomes, start=1):
        if progress is not None:
            progress(done, len(items))
        yield delivered(outcome)


def summarize_files(
    files: Sequence[tuple[Path, int | None]],
    *,
    engine: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
    parameters: Parameters | None = None,
) -> Iterator[RankPatterns | tuple[Path, EroicaError]]:
    """Yield the patterns of each (path, rank) in order, or the path with what went wrong.

    Kineto and Nsight Systems files are told apart by their content. A rank of None is taken from
    the file; a single file that tells none is rank 0.
    """
    parameters = parameters or load()
    only_one = len(files) == 1
    items = [(Path(path), rank, parameters, only_one) for path, rank in files]
    sizes = [uncompressed_bytes(path) for path, _, _, _ in items]
    results = map_ranks(
        _summarize_file, items, engine=engine, workers=workers, progress=progress, sizes=sizes
    )
    for (path, _, _, _), result in zip(items, results, strict=True):
        yield (path, result) if isinstance(result, EroicaError) else result


def uncompressed_bytes(path: Path) -> int:
    """Return a guess at the size of a file's content; 0 where it cannot be looked at."""
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size * _COMPRESSED_RATIO if path.name.endswith(_COMPRESSED) else size


def _summarize_file(item: tuple[Path, int | None, Parameters, bool]) -> RankPatterns:
    from dataclasses import replace

    from eroica.read import kineto, nsys
    from eroica.summarize import summarize

    path, rank, parameters, only_one = item
    try:
        with path.open("rb") as file:
            is_nsys = file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError as error:
        raise InputError(f"{path} cannot be opened", error.strerror or str(error)) from error
    read = nsys.read_timeline if is_nsys else kineto.read_timeline
    timeline = read(path, rank=rank)
    if timeline.rank is None and only_one:
        timeline = replace(timeline, rank=0)
    return summarize(timeline, parameters=parameters)
