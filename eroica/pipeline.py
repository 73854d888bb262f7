"""The chain from evidence to an incident folder, for files, saved incidents and live jobs alike.

Each entry point gathers a ``JobEvidence`` and ``RankPatterns``; ``conclude`` localizes, explains
by rule and writes the folder. No stage is imported before it is needed.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import eroica
from eroica import incident as incidents
from eroica import units
from eroica.config import Parameters, load
from eroica.errors import EroicaError, InputError
from eroica.incident import IncidentFolder
from eroica.records import Cause, Incident, Job, JobEvidence, StepMs, Verdict, Warning

if TYPE_CHECKING:
    from eroica.columns import RankPatterns
    from eroica.read.folder import Inputs
    from eroica.watch.run import WatchResult

Progress = Callable[[str], None]


def _silent(_: str) -> None:
    return None


@dataclass
class Gathered:
    """What is known of a job before it is localized."""

    evidence: JobEvidence
    patterns: "list[RankPatterns]" = field(default_factory=list)
    source: str = ""
    is_live: bool = False
    warnings: list[Warning] = field(default_factory=list)


def diagnose_paths(
    paths: Sequence[Path],
    *,
    baseline: Sequence[Path] = (),
    engine: str = "local",
    source_root: Path | None = None,
    progress: Progress = _silent,
) -> IncidentFolder:
    """Diagnose trace folders, dumps, stacks, logs, pattern tables or a saved incident."""
    gathered = gather_paths(paths, engine=engine, source_root=source_root, progress=progress)
    past = gather_paths(baseline, engine=engine, progress=progress) if baseline else None
    return conclude(gathered, baseline=past.patterns if past else None, progress=progress)


def gather_paths(
    paths: Sequence[Path],
    *,
    engine: str = "local",
    source_root: Path | None = None,
    progress: Progress = _silent,
) -> Gathered:
    """Read everything below the paths; a bad file becomes a warning, not the end."""
    if len(paths) == 1 and incidents.is_incident(paths[0]):
        return gather_incident(IncidentFolder(paths[0]))
    from eroica.read.folder import find_inputs, load_evidence

    inputs = find_inputs(list(paths))
    evidence = load_evidence(inputs)
    patterns, warnings = _summarize_inputs(inputs, engine, progress)
    if source_root is not None:
        evidence = msgspec.structs.replace(evidence, source_root=str(source_root))
    source = " ".join(str(path) for path in paths)
    found = Gathered(evidence, patterns, source, warnings=warnings)
    if not patterns and not _has_stack_evidence(evidence) and not evidence.log_events:
        raise _nothing_usable(source, [*inputs.warnings, *evidence.warnings, *warnings])
    return found


def gather_incident(folder: IncidentFolder) -> Gathered:
    """Load what a saved incident was made from."""
    from eroica.summarize import read_parquet

    evidence = folder.read_evidence()
    patterns = read_parquet(folder.patterns_path) if folder.patterns_path.exists() else []
    if evidence is None and not patterns:
        raise InputError(
            f"incident {folder.id} cannot be diagnosed again",
            "it holds neither evidence.json nor patterns.parquet",
        )
    evidence = evidence or JobEvidence(ranks=(), world_size=len(patterns))
    return Gathered(evidence, list(patterns), source=f"incident {folder.id}")


def gather_pid(pid: int | None, *, progress: Progress = _silent) -> Gathered:
    """Look at a job that is already running on this host: the one of ``pid``, or the only one."""
    from eroica.watch.attach import look

    found = look(pid, progress=progress)
    return Gathered(found.evidence, list(found.patterns), source=found.source, is_live=True)


def gathered_from_watch(result: "WatchResult") -> Gathered:
    """Take over what the watcher gathered of the job it ran."""
    return Gathered(result.evidence, list(result.patterns), source="live", is_live=True)


def source_root_of(command: Sequence[str], folder: Path | None = None) -> Path:
    """Where the project of a command lies: here, or beside its script if that lies elsewhere."""
    here = (folder or Path.cwd()).resolve()
    for word in command:
        script = (here / word).resolve()
        if word.endswith(".py") and script.is_file():
            return here if script.is_relative_to(here) else script.parent
    return here


def guess_source_root(evidence: JobEvidence) -> str | None:
    """The folder of the script that most ranks run, where it is on this machine too."""
    scripts: Counter[str] = Counter()
    for one in evidence.ranks:
        for thread in (thread for stacks in one.stacks for thread in stacks.threads):
            if thread.is_main and thread.frames and thread.frames[-1].name == "<module>":
                scripts[thread.frames[-1].file or ""] += 1
    for script, _ in scripts.most_common():
        path = Path(script)
        if path.is_absolute() and path.is_file() and "site-packages" not in path.parts:
            return str(path.parent)
    return None


def conclude(
    gathered: Gathered,
    *,
    baseline: "Sequence[RankPatterns] | None" = None,
    root: Path | None = None,
    progress: Progress = _silent,
) -> IncidentFolder:
    """Localize, explain by rule and write the incident folder."""
    from eroica.explain import explain

    progress("comparing ranks")
    if gathered.evidence.source_root is None:
        root_found = guess_source_root(gathered.evidence)
        gathered.evidence = msgspec.structs.replace(gathered.evidence, source_root=root_found)
    parameters = load()
    verdict = localize(gathered, baseline, parameters)
    category = verdict.causes[0].category if verdict.causes else verdict.symptom
    folder = incidents.create(category, root)
    incident = build_incident(folder.id, gathered, verdict)
    _write_inputs(folder, gathered)
    folder.write_incident(incident)
    evidence = gathered.evidence
    root_path = Path(evidence.source_root) if evidence.source_root else None
    folder.write_diagnoses(explain(incident, evidence=evidence, source_root=root_path))
    return folder


def localize(
    gathered: Gathered, baseline: "Sequence[RankPatterns] | None", parameters: Parameters
) -> Verdict:
    """Ask the side that the symptom calls for; for files without a hint, both."""
    from eroica import localize as room

    evidence, patterns = gathered.evidence, gathered.patterns
    hint = evidence.symptom_hint
    if hint in ("stuck", "failed"):
        return room.localize_stuck(evidence, parameters=parameters)
    slow = None
    if patterns or hint in ("slow", "healthy") or not _has_stack_evidence(evidence):
        slow = room.localize_slow(
            patterns, evidence=evidence, baseline=baseline, parameters=parameters
        )
    if hint is not None and slow is not None:
        return slow
    if _has_stack_evidence(evidence) or evidence.log_events:
        stuck = room.localize_stuck(evidence, parameters=parameters)
        if slow is None or stuck.causes:
            return stuck
    assert slow is not None
    return slow


def build_incident(name: str, gathered: Gathered, verdict: Verdict) -> Incident:
    """Put a verdict and what is known of the job into the record that ``--json`` prints."""
    evidence = gathered.evidence
    seen = _first_unique([*gathered.warnings, *evidence.warnings, *verdict.warnings])
    return Incident(
        id=name,
        symptom=verdict.symptom,
        onset=_iso(evidence.onset_ns),
        job=_job(gathered),
        causes=tuple(_relative(cause, evidence.source_root) for cause in verdict.causes),
        findings=verdict.findings,
        warnings=tuple(seen),
        headline=verdict.headline,
        created=incidents.now(),
        eroica=eroica.__version__,
        source=gathered.source,
        ranks_table=verdict.ranks_table,
        breakdown=verdict.breakdown,
        not_seen=verdict.not_seen,
        deadline_ns=verdict.deadline_ns,
    )


def _relative(cause: Cause, source_root: str | None) -> Cause:
    """Name files of the project by their path in it, as people and patches do."""
    if source_root is None:
        return cause
    places = []
    for place in cause.functions:
        file = place.file
        if file is not None and Path(file).is_relative_to(source_root):
            file = Path(file).relative_to(source_root).as_posix()
        places.append(msgspec.structs.replace(place, file=file))
    return msgspec.structs.replace(cause, functions=tuple(places))


def _summarize_inputs(
    inputs: "Inputs", engine: str, progress: Progress
) -> "tuple[list[RankPatterns], list[Warning]]":
    from eroica.engines import summarize_files
    from eroica.summarize import read_patterns

    patterns: list[RankPatterns] = []
    warnings: list[Warning] = []
    for path in inputs.patterns:
        patterns.extend(read_patterns(path))
    files = [(trace.path, trace.rank) for trace in (*inputs.traces, *inputs.nsys)]
    for number, result in enumerate(summarize_files(files, engine=engine), start=1):
        progress(f"read {number} of {len(files)} traces")
        if isinstance(result, tuple):
            path, error = result
            warnings.append(Warning(file=str(path), what=str(error).replace("\n", "; ")))
        else:
            patterns.append(result)
            warnings.extend(result.warnings)
    return sorted(patterns, key=lambda one: one.rank), warnings


def _write_inputs(folder: IncidentFolder, gathered: Gathered) -> None:
    folder.write_evidence(gathered.evidence)
    if gathered.patterns:
        from eroica.summarize import write_parquet

        write_parquet(folder.patterns_path, gathered.patterns)


def _job(gathered: Gathered) -> Job:
    evidence, patterns = gathered.evidence, gathered.patterns
    ranks = sorted({one.rank for one in evidence.ranks} | {one.rank for one in patterns})
    world_size = max(evidence.world_size, (ranks[-1] + 1) if ranks else 0)
    hosts: dict[str, list[int]] = {}
    placed = [(one.host, one.rank) for one in evidence.ranks]
    placed += [(one.host, one.rank) for one in patterns]
    for host, rank in placed:
        if host and rank not in hosts.setdefault(host, []):
            hosts[host].append(rank)
    return Job(
        world_size=world_size,
        ranks=tuple(ranks),
        missing_ranks=tuple(sorted(set(range(world_size)) - set(ranks))),
        hosts={host: tuple(sorted(members)) for host, members in sorted(hosts.items())},
        backend=evidence.backend,
        step_ms=StepMs(before=evidence.step_ms_before, now=evidence.step_ms_now),
        command=evidence.command,
        source_root=evidence.source_root,
    )


def _has_stack_evidence(evidence: JobEvidence) -> bool:
    return any(one.stacks or one.flight or one.exit or one.children for one in evidence.ranks)


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


def _first_unique(warnings: Sequence[Warning]) -> list[Warning]:
    return list(dict.fromkeys(warnings))


def _iso(time_ns: int | None) -> str | None:
    if time_ns is None:
        return None
    moment = datetime.fromtimestamp(time_ns // units.NS_PER_S, UTC)
    return moment.isoformat().replace("+00:00", "Z")
