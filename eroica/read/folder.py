"""Paths a user names -> what each file is (find_inputs), joined by rank (load_evidence).

Nothing large is read here: a trace stays a path until it is summarized. What stands in notes
beside the evidence (a fault injection log, a README, a case file) is no evidence and never used.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eroica.errors import InputError
from eroica.incident import is_incident
from eroica.read import names
from eroica.read.evidence import load_evidence
from eroica.read.identify import Kind, identify
from eroica.read.inputs import FileInput, Inputs, TraceInput
from eroica.read.source import warning_of
from eroica.records import Warning

__all__ = ["FileInput", "Inputs", "TraceInput", "find_inputs", "load_evidence"]

MAX_FILES = 200_000
_MAX_ALIKE = 12
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
_NOT_READ: tuple[Kind, ...] = ("other", "defect", "timeline_meta")
_ONE_A_RANK: tuple[Kind, ...] = ("trace", "flight", "stacks")
"""Kinds of which a job has one a rank: two folders that both have them are two jobs."""


@dataclass(frozen=True)
class _Found:
    """A file before ranks are settled."""

    kind: Kind
    path: Path
    rank: int | None
    why: str = ""


def find_inputs(paths: Sequence[str | Path]) -> Inputs:
    """Identify every file at and below ``paths``; nothing large is read.

    A file that is not evidence becomes a warning. InputError for a path that does not exist and
    where several jobs lie below one folder.
    """
    warnings: list[Warning] = []
    incidents: list[Path] = []
    found: list[_Found] = []
    for path in _walk([Path(path) for path in paths], incidents, warnings):
        what = identify(path)
        found.append(_Found(what.kind, path, what.rank, what.why))
    _refuse_several_jobs(found)
    _warn_of_the_rest(found, warnings)
    traces = _traces(_of(found, "trace"), warnings)
    flights = _distinct(_of(found, "flight"), "Flight Recorder dump", warnings)
    return Inputs(
        traces=traces,
        flights=flights,
        stacks=_files(found, "stacks"),
        logs=_files(found, "log"),
        nsys=_nsys(_of(found, "nsys"), warnings),
        timelines=_timelines(found, warnings),
        hardware=_files(found, "hardware"),
        patterns=tuple(one.path for one in _of(found, "patterns")),
        incidents=tuple(incidents),
        pids=_files(found, "pid"),
        tasks=_files(found, "tasks"),
        evidence=tuple(one.path for one in _of(found, "evidence")),
        unknown=tuple(one.path for one in found if one.kind in _NOT_READ),
        warnings=tuple(warnings),
    )


# --- the walk ---------------------------------------------------------------------------------


def _walk(paths: list[Path], incidents: list[Path], warnings: list[Warning]) -> Iterable[Path]:
    """Every file once, in natural order; incident folders are set aside whole."""
    seen: set[tuple[int, int]] = set()
    for top in paths:
        try:
            is_folder = top.is_dir()
            top.stat()
        except OSError as error:
            raise InputError(
                f"{top} cannot be read",
                error.strerror or str(error),
                "eroica list shows the incidents; eroica diagnose FOLDER takes traces and dumps",
            ) from error
        if top.name == "incident.json" and is_incident(top.parent):
            incidents.append(top.parent)
            continue
        for path in _below(top, incidents, warnings) if is_folder else [top]:
            key = _identity(path)
            if key is not None and key not in seen:
                seen.add(key)
                if len(seen) > MAX_FILES:
                    raise InputError(
                        f"{top} holds more than {MAX_FILES} files",
                        "expected one job's traces, dumps, stacks and logs",
                        "name the folder with them",
                    )
                yield path


def _below(top: Path, incidents: list[Path], warnings: list[Warning]) -> Iterable[Path]:
    def note(error: OSError) -> None:
        warnings.append(Warning(file=str(error.filename), what=error.strerror or str(error)))

    for folder, folders, files in os.walk(top, onerror=note):
        here = Path(folder)
        if is_incident(here):
            incidents.append(here)
            folders.clear()
            continue
        folders[:] = sorted(
            (f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith(".")),
            key=lambda name: names.natural_key(Path(name)),
        )
        paths = (here / name for name in files if not name.startswith("."))
        yield from sorted(paths, key=names.natural_key)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode: the same file named twice, or through links, is one."""
    try:
        status = path.stat()
    except OSError:
        return None  # a dangling link
    return status.st_dev, status.st_ino


# --- several jobs, strangers ------------------------------------------------------------------


def _of(found: list[_Found], kind: Kind) -> list[_Found]:
    return [one for one in found if one.kind == kind]


def _files(found: list[_Found], kind: Kind) -> tuple[FileInput, ...]:
    return tuple(FileInput(one.path, one.rank, names.host_of(one.path)) for one in _of(found, kind))


def _refuse_several_jobs(found: list[_Found]) -> None:
    """Mixing one job's dumps with another's stacks would be worse than no answer."""
    for kind in _ONE_A_RANK:
        folders: dict[Path, set[int]] = defaultdict(set)
        for one in _of(found, kind):
            if one.rank is not None:
                folders[_job_folder(one.path)].add(one.rank)
        clashing = [
            folder
            for folder, ranks in folders.items()
            if any(ranks & other for name, other in folders.items() if name != folder)
        ]
        if clashing:
            shown = ", ".join(str(folder) for folder in clashing[:4])
            more = f" and {len(clashing) - 4} more" if len(clashing) > 4 else ""
            raise InputError(
                f"{len(clashing)} folders hold the same ranks, so they are different jobs",
                f"found {shown}{more}",
                f"eroica diagnose {clashing[0]}",
            )


def _job_folder(path: Path) -> Path:
    """The folder above rank and host folders."""
    folder = path.parent
    while names.is_rank_folder(folder.name) and folder != folder.parent:
        folder = folder.parent
    return folder


def _warn_of_the_rest(found: list[_Found], warnings: list[Warning]) -> None:
    """A damaged file gets its own warning; strangers are counted in one."""
    warnings.extend(
        Warning(file=str(one.path), what=one.why) for one in found if one.kind == "defect"
    )
    if not _of(found, "timeline"):
        warnings.extend(
            Warning(file=str(one.path), what="describes a timeline that is not among the files")
            for one in _of(found, "timeline_meta")
        )
    others = [one for one in found if one.kind == "other"]
    if len(others) == 1:
        warnings.append(Warning(file=str(others[0].path), what=f"is not read: {others[0].why}"))
    elif others:
        reasons = Counter(one.why for one in others)
        text = "; ".join(f"{count} {why}" for why, count in reasons.most_common(6))
        warnings.append(Warning(file=None, what=f"{len(others)} files are not read: {text}"))


# --- ranks ------------------------------------------------------------------------------------


def _distinct(files: list[_Found], what: str, warnings: list[Warning]) -> tuple[FileInput, ...]:
    """One file a rank: a pickle before JSON (it has the stacks), then the later name."""
    by_rank: dict[int, list[_Found]] = defaultdict(list)
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


def _preference(one: _Found) -> tuple[bool, list[tuple[int, str]]]:
    return not _is_json(one.path), names.natural_key(one.path)


def _is_json(path: Path) -> bool:
    return ".json" in path.name


def _traces(files: list[_Found], warnings: list[Warning]) -> tuple[TraceInput, ...]:
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


def _timelines(found: list[_Found], warnings: list[Warning]) -> tuple[FileInput, ...]:
    """Op-level timelines; where a folder has a job as table and as events, the table."""
    files = _files(found, "timeline")
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


def _nsys(files: list[_Found], warnings: list[Warning]) -> tuple[TraceInput, ...]:
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
