"""Two incidents side by side: what went, what came, what stayed; what each function changed by."""

from dataclasses import dataclass

import numpy as np

from eroica import units
from eroica.explain.rules import place_text, ranks_text
from eroica.incident import IncidentFolder
from eroica.records import Cause, Incident
from eroica.report import html, markdown
from eroica.report.blocks import Block, Bullets, Document, Section, Table, Text, all_anchors
from eroica.report.content import headline
from eroica.report.draw_ranks import pattern_rows
from eroica.report.impact import lost_share
from eroica.report.material import Material, load

_MAX_FUNCTIONS = 15
_PARTS = ("compute", "exposed_communication", "memory", "data", "python", "idle")

Fingerprint = tuple[str, str]


def fingerprint(incident: Incident) -> Fingerprint:
    """Category and function of the first cause: incidents that share it are the same trouble."""
    if not incident.causes:
        return (incident.symptom, "")
    return cause_print(incident.causes[0])


def cause_print(cause: Cause) -> Fingerprint:
    """File and function, not the line: an edit above must not make it another trouble."""
    place = cause.functions[0] if cause.functions else None
    return (cause.category, f"{place.file or ''} {place.name}".strip() if place else "")


@dataclass(frozen=True)
class Group:
    """Incidents of one fingerprint, oldest first."""

    fingerprint: Fingerprint
    folders: tuple[IncidentFolder, ...]

    @property
    def text(self) -> str:
        """``seen 3 times since 2026-11-29T03:12:39Z``; empty for a single one."""
        if len(self.folders) < 2:
            return ""
        since = self.folders[0].read_incident().created or self.folders[0].id
        return f"seen {len(self.folders)} times since {since}"


def group(folders: list[IncidentFolder]) -> list[Group]:
    """Group incidents by fingerprint, the group with the newest incident last.

    The same evidence diagnosed again is the same incident: only its first diagnosis counts.
    """
    records = {folder.id: folder.read_incident() for folder in folders}
    found: dict[Fingerprint, dict[str, IncidentFolder]] = {}
    newest: dict[Fingerprint, str] = {}
    for folder in sorted(folders, key=lambda one: one.id):
        key = fingerprint(records[folder.id])
        found.setdefault(key, {}).setdefault(_evidence_of(folder.id, records), folder)
        newest[key] = folder.id
    groups = [Group(key, tuple(members.values())) for key, members in found.items()]
    return sorted(groups, key=lambda one: newest[one.fingerprint])


def _evidence_of(name: str, records: dict[str, Incident]) -> str:
    """What an incident was made from: files by their path, a look at a live job by its id."""
    source = records[name].source
    seen = {name}
    while source.startswith("incident "):
        name = source.removeprefix("incident ")
        if name in seen or name not in records:
            break
        seen.add(name)
        source = records[name].source
    is_live = not source or source.startswith(("live", "pid", "incident "))
    return name if is_live else f"{source} {records[name].onset or ''}"


def compare(before: IncidentFolder, after: IncidentFolder, format: str = "md") -> str:
    """Return the comparison as Markdown (``md``) or one HTML page (``html``)."""
    document = compare_documents(load(before), load(after))
    if format == "html":
        return html.render_document(document)
    return markdown.render_document(document)


def compare_documents(before: Material, after: Material) -> Document:
    sections = (
        Section("facts", "Side by side", (_facts(before, after),)),
        Section("causes", "Causes", _causes(before.incident, after.incident)),
        Section("parts", "What held the ranks", _parts(before, after)),
        Section("functions", "Functions", _functions(before, after)),
    )
    kept = tuple(section for section in sections if section.blocks)
    return Document(
        title=_title(before, after),
        symptom=after.incident.symptom,
        subtitle=f"before: {before.incident.id}, after: {after.incident.id}",
        sections=kept,
        footer="Made by eroica from two incidents.",
        anchors=all_anchors(kept),
    )


