"""What a report says, in the order of a post-mortem; every number comes from the incident."""

from dataclasses import dataclass

from eroica import __version__, units
from eroica.explain.knowledge import lookup
from eroica.explain.rules import as_sentence, citation, located, place_text, ranks_text
from eroica.incident import IncidentFolder
from eroica.records import Cause, Diagnosis, Incident
from eroica.report import sections
from eroica.report.blocks import (
    Block,
    Bullets,
    Document,
    Facts,
    Picture,
    Section,
    Text,
    all_anchors,
)
from eroica.report.impact import impact_of
from eroica.report.material import WRITTEN_BY_RULE, Material, load
from eroica.report.timeline import strip, timeline_rows

_MAX_REASONS, _MAX_WHY = 3, 280
_ACTIONS = {
    "patch": "change the code",
    "drain": "drain the host",
    "configure": "change the configuration",
    "investigate": "look further",
}


@dataclass(frozen=True)
class Options:
    """What the reader asked for."""

    pictures: bool = True
    price_per_gpu_hour: float | None = None
    currency: str = "USD"
    anonymize: bool = False


def build(folder: IncidentFolder, options: Options) -> Document:
    """Return the report of an incident folder; InputError where it is none."""
    material = load(folder)
    if options.anonymize:
        from eroica.report.anonymize import anonymized

        material = anonymized(folder, material)
    return document(material, options)


def document(material: Material, options: Options) -> Document:
    incident = material.incident
    pictures = _pictures(material) if options.pictures else {}
    made = [
        _summary(material, pictures),
        _impact(material, options),
        _timeline(material, pictures),
        _causes(material, pictures),
        sections.evidence(material, take(pictures, "arrivals", "heatmap", "waiting")),
        sections.known(material),
        sections.actions(material),
        sections.patches(material),
        sections.record(material),
    ]
    kept = tuple(section for section in made if section.blocks or section.children)
    return Document(
        title=headline(incident),
        symptom=incident.symptom,
        subtitle=_subtitle(incident),
        sections=kept,
        footer=f"{incident.id} - made by eroica {incident.eroica or __version__}",
        anchors=all_anchors(kept),
    )


def headline(incident: Incident) -> str:
    if incident.causes:
        return located(incident.causes[0]) or incident.headline
    return incident.headline or {
        "healthy": "no function is off its peers or its past",
        "unknown": "what was collected does not name a cause",
    }.get(incident.symptom, "no cause was found")


def _subtitle(incident: Incident) -> str:
    job = incident.job
    parts = [f"{job.world_size} ranks"]
    if len(job.hosts) > 1:
        parts.append(f"{len(job.hosts)} hosts")
    if job.backend:
        parts.append(job.backend)
    if incident.onset:
        parts.append(f"since {incident.onset}")
    if incident.created:
        parts.append(f"diagnosed {incident.created}")
    if incident.causes:
        parts.append(f"confidence {incident.causes[0].confidence:.2f}")
    return ", ".join(parts)


def _pictures(material: Material) -> dict[str, Picture]:
    from eroica.report.pictures import draw

    return {picture.id: picture for picture in draw(material)}


def take(pictures: dict[str, Picture], *names: str) -> tuple[Picture, ...]:
    """Take pictures out, so that each is shown once, where it is asked for first."""
    return tuple(pictures.pop(name) for name in names if name in pictures)


def _summary(material: Material, pictures: dict[str, Picture]) -> Section:
    """Three sentences: what, why, what to do; then the one picture that shows the cause."""
    incident = material.incident
    blocks: list[Block] = []
    if incident.causes:
        cause = incident.causes[0]
        diagnosis = sections.rules_of(material, cause.id)
        why = _why(diagnosis, cause) if diagnosis and diagnosis.claims else cause.summary
        todo = diagnosis.next_steps[0] if diagnosis and diagnosis.next_steps else cause.advice
        blocks.append(Text(as_sentence(located(cause)), tone="lead"))
        blocks.append(Text(f"Why: {as_sentence(why)}"))
        blocks.append(Text(f"Do: {as_sentence(todo)}"))
        if cause.action in ("drain", "configure"):
            blocks.append(Text("This is not in the code: no patch is proposed.", tone="note"))
    else:
        diagnosis = sections.rules_of(material, "")
        blocks.append(Text(as_sentence(headline(incident)), tone="lead"))
        if diagnosis and diagnosis.next_steps:
            blocks.append(Text(f"Do: {as_sentence(diagnosis.next_steps[0])}"))
    if incident.deadline_ns is not None and incident.symptom == "stuck":
        left = units.duration(incident.deadline_ns)
        text = f"The collective time-out ends the job {left} after the diagnosis."
        blocks.append(Text(text, "alarm"))
    first = "waiting" if incident.symptom in ("stuck", "failed") else "heatmap"
    blocks += take(pictures, first) or take(pictures, "breakdown")
    return Section("summary", "Summary", tuple(blocks))


