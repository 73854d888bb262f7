"""When what happened: last healthy step, onset, evidence, diagnosis, decisions."""

from eroica import units
from eroica.records import RankExit
from eroica.report.blocks import Table
from eroica.report.material import Material, clock, iso_ns

_MAX_LOG_ROWS = 20


def timeline_rows(material: Material) -> Table:
    """Return the known moments, oldest first; what is not known has no row."""
    incident, evidence = material.incident, material.evidence
    rows: list[tuple[int, str]] = []
    healthy = _last_healthy_step(material)
    if healthy is not None:
        rows.append(healthy)
    onset = iso_ns(incident.onset)
    if onset is not None:
        rows.append((onset, f"onset: the job is {incident.symptom} from here on"))
    if evidence is not None:
        if evidence.taken_ns is not None:
            rows.append((evidence.taken_ns, "evidence taken"))
        rows += [
            (rank.exit.time_ns, f"rank {rank.rank} exited{_how(rank.exit)}")
            for rank in evidence.ranks
            if rank.exit is not None and rank.exit.time_ns is not None
        ]
        rows += [
            (event.time_ns, f"log: {event.text[:160]}")
            for event in evidence.log_events[:_MAX_LOG_ROWS]
            if event.time_ns is not None
        ]
    created = iso_ns(incident.created)
    if created is not None:
        rows.append((created, "diagnosed"))
        if incident.deadline_ns is not None:
            rows.append((created + incident.deadline_ns, "the collective time-out would end it"))
    for decision in material.decisions:
        when = iso_ns(decision.time)
        if when is not None:
            by = f" by {decision.by}" if decision.by else ""
            rows.append(
                (when, f"{decision.action} {decision.patch}{by} {decision.comment}".strip())
            )
    rows.sort(key=lambda row: row[0])
    start = onset if onset is not None else (rows[0][0] if rows else 0)
    cells = tuple((clock(when), _offset(when - start), what) for when, what in rows)
    return Table(("Time", "From onset", "What"), cells)


def _how(ended: RankExit) -> str:
    if ended.signal:
        return f" by {ended.signal}"
    if ended.exit_code is not None:
        return f" with code {ended.exit_code}"
    return ""


def _offset(delta_ns: int) -> str:
    if delta_ns == 0:
        return "0"
    sign = "+" if delta_ns > 0 else "-"
    return f"{sign}{units.duration(abs(delta_ns))}"


def _last_healthy_step(material: Material) -> tuple[int, str] | None:
    """The last step that ended before the onset, over all ranks (the earliest of their lasts)."""
    onset = iso_ns(material.incident.onset)
    if onset is None or material.evidence is None:
        return None
    lasts: list[tuple[int, int]] = []
    for rank in material.evidence.ranks:
        steps = rank.steps
        if steps is None:
            continue
        pairs = zip(steps.start_ns, steps.duration_ns, strict=False)
        ends = [start + length for start, length in pairs if start + length <= onset]
        if ends:
            lasts.append((ends[-1], steps.first_step + len(ends) - 1))
    if not lasts:
        return None
    end, step = min(lasts)
    return end, f"last healthy step: {step}"