def _title(before: Material, after: Material) -> str:
    one, other = before.incident.job.step_ms.now, after.incident.job.step_ms.now
    if one and other:
        ratio = other / one
        change = "as long as" if 0.98 < ratio < 1.02 else f"{ratio:.2f} x as long as"
        return f"a step takes {change} before"
    return f"{before.incident.symptom} before, {after.incident.symptom} after"


def _facts(before: Material, after: Material) -> Table:
    rows = []
    for name, describe in (
        ("Symptom", lambda m: m.incident.symptom),
        ("Verdict", lambda m: headline(m.incident)),
        ("Step", _step),
        ("Time lost", lambda m: units.share(s) if (s := lost_share(m)) is not None else ""),
        ("Ranks", lambda m: str(m.incident.job.world_size)),
        ("Diagnosed", lambda m: m.incident.created),
    ):
        left, right = describe(before), describe(after)
        if left or right:
            rows.append((name, left, right))
    return Table(("", "Before", "After"), tuple(rows))


def _step(material: Material) -> str:
    now = material.incident.job.step_ms.now
    return units.duration(now * units.NS_PER_MS) if now else ""


def _causes(before: Incident, after: Incident) -> tuple[Block, ...]:
    old = {cause_print(cause): cause for cause in before.causes}
    new = {cause_print(cause): cause for cause in after.causes}
    blocks: list[Block] = []
    for title, keys, source in (
        ("Gone:", [key for key in old if key not in new], old),
        ("New:", [key for key in new if key not in old], new),
        ("Still there:", [key for key in new if key in old], new),
    ):
        if keys:
            blocks += [Text(title), Bullets(tuple(_cause_line(source[key]) for key in keys))]
    return tuple(blocks) or (Text("Neither has a cause."),)


def _cause_line(cause: Cause) -> str:
    place = place_text(cause.functions[0]) if cause.functions else ""
    share = f", {units.share(cause.share)} of step time" if cause.share is not None else ""
    where = f" at {place}" if place else ""
    return f"{cause.category} on {ranks_text(cause)}{where}{share}: {cause.summary}"


def _parts(before: Material, after: Material) -> tuple[Block, ...]:
    left, right = before.incident.breakdown, after.incident.breakdown
    if not left or not right:
        return ()
    rows = []
    for part in _PARTS:
        one = float(np.mean([getattr(row, part) for row in left]))
        other = float(np.mean([getattr(row, part) for row in right]))
        if max(one, other) >= 0.005:
            name = part.replace("_", " ")
            rows.append((name, units.share(one), units.share(other), _change(other - one)))
    header = ("Share of the window", "Before", "After", "Change")
    return (Table(header, tuple(rows), numeric=frozenset({1, 2, 3})),)


def _change(delta: float) -> str:
    points = delta * 100
    return "0" if abs(points) < 0.5 else f"{points:+.0f} points"


def _functions(before: Material, after: Material) -> tuple[Block, ...]:
    """Functions by how much their mean beta changed; the same identity on both sides."""
    left, right = pattern_rows(before.patterns), pattern_rows(after.patterns)
    if left is None or right is None:
        return ()
    names = {function.id: function.name for function in (*left[0], *right[0])}
    old = dict(zip((f.id for f in left[0]), left[2].mean(axis=1).tolist(), strict=True))
    new = dict(zip((f.id for f in right[0]), right[2].mean(axis=1).tolist(), strict=True))
    delta = {key: new.get(key, 0.0) - old.get(key, 0.0) for key in names}
    ordered = sorted(delta, key=lambda key: -abs(delta[key]))[:_MAX_FUNCTIONS]
    rows = [
        (names[key], units.share(old.get(key, 0.0)), units.share(new.get(key, 0.0)),
         _change(delta[key]))
        for key in ordered
        if abs(delta[key]) >= 0.005
    ]  # fmt: skip
    header = ("Function", "Before", "After", "Change")
    return (Table(header, tuple(rows), numeric=frozenset({1, 2, 3})),) if rows else ()
