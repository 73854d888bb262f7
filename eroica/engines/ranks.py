"""``map_ranks`` and ``summarize_files``: many ranks' files to patterns, whatever runs them.

The work is one file at a time and the reply is 30 KB, so no shuffle is needed: read and summary
happen in the same worker and columns never cross between processes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from eroica.columns import HardwareSamples, RankPatterns, Timeline
from eroica.config import Parameters, load
from eroica.engines.calls import delivered
from eroica.engines.local import count_workers, run_local
from eroica.errors import EroicaError, InputError
from eroica.records import Warning

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
    hardware: Sequence[Path] = (),
    timelines: Sequence[Path] = (),
    engine: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
    parameters: Parameters | None = None,
) -> Iterator[RankPatterns | tuple[Path, EroicaError]]:
    """Yield the patterns of each (path, rank) in order, or the path with what went wrong.

    Kineto and Nsight Systems files are told apart by their content. A rank of None is taken from
    the file; a single file that tells none is rank 0. ``hardware`` are files of samples: those of
    a trace's rank, else of its host, give mu and sigma. ``timelines`` are op-level timelines of
    whole jobs; each yields all its ranks, after the files.
    """
    parameters = parameters or load()
    items = [
        _Item(Path(path), rank, parameters, len(files) == 1, tuple(hardware), is_job=False)
        for path, rank in files
    ]
    items += [_Item(Path(path), None, parameters, False, (), is_job=True) for path in timelines]
    sizes = [uncompressed_bytes(item.path) for item in items]
    results = map_ranks(
        _summarize_item, items, engine=engine, workers=workers, progress=progress, sizes=sizes
    )
    for item, result in zip(items, results, strict=True):
        if isinstance(result, EroicaError):
            yield item.path, result
        else:
            yield from result


class _Item(NamedTuple):
    """A file to summarize and all that the worker needs to know."""

    path: Path
    rank: int | None
    parameters: Parameters
    is_only_one: bool
    hardware: tuple[Path, ...]
    is_job: bool


def uncompressed_bytes(path: Path) -> int:
    """Return a guess at the size of a file's content; 0 where it cannot be looked at."""
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size * _COMPRESSED_RATIO if path.name.endswith(_COMPRESSED) else size


def _summarize_item(item: _Item) -> list[RankPatterns]:
    from eroica.summarize import summarize

    if item.is_job:
        from eroica.read.timelines import read_timelines

        return [summarize(one, parameters=item.parameters) for one in read_timelines(item.path)]
    timeline = _read(item)
    samples, warnings = _hardware_of(timeline, item.hardware)
    patterns = summarize(timeline, hardware=samples, parameters=item.parameters)
    return [replace(patterns, warnings=(*patterns.warnings, *warnings))]


def _read(item: _Item) -> Timeline:
    from eroica.read import kineto, nsys

    try:
        with item.path.open("rb") as file:
            is_nsys = file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError as error:
        raise InputError(
            f"{item.path} cannot be opened",
            error.strerror or str(error),
            next_step="check the path and its permissions",
        ) from error
    read = nsys.read_timeline if is_nsys else kineto.read_timeline
    timeline = read(item.path, rank=item.rank)
    if timeline.rank is None and item.is_only_one:
        return replace(timeline, rank=0)
    return timeline


def _hardware_of(
    timeline: Timeline, paths: Sequence[Path]
) -> tuple[HardwareSamples | None, list[Warning]]:
    """Return the samples of the timeline's rank, else of its host; a bad file is a warning."""
    if not paths:
        return None, []
    from eroica.read import names
    from eroica.read.hardware import read_hardware

    of_host: HardwareSamples | None = None
    warnings: list[Warning] = []
    # The one that is named like the rank comes first: a thousand ranks have a thousand files.
    for path in sorted(paths, key=lambda path: names.rank_of(path) != timeline.rank):
        try:
            samples = read_hardware(path)
        except EroicaError as error:
            warnings.append(Warning(file=str(path), what=str(error).replace("\n", "; ")))
            continue
        if samples.rank is not None and samples.rank == timeline.rank:
            return samples, warnings
        if samples.rank is None and samples.host == timeline.host:
            of_host = samples
    return of_host, warnings
