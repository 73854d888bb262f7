"""What the tools answer with: small, bounded, and the same names as in incident.json."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from eroica.incident import IncidentFolder
from eroica.records import Incident, Patch

MAX_CAUSES = 8
MAX_FINDINGS = 40
PAGE = 20


@dataclass
class IncidentRow:
    id: str
    symptom: str
    category: str
    headline: str
    created: str


@dataclass
class IncidentList:
    incidents: list[IncidentRow]
    total: int


@dataclass
class IncidentSummary:
    """One incident, bounded: the causes with their reasons; findings by id only."""

    id: str
    symptom: str
    headline: str
    job: dict[str, Any]
    causes: list[dict[str, Any]]
    finding_ids: list[str]
    not_seen: list[str]
    warnings: list[str]
    patches: list[dict[str, Any]]
    left_out: str = ""


@dataclass
class Evidence:
    """One page of findings."""

    findings: list[dict[str, Any]]
    page: int
    num_pages: int


@dataclass
class SourceText:
    path: str
    first_line: int
    last_line: int
    num_lines: int
    text: str
    """Lines with their numbers; secrets replaced."""


@dataclass
class Proposal:
    """What became of a proposed patch: kept for review, or refused with the reasons."""

    accepted: bool
    patch_id: str = ""
    label: str = ""
    diff: str = ""
    reasons: list[str] = field(default_factory=list)
    next_step: str = ""


@dataclass
class RehearsalAnswer:
    verdict: str
    summary: str
    details: dict[str, Any]


def row(folder: IncidentFolder) -> IncidentRow:
    record = folder.read_incident()
    category = record.causes[0].category if record.causes else ""
    return IncidentRow(folder.id, record.symptom, category, record.headline, record.created)


def summary(record: Incident, patches: list[Patch]) -> IncidentSummary:
    causes = [msgspec.to_builtins(cause) for cause in record.causes[:MAX_CAUSES]]
    left = len(record.causes) - len(causes)
    return IncidentSummary(
        id=record.id,
        symptom=record.symptom,
        headline=record.headline,
        job=msgspec.to_builtins(record.job),
        causes=causes,
        finding_ids=[finding.id for finding in record.findings[:MAX_FINDINGS]],
        not_seen=list(record.not_seen),
        warnings=[f"{one.file or 'job'}: {one.what}" for one in record.warnings[:MAX_CAUSES]],
        patches=[
            {"id": one.id, "cause": one.cause, "title": one.title, "label": one.label}
            for one in patches
        ],
        left_out=f"{left} causes of less weight" if left > 0 else "",
    )


def evidence(record: Incident, finding: str | None, page: int) -> Evidence:
    chosen = [one for one in record.findings if finding is None or one.id == finding]
    pages = max(1, -(-len(chosen) // PAGE))
    page = min(max(1, page), pages)
    shown = chosen[(page - 1) * PAGE : page * PAGE]
    return Evidence([msgspec.to_builtins(one) for one in shown], page, pages)
