"""Everything a report is made from, read once from an incident folder."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from eroica.columns import RankPatterns
from eroica.errors import EroicaError
from eroica.explain import explain
from eroica.incident import IncidentFolder
from eroica.records import Decision, Diagnosis, Incident, JobEvidence, Patch

T = TypeVar("T")
WRITTEN_BY_RULE = "written by rule"
"""How a note begins that says why a model's answer was not used."""


@dataclass(frozen=True)
class Material:
    """One incident's records. Diagnoses by rule are always there."""

    incident: Incident
    evidence: JobEvidence | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    patches: tuple[Patch, ...] = ()
    decisions: tuple[Decision, ...] = ()
    patterns: tuple[RankPatterns, ...] = ()
    lost: tuple[str, ...] = field(default=())
    """Parts of the folder that could not be read, a sentence each."""


def load(folder: IncidentFolder) -> Material:
    """Read an incident; only incident.json must be there, InputError without it."""
    incident = folder.read_incident()
    lost: list[str] = []

    evidence = _attempt(lost, "the evidence", folder.read_evidence)
    saved = _attempt(lost, "the diagnoses", folder.read_diagnoses) or []
    told = {one.cause for one in saved if one.source == "rules"}
    rules = [one for one in saved if one.source == "rules"]
    rules += [one for one in explain(incident, evidence=evidence) if one.cause not in told]
    diagnoses = [*rules, *(one for one in saved if one.source != "rules")]
    return Material(
        incident=incident,
        evidence=evidence,
        diagnoses=tuple(diagnoses),
        patches=tuple(_attempt(lost, "the patches", folder.read_patches) or ()),
        decisions=tuple(_attempt(lost, "the decisions", folder.read_decisions) or ()),
        patterns=tuple(_attempt(lost, "the patterns", lambda: _patterns(folder)) or ()),
        lost=tuple(lost),
    )


def _attempt(lost: list[str], what: str, read: Callable[[], T]) -> T | None:
    """Read one part; a broken one is named in the report instead of ending it."""
    try:
        return read()
    except (EroicaError, OSError, ValueError) as error:
        lost.append(f"{what} could not be read: {(str(error) or repr(error)).splitlines()[0]}")
        return None


def _patterns(folder: IncidentFolder) -> list[RankPatterns]:
    there = [path for path in (folder.patterns_path, folder.shown_path) if path.exists()]
    if not there:
        return []
    from eroica.summarize import read_parquet

    return list(read_parquet(there[0]))


def iso_ns(text: str | None) -> int | None:
    """Return the Unix time of an ISO 8601 text, None where it is none."""
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return int(when.timestamp() * 1e9)


def clock(time_ns: int) -> str:
    """Return a Unix time as ``2026-11-29 03:12:05 UTC``; one out of the calendar as a number."""
    try:
        moment = datetime.fromtimestamp(time_ns / 1e9, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ns / 1e9:.0f} s"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
