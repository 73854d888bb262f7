"""Tables of a report: ranks, findings, hosts, versions."""

import re
from dataclasses import fields

from eroica import config, units
from eroica.explain.rules import citation
from eroica.records import Finding, Incident, Job, JobEvidence, Place
from eroica.report.blocks import Table

_MAX_FINDINGS = 60
_MAX_HOSTS = 40
_MAX_ROWS = 40
_VERSIONS = ("torch.version", "python.version", "device")


def ranks_table(incident: Incident) -> Table:
    """Ranks that wait alike, a row each, as a stuck job is seen."""
    guilty = {rank for cause in incident.causes[:1] if cause.ranks != "all" for rank in cause.ranks}
    rows = []
    for row in incident.ranks_table[:_MAX_ROWS]:
        since = units.duration(row.since_ns) if row.since_ns is not None else ""
        note = row.note or ("odd one out" if guilty and set(row.ranks) <= guilty else "")
        rows.append((short_ranks(row.ranks), row.last_collective, row.place, since, note))
    if len(incident.ranks_table) > _MAX_ROWS:
        rows.append((f"{len(incident.ranks_table) - _MAX_ROWS} more rows", "", "", "", ""))
    header = ("Rank", "Last collective", "Where its training thread is", "Since", "")
    return Table(header, tuple(rows))


_LONG_LIST = re.compile(r"(\branks (?:\d+(?:-\d+)?,){3}\d+(?:-\d+)?)(?:,\d+(?:-\d+)?){4,}")
"""Ranks one by one in a sentence; the table has a column for them."""


def findings_table(incident: Incident) -> Table:
    """Every finding a cause cites first, then the others, up to a limit that is said."""
    cited = {key for cause in incident.causes for key in cause.findings}
    ordered = sorted(incident.findings, key=lambda finding: finding.id not in cited)
    shown = ordered[:_MAX_FINDINGS]
    rows = [_finding_row(finding) for finding in shown]
    anchors = [finding.id for finding in shown]
    if len(ordered) > len(shown):
        rows.append(("", f"{len(ordered) - len(shown)} more in incident.json", "", "", "", ""))
        anchors.append("")
    header = ("Id", "Finding", "Rank", "Share", "Peers' share", "Distance (limit)")
    kept = [n for n in range(len(header)) if n < 3 or any(row[n] for row in rows)]
    return Table(
        tuple(header[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in rows),
        tuple(anchors),
        numeric=frozenset(place for place, n in enumerate(kept) if n in (3, 4)),
    )


def _finding_row(finding: Finding) -> tuple[str, ...]:
    ranks = finding.ranks or (() if finding.rank is None else (finding.rank,))
    function = finding.function
    text = finding.text or (function.name if function else finding.kind)
    text = _LONG_LIST.sub(lambda found: f"{found[1]} and more", text)
    if function and function.file:
        where = citation(Place(name=function.name, file=function.file, line=function.line))
        named = "" if function.name in text else f" {function.name}"
        text += "" if where in text else f" ({where}{named})"
    distance = finding.differential_distance
    if distance is None:
        distance = finding.expected_distance
    shown = "" if distance is None else f"{distance:.2f}"
    if shown and finding.threshold is not None:
        shown += f" ({finding.threshold:.2f})"
    beta = "" if finding.beta is None else f"{finding.beta:.3f}"
    peers = f"{finding.peers['beta']:.3f}" if "beta" in finding.peers else ""
    return (finding.id, text, short_ranks(ranks), beta, peers, shown)


def short_ranks(ranks: tuple[int, ...], limit: int = 8) -> str:
    """Ranges of ranks; of many pieces the first are named and the rest counted."""
    pieces = units.ranks(ranks).split(",")
    if len(pieces) <= limit:
        return ", ".join(pieces)
    return f"{', '.join(pieces[:limit])} and more, {len(set(ranks))} in all"


def hosts_table(job: Job) -> Table:
    items = list(job.hosts.items())
    rows = [(name, short_ranks(tuple(ranks))) for name, ranks in items[:_MAX_HOSTS]]
    if len(items) > _MAX_HOSTS:
        rows.append((f"{len(items) - _MAX_HOSTS} more hosts", ""))
    return Table(("Host", "Ranks"), tuple(rows))


def versions(evidence: JobEvidence | None) -> tuple[tuple[str, str], ...]:
    """Versions the hook reported; where ranks differ, all values are named."""
    if evidence is None:
        return ()
    found: dict[str, set[str]] = {}
    for rank in evidence.ranks:
        for setting in rank.settings:
            if setting.key in _VERSIONS:
                found.setdefault(setting.key, set()).add(str(setting.value))
    return tuple((key, ", ".join(sorted(found[key]))) for key in _VERSIONS if key in found)


def changed_parameters() -> list[str]:
    """Parameters of this run that are not the defaults, as ``name=value``."""
    current, default = config.load(), config.Parameters()
    return [
        f"{field.name}={getattr(current, field.name)}"
        for field in fields(default)
        if getattr(current, field.name) != getattr(default, field.name)
    ]
