"""Which of the files that were found stands for a rank, where several or none claim to."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from eroica.errors import InputError
from eroica.read import names
from eroica.read.identify import Kind
from eroica.read.inputs import FileInput, TraceInput
from eroica.read.source import warning_of
from eroica.records import Warning

_MAX_ALIKE = 12
"""Warnings of one sort, above which only their number is told."""


@dataclass(frozen=True)
class Found:
    """A file before ranks are settled."""

    kind: Kind
    path: Path
    rank: int | None
    why: str = ""


def of_kind(found: list[Found], kind: Kind) -> list[Found]:
    return [one for one in found if one.kind == kind]


def files_of(found: list[Found], kind: Kind) -> tuple[FileInput, ...]:
    return tuple(
        FileInput(one.path, one.rank, names.host_of(one.path)) for one in of_kind(found, kind)
    )


def distinct(files: list[Found], what: str, warnings: list[Warning]) -> tuple[FileInput, ...]:
    """One file a rank: a pickle before JSON (it has the stacks), then the later name."""
    by_rank: dict[int, list[Found]] = defaultdict(list)
    for one in files:
        if one.rank is not None:
            by_rank[one.rank].append(one)
    kept = [FileInput(one.path, None, names.host_of(one.path)) for one in files if one.rank is None]
    notes = []
    for rank in sorted(by_rank):
        *rest, best = sorted(by_rank[rank], key=_preference)
        others = tuple(one.path for one in reversed(rest))
        kept.append(FileInput(best.path, rank, names.host_of(best.path), others))
        for one in rest:
            if _is_json(one.path) == _is_json(best.path):
                note = f"claims rank {rank}, as {best.path.name} does, whose {what} is used"
                notes.append(Warning(file=str(one.path), what=note))
    _add_folded(notes, f"further {what}s of ranks that have a later one are not used", warnings)
    return tuple(kept)


def _add_folded(notes: list[Warning], summary: str, warnings: list[Warning]) -> None:
    """Add warnings of one sort, or their number where they are many."""
    if len(notes) <= _MAX_ALIKE:
        warnings.extend(notes)
    else:
        warnings.append(Warning(file=None, what=f"{len(notes)} {summary}"))


def _preference(one: Found) -> tuple[bool, list[tuple[int, str]]]:
    return not _is_json(one.path), names.natural_key(one.path)


def _is_json(path: Path) -> bool:
    return ".json" in path.name


def choose_traces(files: list[Found], warnings: list[Warning]) -> tuple[TraceInput, ...]:
    from eroica.read.heads import trace_head

    chosen: dict[int, TraceInput] = {}
    nameless: list[TraceInput] = []
    notes: list[Warning] = []
    for one in sorted(files, key=lambda one: names.time_key(one.path)):
        trace = trace_head(one.path, one.rank, warnings)
        if trace is None:
            continue
        if trace.rank is None:
            nameless.append(trace)
            continue
        other = chosen.get(trace.rank)
        if other is not None:
            notes.append(
                Warning(
                    file=str(other.path),
                    what=f"is a trace of rank {trace.rank}, as {trace.path.name} is; the later "
                    "one is used. To compare the two: eroica compare A B",
                )
            )
        chosen[trace.rank] = trace
    _add_folded(notes, "traces of ranks that have a later one are not used", warnings)
    _number(nameless, chosen, warnings)
    return tuple(chosen[rank] for rank in sorted(chosen))


def _number(
    nameless: list[TraceInput], chosen: dict[int, TraceInput], warnings: list[Warning]
) -> None:
    """Traces that tell no rank get the free ones, in the order of their names, and it is said."""
    notes: list[Warning] = []
    free = (rank for rank in range(len(chosen) + len(nameless)) if rank not in chosen)
    for trace, rank in zip(nameless, free, strict=False):
        chosen[rank] = TraceInput(
            trace.path,
            rank,
            trace.world_size,
            trace.num_bytes,
            trace.host,
            is_rank_guessed=True,
            backend=trace.backend,
        )
        what = f"tells no rank; taken as rank {rank}. If that is wrong, put it into the name: "
        notes.append(Warning(file=str(trace.path), what=what + "..._rank3.json"))
    summary = "traces tell no rank; they are numbered in the order of their names"
    _add_folded(notes, summary, warnings)


def choose_timelines(found: list[Found], warnings: list[Warning]) -> tuple[FileInput, ...]:
    """Op-level timelines; where a folder has a job as table and as events, the table."""
    files = files_of(found, "timeline")
    tables = {file.path.parent: file.path.name for file in files if file.path.suffix == ".parquet"}
    kept = []
    for file in files:
        table = tables.get(file.path.parent)
        if table is None or file.path.suffix == ".parquet":
            kept.append(file)
        else:
            what = f"is the timeline that {table} holds with the waits; that one is used"
            warnings.append(Warning(file=str(file.path), what=what))
    return tuple(kept)


def choose_nsys(files: list[Found], warnings: list[Warning]) -> tuple[TraceInput, ...]:
    from eroica.read.nsys import list_ranks

    traces: list[TraceInput] = []
    taken: set[int] = set()
    for one in files:
        try:
            ranks = list_ranks(one.path, rank=one.rank)
        except InputError as error:
            warnings.append(warning_of(error, one.path))
            continue
        for rank in ranks:
            if rank in taken:
                warnings.append(
                    Warning(
                        file=str(one.path),
                        what=f"also holds a rank {rank}; the first file with it is used. "
                        "Put the rank into the name: ..._rank3.sqlite",
                    )
                )
                continue
            taken.add(rank)
            traces.append(TraceInput(one.path, rank, None, one.path.stat().st_size, ""))
    return tuple(traces)
