"""The chain from evidence to an incident folder, for files, saved incidents and live jobs alike.

Each entry point gathers a ``JobEvidence`` and ``RankPatterns``; ``conclude`` localizes, explains
by rule and writes the folder. No stage is imported before it is needed.
"""

import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import eroica
from eroica import gathering, units
from eroica import incident as incidents
from eroica.config import Parameters, load
from eroica.errors import EroicaError, InputError
from eroica.gathering import Gathered, Progress, silent
from eroica.incident import IncidentFolder
from eroica.records import Cause, Incident, Job, JobEvidence, StepMs, Verdict, Warning
from eroica.text import function_name

if TYPE_CHECKING:
    from eroica.columns import RankPatterns
    from eroica.localize.table_file import TableFile

_MAX_DRAWN_RANKS, _MAX_DRAWN_FUNCTIONS = 20_000, 14


def diagnose_paths(
    paths: Sequence[Path],
    *,
    past: "Sequence[RankPatterns] | None" = None,
    engine: str = "local",
    source_root: Path | None = None,
    progress: Progress = silent,
) -> IncidentFolder:
    """Diagnose trace folders, dumps, stacks, logs, pattern tables or a saved incident.

    ``past`` are patterns of the job's healthy time.
    """
    if len(paths) == 1 and paths[0].suffix == ".parquet" and not past:
        from eroica.localize.table_file import is_table_file

        if is_table_file(paths[0]):
            return _diagnose_table(paths[0], progress)
    gathered = gathering.from_paths(
        paths, engine=engine, source_root=source_root, progress=progress
    )
    return conclude(gathered, baseline=past, progress=progress)


def patterns_of(baseline: Sequence[Path], engine: str, progress: Progress) -> "list[RankPatterns]":
    """The patterns of a job's healthy time; InputError where the paths hold none."""
    found = gathering.from_paths(baseline, engine=engine, progress=progress)
    if not found.patterns:
        raise InputError(
            f"--baseline {found.source} holds nothing to compare with",
            "expected traces or patterns of the job when it was healthy",
            next_step="eroica diagnose NEW --baseline OLD",
        )
    return found.patterns


def _diagnose_table(path: Path, progress: Progress) -> IncidentFolder:
    """Localize a dense table of very many ranks, streamed from the disk."""
    from eroica.localize.fleet import localize_table
    from eroica.localize.table_file import open_table

    progress(f"streaming {path}")
    verdict = localize_table(path, parameters=load())
    table = open_table(path)
    world_size = len(table.ranks_R)
    gathered = Gathered(JobEvidence(ranks=(), world_size=world_size), source=str(path))
    folder = _write(gathered, verdict, None, ranks=table.ranks_R.tolist())
    if world_size <= _MAX_DRAWN_RANKS:
        _keep_shown(folder, table, verdict)
    return folder


def _keep_shown(folder: IncidentFolder, table: "TableFile", verdict: Verdict) -> None:
    """Keep the functions that findings name, for the pictures; the table stays where it is."""
    import numpy as np

    from eroica.columns import RankPatterns
    from eroica.summarize import write_parquet

    named = [one.function.id for one in verdict.findings if one.function is not None]
    blocks = table.chosen(set(list(dict.fromkeys(named))[:_MAX_DRAWN_FUNCTIONS]))
    if not blocks:
        return
    functions = tuple(block.function for block in blocks)
    columns = [
        np.stack([np.asarray(column, dtype=np.float32) for column in columns], axis=1)
        for columns in zip(*((b.beta_R, b.mu_R, b.sigma_R) for b in blocks), strict=True)
    ]
    beta_RF, mu_RF, sigma_RF = columns
    none_F = np.zeros(len(functions), dtype=np.int64)
    ranks = [
        RankPatterns(
            rank=rank,
            functions=functions,
            beta_F=beta_RF[n],
            mu_F=mu_RF[n],
            sigma_F=sigma_RF[n],
            count_F=none_F.astype(np.int32),
            total_ns_F=none_F,
            window_ns=0,
        )
        for n, rank in enumerate(table.ranks_R.tolist())
    ]
    folder.shown_path.parent.mkdir(exist_ok=True)
    write_parquet(folder.shown_path, ranks)


def conclude(
    gathered: Gathered,
    *,
    baseline: "Sequence[RankPatterns] | None" = None,
    root: Path | None = None,
    progress: Progress = silent,
) -> IncidentFolder:
    """Localize, explain by rule and write the incident folder."""
    progress("comparing ranks")
    if gathered.evidence.source_root is None:
        root_found = gathering.guess_source_root(gathered.evidence)
        gathered.evidence = msgspec.structs.replace(gathered.evidence, source_root=root_found)
    parameters = load()
    verdict = localize(gathered, baseline or gathered.baseline or None, parameters)
    return _write(gathered, verdict, root)


def _write(
    gathered: Gathered, verdict: Verdict, root: Path | None, *, ranks: Sequence[int] = ()
) -> IncidentFolder:
    """Make the folder; ``ranks`` are those of a table that is not kept in it."""
    category = verdict.causes[0].category if verdict.causes else verdict.symptom
    folder = incidents.create(category, root)
    try:
        _fill(folder, gathered, verdict, ranks)
    except BaseException as error:
        if not incidents.is_incident(folder.path):  # half an incident helps nobody
            shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise EroicaError(
                f"the incident could not be written to {folder.path}",
                str(error),
                "free some space, or set EROICA_HOME to another folder",
            ) from error
        raise
    return folder


