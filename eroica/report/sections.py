"""The later sections of a report: evidence, known and not known, actions, patches, record."""

from eroica.explain.rules import rank_phrase
from eroica.records import Cause, Diagnosis
from eroica.report import tables
from eroica.report.blocks import Block, Bullets, Code, Facts, Picture, Section, Text
from eroica.report.material import WRITTEN_BY_RULE, Material


def rules_of(material: Material, cause: str) -> Diagnosis | None:
    for diagnosis in material.diagnoses:
        if diagnosis.cause == cause and diagnosis.source == "rules":
            return diagnosis
    return None


def evidence(material: Material, pictures: tuple[Picture, ...]) -> Section:
    incident = material.incident
    blocks: list[Block] = []
    if incident.ranks_table:
        blocks.append(tables.ranks_table(incident))
    blocks += pictures
    if incident.findings:
        blocks.append(tables.findings_table(incident))
    return Section("evidence", "Evidence", tuple(blocks))


def known(material: Material) -> Section:
    """Known, suspected and not collected, apart from each other."""
    incident = material.incident
    sure = [c for c in incident.causes if _verdict(material, c) in ("established", "supported")]
    unsure = [c for c in incident.causes if c not in sure]
    known = tuple(f"{cause.id}: {cause.summary} ({_verdict(material, cause)})" for cause in sure)
    suspected = tuple(f"{cause.id}: {cause.summary}" for cause in unsure)
    to_do = {step for diagnosis in material.diagnoses for step in diagnosis.next_steps}
    unseen = [sentence for sentence in incident.not_seen if sentence not in to_do]
    if incident.job.missing_ranks:
        unseen.append(f"Nothing was collected from {rank_phrase(incident.job.missing_ranks)}.")
    for diagnosis in material.diagnoses:
        notes = diagnosis.notes if diagnosis.source == "rules" else ()
        unseen += [note for note in notes if not note.startswith(WRITTEN_BY_RULE)]
    unseen += material.lost
    warnings = tuple(
        f"{warning.file}: {warning.what}" if warning.file else warning.what
        for warning in incident.warnings
    )
    parts = (
        ("known", "Known", known),
        ("suspected", "Suspected", suspected),
        ("unseen", "Not collected", tuple(dict.fromkeys(unseen))),
        ("warnings", "Warnings", warnings),
    )
    children = tuple(Section(key, title, (Bullets(rows),)) for key, title, rows in parts if rows)
    return Section("known-unknown", "Known and not known", (), children)


def _verdict(material: Material, cause: Cause) -> str:
    diagnosis = rules_of(material, cause.id)
    return diagnosis.verdict if diagnosis else "hypothesis"


def actions(material: Material) -> Section:
    steps: list[str] = []
    for diagnosis in material.diagnoses:
        mark = f"{diagnosis.cause}: " if diagnosis.cause else ""
        steps += [f"{mark}{step}" for step in diagnosis.next_steps]
    rows = tuple(dict.fromkeys(steps))
    return Section("actions", "What to do", (Bullets(rows, is_numbered=True),) if rows else ())


def patches(material: Material) -> Section:
    children = []
    for patch in material.patches:
        facts = [
            ("For", patch.cause),
            ("By", patch.source),
            ("Label", patch.label),
            ("Files", ", ".join(edit.path for edit in patch.edits)),
            ("Applied", patch.applied or "no"),
        ]
        decided = [d for d in material.decisions if d.patch == patch.id]
        if decided:
            last = decided[-1]
            facts.append(("Decision", f"{last.action} at {last.time} {last.comment}".strip()))
        blocks: list[Block] = [Facts(tuple(facts))]
        blocks += [Text(text) for text in (patch.why, patch.behaviour) if text]
        failed = tuple(f"{gate.name}: {gate.reason}" for gate in patch.gates if not gate.passed)
        if failed:
            blocks += [Text("Gates it failed:"), Bullets(failed)]
        if patch.rehearsal:
            verdict = patch.rehearsal.verdict
            blocks.append(Text(f"Rehearsal: {verdict}. {patch.rehearsal.summary}"))
        blocks.append(Code(patch.diff, "diff"))
        children.append(Section(f"patch-{patch.id}", f"{patch.id}: {patch.title}", tuple(blocks)))
    return Section("patches", "Patch and rehearsal", (), tuple(children))


def record(material: Material) -> Section:
    incident = material.incident
    job = incident.job
    facts = [
        ("Incident", incident.id),
        ("Source", incident.source),
        ("Command", " ".join(job.command)),
        ("Ranks seen", f"{len(job.ranks)} of {job.world_size}"),
        ("Backend", job.backend),
        ("eroica", incident.eroica),
        *tables.versions(material.evidence),
    ]
    blocks: list[Block] = [Facts(tuple((name, value) for name, value in facts if value))]
    if len(job.hosts) > 0:
        blocks.append(tables.hosts_table(job))
    changed = tables.changed_parameters()
    if changed:
        blocks.append(Text("Parameters that differ from the defaults: " + ", ".join(changed)))
    return Section("record", "Parameters and versions", tuple(blocks))
