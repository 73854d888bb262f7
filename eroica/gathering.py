"""What is known of a job before it is localized: from files, a saved incident, a live job."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from eroica import incident as incidents
from eroica import units
from eroica.errors import EroicaError, InputError
from eroica.incident import IncidentFolder
from eroica.records import JobEvidence, Warning

if TYPE_CHECKING:
    from eroica.columns import HardwareSamples, RankPatterns
    from eroica.read.folder import Inputs
    from eroica.watch.result import WatchResult

Progress = Callable[[str], None]
_SIZES = ("num_events", "num_bytes")
A = TypeVar("A")
B = TypeVar("B")


def silent(_: str) -> None:
    """Show nothing."""


@dataclass
class Gathered:
    """A job's evidence and patterns, and where they are from."""

    evidence: JobEvidence
    patterns: "list[RankPatterns]" = field(default_factory=list)
    source: str = ""
    warnings: list[Warning] = field(default_factory=list)
    baseline: "list[RankPatterns]" = field(default_factory=list)
    """Patterns of the job's own healthy time, where it was watched then."""
    hardware: "list[HardwareSamples]" = field(default_factory=list)
    """Counters of the ranks and their host, of a live job."""


def from_paths(
    paths: Sequence[Path],
    *,
    engine: str = "local",
    source_root: Path | None = None,
    progress: Progress = silent,
) -> Gathered:
    """Read everything below the paths; a bad file becomes a warning, not the end."""
    if len(paths) == 1 and incidents.is_incident(paths[0]):
        return from_incident(IncidentFolder(paths[0]), source_root=source_root)
    from eroica.read.folder import find_inputs, load_evidence

    inputs = find_inputs(list(paths))
    evidence = load_evidence(inputs, run=partial(_on_all_cores, engine=engine))
    patterns, warnings = _summarize(inputs, engine, progress)
    evidence = _with_source_root(evidence, source_root)
    if evidence.source_root is None:
        folders = [path for path in paths if path.is_dir()]
        root = guess_source_root(evidence, folders)
        evidence = msgspec.structs.replace(evidence, source_root=root)
    source = " ".join(str(path) for path in paths)
    found = Gathered(evidence, patterns, source, warnings)
    if not patterns and not has_stack_evidence(evidence) and not evidence.log_events:
        if len(inputs.incidents) == 1:
            only = IncidentFolder(inputs.incidents[0].parent)
            return from_incident(only, source_root=source_root)
        raise _nothing_usable(source, [*inputs.warnings, *evidence.warnings, *warnings])
    return found


def _with_source_root(evidence: JobEvidence, root: Path | None) -> JobEvidence:
    if root is None:
        return evidence
    if not root.is_dir():
        raise InputError(
            f"--source {root} is not a folder",
            found="expected the folder that holds the job's scripts",
            next_step="eroica diagnose PATH --source DIR",
        )
    return msgspec.structs.replace(evidence, source_root=str(root.resolve()))


def from_incident(folder: IncidentFolder, *, source_root: Path | None = None) -> Gathered:
    """Load what a saved incident was made from."""
    from eroica.read.saved import believable
    from eroica.summarize import read_parquet

    evidence = folder.read_evidence()
    patterns = read_parquet(folder.patterns_path) if folder.patterns_path.exists() else []
    warnings: list[Warning] = []
    if evidence is not None:
        evidence = believable(evidence, folder.path / "evidence.json", warnings)
    patterns = _of_ranks(patterns, str(folder.patterns_path), warnings)
    if evidence is None and not patterns:
        raise InputError(
            f"incident {folder.id} cannot be diagnosed again",
            "it holds neither evidence.json nor patterns.parquet",
            next_step="eroica report shows what it holds",
        )
    evidence = evidence or JobEvidence(ranks=(), world_size=len(patterns))
    evidence = _with_source_root(evidence, source_root)
    return Gathered(evidence, patterns, f"incident {folder.id}", warnings)


def from_pid(
    pid: int | None, *, source_root: Path | None = None, progress: Progress = silent
) -> Gathered:
    """Look at a job that is already running on this host: the one of ``pid``, or the only one."""
    from eroica.watch.attach import look

    found = look(pid, progress=progress)
    evidence = _with_source_root(found.evidence, source_root)
    return Gathered(evidence, list(found.patterns), source=found.source)


def from_watch(result: "WatchResult") -> Gathered:
    """Take over what the watcher gathered of the job it ran."""
    return Gathered(
        result.evidence,
        list(result.patterns),
        source="live",
        baseline=list(result.baseline),
        hardware=list(result.hardware),
    )


def has_stack_evidence(evidence: JobEvidence) -> bool:
    """True where a rank has stacks, a Flight Recorder, children or an exit."""
    return any(one.stacks or one.flight or one.exit or one.children for one in evidence.ranks)


