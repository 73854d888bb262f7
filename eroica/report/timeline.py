"""When what happened: last healthy step, onset, detection, window, diagnosis, decisions."""

from collections.abc import Iterator
from dataclasses import dataclass

from eroica import units
from eroica.records import RankExit
from eroica.report.blocks import Stop, Strip, Table
from eroica.report.material import Material, clock, iso_ns

_MAX_LOG_ROWS = 20
_MAX_STOPS = 7


@dataclass(frozen=True)
class Moment:
    """Something that happened, at a Unix time."""

    when_ns: int
    what: str
    label: str = ""
    """Its name on the strip; empty where it has no place there."""
    tone: str = ""


def moments(material: Material) -> list[Moment]:
    """Return the known moments, oldest first; what is not known is left out."""
    found = [*_of_the_job(material), *_of_the_evidence(material), *_of_the_answer(material)]
    return sorted(found, key=lambda moment: moment.when_ns)


def _of_the_job(material: Material) -> Iterator[Moment]:
    incident, evidence = material.incident, material.evidence
    healthy = _last_healthy_step(material)
    if healthy is not None:
        end, step = healthy
        yield Moment(end, f"last healthy step: {step}", f"last healthy step {step}", "good")
    onset = iso_ns(incident.onset)
    if onset is not None:
        yield Moment(onset, f"onset: the job is {incident.symptom} from here on", "onset", "bad")
    if evidence is None:
        return
    ended = [(one.rank, one.exit) for one in evidence.ranks if one.exit is not None]
    timed = [(exit.time_ns, rank, exit) for rank, exit in ended if exit.time_ns is not None]
    is_first = True
    for when, rank, exit in sorted(timed, key=lambda one: one[0]):
        what = f"rank {rank} exited"
        is_told = is_first and bool(exit.signal or exit.exit_code)
        is_first = is_first and not is_told
        yield Moment(when, f"{what}{_how(exit)}", what if is_told else "", "bad")
    for event in evidence.log_events[:_MAX_LOG_ROWS]:
        if event.time_ns is not None:
            yield Moment(event.time_ns, f"log: {event.text[:160]}")


def _of_the_evidence(material: Material) -> Iterator[Moment]:
    evidence = material.evidence
    if evidence is None:
        return
    if evidence.detected_ns is not None:
        yield Moment(evidence.detected_ns, "eroica noticed it", "noticed")
    if evidence.window_ns is not None:
        begin, end = evidence.window_ns
        took = units.duration(max(0, end - begin))
        yield Moment(begin, f"profiler window, {took} with its export", "window")
    if evidence.taken_ns is not None:
        yield Moment(evidence.taken_ns, "evidence taken", "evidence taken")


def _of_the_answer(material: Material) -> Iterator[Moment]:
    incident = material.incident
    created = iso_ns(incident.created)
    if created is not None:
        yield Moment(created, "diagnosed", "diagnosed")
        if incident.deadline_ns is not None:
            end = created + incident.deadline_ns
            yield Moment(end, "the collective time-out would end it", "time-out", "bad")
    for decision in material.decisions:
        when = iso_ns(decision.time)
        if when is not None:
            what = f"{decision.action} {decision.patch}"
            by = f" by {decision.by}" if decision.by else ""
            yield Moment(when, f"{what}{by} {decision.comment}".strip(), what)


def timeline_rows(material: Material) -> Table:
    """Return every known moment as a row."""
    found = moments(material)
    start = _start(material, found)
    cells = tuple((clock(one.when_ns), _offset(one.when_ns - start), one.what) for one in found)
    return Table(("Time", "From onset", "What"), cells)


def strip(material: Material) -> Strip | None:
    """The few moments one looks for first; None where there is but one."""
    found = [moment for moment in moments(material) if moment.label]
    if len(found) < 2:
        return None
    start = _start(material, found)
    kept = found if len(found) <= _MAX_STOPS else [*found[: _MAX_STOPS - 1], found[-1]]
    stops = (
        Stop(one.label, clock(one.when_ns).split()[-2], _offset(one.when_ns - start), one.tone)
        for one in kept
    )
    return Strip(tuple(stops))


def _start(material: Material, found: list[Moment]) -> int:
    onset = iso_ns(material.incident.onset)
    return onset if onset is not None else (found[0].when_ns if found else 0)


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


def _last_healthy_step(material: Material) -> tuple[int, int] | None:
    """End and number of the last step that ended before the onset: the earliest rank's last."""
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
    return min(lasts) if lasts else None