def _why(diagnosis: Diagnosis, cause: Cause) -> str:
    """The reasons given for the cause, as many as are read in one breath."""
    said = diagnosis.claims[0].text
    for claim in diagnosis.claims[1 : min(_MAX_REASONS, len(cause.why))]:
        if len(said) + len(claim.text) > _MAX_WHY:
            break
        said = f"{as_sentence(said)} {claim.text}"
    return said


def _impact(material: Material, options: Options) -> Section:
    facts = impact_of(material, options.price_per_gpu_hour, options.currency)
    blocks: list[Block] = [Facts(facts)] if facts else []
    return Section("impact", "Impact", tuple(blocks))


def _timeline(material: Material, pictures: dict[str, Picture]) -> Section:
    table = timeline_rows(material)
    blocks: list[Block] = [table] if table.rows else []
    stops = strip(material)
    if stops is not None:
        blocks.insert(0, stops)
    return Section("timeline", "Timeline", (*blocks, *take(pictures, "steps")))


def _causes(material: Material, pictures: dict[str, Picture]) -> Section:
    causes = material.incident.causes
    blocks: list[Block] = []
    if len(causes) > 1:
        blocks.append(Text(f"{len(causes)} causes at once, the first explains most."))
    said: set[str] = set()
    children = [_cause(material, cause, said) for cause in causes]
    blocks += take(pictures, "pattern", "breakdown")
    return Section("causes", "Causes" if len(causes) > 1 else "Cause", tuple(blocks), (*children,))


def _cause(material: Material, cause: Cause, said: set[str]) -> Section:
    """One cause; what was ``said`` of an earlier one is not said again."""
    known = lookup(cause.category)
    facts = [
        ("Kind", f"{cause.category} ({known.title})"),
        ("Ranks", ranks_text(cause)),
        ("Hosts", ", ".join(cause.hosts)),
        ("Place", place_text(cause.functions[0]) if cause.functions else ""),
        ("Called or set up from", place_text(cause.functions[1]) if cause.functions[1:] else ""),
        ("Step time it costs", units.share(cause.share) if cause.share is not None else ""),
        ("Confidence", f"{cause.confidence:.2f}"),
        ("Action", _ACTIONS[cause.action]),
    ]
    blocks: list[Block] = [Facts(tuple((name, value) for name, value in facts if value))]
    if cause.against:
        blocks += [Text("What speaks against it:"), Bullets(cause.against)]
    own = [diagnosis for diagnosis in material.diagnoses if diagnosis.cause == cause.id]
    children = tuple(_diagnosis(diagnosis, frozenset(said)) for diagnosis in own)
    said |= {claim.text for diagnosis in own for claim in diagnosis.claims}
    return Section(cause.id, f"{cause.id}: {cause.summary}", tuple(blocks), children)


def _diagnosis(diagnosis: Diagnosis, said: frozenset[str] = frozenset()) -> Section:
    by_rule = diagnosis.source == "rules"
    title = "Why" if by_rule else f"Explanation by {diagnosis.source}, checked against the incident"
    claims = tuple(
        claim_text(claim.text, claim.citations, claim.is_resolved)
        for claim in diagnosis.claims
        if claim.text not in said
    )
    blocks: list[Block] = []
    if not by_rule:
        blocks.append(Text(diagnosis.summary))
    blocks.append(Text(f"Verdict: {diagnosis.verdict}."))
    if claims:
        blocks.append(Bullets(claims))
    if diagnosis.disproved_by:
        blocks.append(Text("What would disprove it:"))
        blocks.append(Bullets(diagnosis.disproved_by))
    notes = [note for note in diagnosis.notes if not by_rule or note.startswith(WRITTEN_BY_RULE)]
    blocks += [Text(as_sentence(note), tone="note") for note in notes]
    key = f"why-{diagnosis.cause or 'none'}" + ("" if by_rule else "-model")
    return Section(key, title, tuple(blocks))


def claim_text(text: str, citations: tuple[str, ...], is_resolved: bool) -> str:
    """A claim with its sources behind it; one that did not resolve says so."""
    missing = [key for key in citations if key not in text]
    sources = f" [{', '.join(missing)}]" if missing else ""
    mark = "" if is_resolved else " (not confirmed by the evidence)"
    return f"{text}{sources}{mark}"


__all__ = ["Options", "build", "citation", "document", "headline"]