def source_root_of(command: Sequence[str], folder: Path | None = None) -> Path:
    """Where the project of a command lies: here, or beside its script if that lies elsewhere."""
    here = (folder or Path.cwd()).resolve()
    for word in command:
        script = (here / word).resolve()
        if word.endswith(".py") and script.is_file():
            return here if script.is_relative_to(here) else script.parent
    return here


def guess_source_root(evidence: JobEvidence, folders: Sequence[Path] = ()) -> str | None:
    """The folder of the script that most ranks run, where it is on this machine too.

    ``folders`` that hold a script of that name stand in for one that lies elsewhere.
    """
    for path in _scripts(evidence):
        if path.is_absolute() and path.is_file() and "site-packages" not in path.parts:
            return str(path.parent)
        for folder in folders:
            if path.name and (folder / path.name).is_file():
                return str(folder.resolve())
    return None


def script_folders(evidence: JobEvidence) -> list[Path]:
    """Where the scripts that the ranks run lie on their own machines, the commonest first."""
    return list(dict.fromkeys(path.parent for path in _scripts(evidence) if path.is_absolute()))


def _scripts(evidence: JobEvidence) -> list[Path]:
    scripts: Counter[str] = Counter()
    for one in evidence.ranks:
        for thread in (thread for stacks in one.stacks for thread in stacks.threads):
            if thread.is_main and thread.frames and thread.frames[-1].name == "<module>":
                scripts[thread.frames[-1].file or ""] += 1
    return [Path(script) for script, _ in scripts.most_common()]


def _on_all_cores(function: Callable[[A], B], items: Iterable[A], *, engine: str) -> Iterator[B]:
    from eroica.engines import map_ranks

    for result in map_ranks(function, list(items), engine=engine):
        if isinstance(result, EroicaError):
            raise result
        yield result


def _summarize(
    inputs: "Inputs", engine: str, progress: Progress
) -> "tuple[list[RankPatterns], list[Warning]]":
    from eroica.engines import summarize_files
    from eroica.read import kernel_files
    from eroica.summarize import read_patterns

    patterns: list[RankPatterns] = []
    warnings: list[Warning] = []
    started = time.monotonic()
    for path in inputs.patterns:
        try:
            patterns += _of_ranks(read_patterns(path), str(path), warnings)
        except (EroicaError, OSError, ValueError) as error:
            warnings.append(_warning(path, error))
    files = [(trace.path, trace.rank) for trace in (*inputs.traces, *inputs.nsys)]
    if files and not kernel_files.is_any_kept():
        progress("compiling the readers: once on this machine, some seconds")
    results = summarize_files(
        files,
        hardware=[one.path for one in inputs.hardware],
        timelines=[one.path for one in inputs.timelines],
        engine=engine,
    )
    for number, result in enumerate(results, start=1):
        progress(f"read {number} of {max(number, len(files))} ranks")
        if isinstance(result, tuple):
            warnings.append(_warning(*result))
        else:
            patterns += _of_ranks([result], result.source, warnings)
            warnings.extend(result.warnings)
    events, size = (sum(getattr(one, name) for one in patterns) for name in _SIZES)
    if events:
        took = f"{time.monotonic() - started:.1f} s"
        ranks = f"{len(patterns)} rank{'' if len(patterns) == 1 else 's'}"
        progress(f"read {ranks}, {events:,} events, {units.size(size)} in {took}")
    return sorted(patterns, key=lambda one: one.rank), warnings


def _of_ranks(
    patterns: "Sequence[RankPatterns]", path: str, warnings: list[Warning]
) -> "list[RankPatterns]":
    """The patterns whose rank can be one: up to the largest rank everything is counted."""
    from eroica.read.names import is_rank

    kept = [one for one in patterns if is_rank(one.rank)]
    if len(kept) < len(patterns):
        lost = next(one.rank for one in patterns if not is_rank(one.rank))
        warnings.append(Warning(file=path, what=f"holds patterns of rank {lost}: no job has it"))
    return kept


def _warning(path: object, error: Exception) -> Warning:
    return Warning(file=str(path), what=str(error).replace("\n", "; "))


def _nothing_usable(source: str, warnings: Sequence[Warning]) -> EroicaError:
    first = warnings[0] if warnings else None
    found = f"{first.file}: {first.what}" if first and first.file else (first.what if first else "")
    if len(warnings) > 1:
        found += f" (and {len(warnings) - 1} more)"
    return InputError(
        f"nothing to diagnose in {source}",
        found or "no trace, dump, stack or log of a training job was found there",
        "eroica collect -o DIR gathers evidence of a running job; eroica doctor says what is read",
    )