def _fill(
    folder: IncidentFolder, gathered: Gathered, verdict: Verdict, ranks: Sequence[int]
) -> None:
    from eroica.explain import explain

    incident = build_incident(folder.id, gathered, verdict, ranks)
    _write_inputs(folder, gathered)
    folder.write_incident(incident)
    evidence = gathered.evidence
    root_path = Path(evidence.source_root) if evidence.source_root else None
    folder.write_diagnoses(explain(incident, evidence=evidence, source_root=root_path))


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
    if patterns or hint in ("slow", "healthy") or not gathering.has_stack_evidence(evidence):
        slow = room.localize_slow(
            patterns, evidence=evidence, baseline=baseline, parameters=parameters
        )
    if hint is not None and slow is not None:
        return slow
    if gathering.has_stack_evidence(evidence) or evidence.log_events:
        stuck = room.localize_stuck(evidence, parameters=parameters)
        if slow is None or stuck.causes:
            return stuck
    assert slow is not None
    return slow


def build_incident(
    name: str, gathered: Gathered, verdict: Verdict, ranks: Sequence[int] = ()
) -> Incident:
    """Put a verdict and what is known of the job into the record that ``--json`` prints."""
    evidence = gathered.evidence
    seen = _first_unique([*gathered.warnings, *evidence.warnings, *verdict.warnings])
    return Incident(
        id=name,
        symptom=verdict.symptom,
        onset=_iso(evidence.onset_ns),
        job=_job(gathered, ranks),
        causes=tuple(_relative(cause, evidence) for cause in verdict.causes),
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


def _relative(cause: Cause, evidence: JobEvidence) -> Cause:
    """Name files of the project by their path in it, as people and patches do."""
    if evidence.source_root is None:
        return cause
    root = Path(evidence.source_root)
    homes = gathering.script_folders(evidence)
    places = [
        msgspec.structs.replace(
            place, name=function_name(place.name), file=in_project(place.file, root, homes)
        )
        for place in cause.functions
    ]
    return msgspec.structs.replace(cause, functions=tuple(places))


def in_project(file: str | None, root: Path, homes: Sequence[Path] = ()) -> str | None:
    """The path below the root; of another machine's file, the longest end that is there too.

    ``homes`` are the folders of the job's script over there. A bare name says little: it counts
    only in such a folder, or where the project has no other file of that name. Libraries never.
    """
    from eroica.explain.privacy import is_library

    if file is None:
        return None
    path = Path(file)
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    if not path.is_absolute() or path.exists() or is_library(file):
        return file
    ends = [Path(*path.parts[n:]) for n in range(1, len(path.parts))]
    ends = [path.relative_to(home) for home in homes if path.is_relative_to(home)] + ends
    for end in ends:
        if (root / end).is_file():
            is_sure = len(end.parts) > 1 or path.parent in homes or _is_only(end.name, root)
            return end.as_posix() if is_sure else file
    return file


def _is_only(name: str, root: Path) -> bool:
    """True where one file below the root has the name; False where there is too much to look at."""
    found = 0
    for number, (_, folders, files) in enumerate(os.walk(root)):
        folders[:] = [one for one in folders if not one.startswith(".") and one not in _NOT_OURS]
        found += name in files
        if found > 1 or number > _MAX_FOLDERS:
            return False
    return found == 1


_NOT_OURS = frozenset(("venv", "site-packages", "node_modules", "__pycache__"))
_MAX_FOLDERS = 2000


def _write_inputs(folder: IncidentFolder, gathered: Gathered) -> None:
    folder.write_evidence(gathered.evidence)
    if gathered.patterns:
        from eroica.summarize import write_parquet

        write_parquet(folder.patterns_path, gathered.patterns)
        folder.patterns_path.chmod(incidents.PRIVATE)
    if gathered.hardware:
        from eroica.read.hardware import to_text

        for samples in gathered.hardware:
            folder.write_hardware(to_text(samples), rank=samples.rank)


def _job(gathered: Gathered, more: Sequence[int]) -> Job:
    evidence, patterns = gathered.evidence, gathered.patterns
    seen = {one.rank for one in evidence.ranks} | {one.rank for one in patterns} | set(more)
    ranks = sorted(seen)
    world_size = max(evidence.world_size, (ranks[-1] + 1) if ranks else 0)
    hosts: dict[str, set[int]] = {}
    placed = [(one.host, one.rank) for one in evidence.ranks]
    placed += [(one.host, one.rank) for one in patterns]
    for host, rank in placed:
        if host:
            hosts.setdefault(host, set()).add(rank)
    return Job(
        world_size=world_size,
        ranks=tuple(ranks),
        missing_ranks=tuple(rank for rank in range(world_size) if rank not in seen),
        hosts={host: tuple(sorted(members)) for host, members in sorted(hosts.items())},
        backend=evidence.backend,
        step_ms=StepMs(before=evidence.step_ms_before, now=evidence.step_ms_now),
        command=evidence.command,
        source_root=evidence.source_root,
    )


def _first_unique(warnings: Sequence[Warning]) -> list[Warning]:
    return list(dict.fromkeys(warnings))


def _iso(time_ns: int | None) -> str | None:
    if time_ns is None:
        return None
    moment = datetime.fromtimestamp(time_ns // units.NS_PER_S, UTC)
    return moment.isoformat().replace("+00:00", "Z")
