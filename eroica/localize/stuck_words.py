"""What a person reads of a stuck job: the table of ranks, headline, findings, what was not seen."""

from collections.abc import Sequence

from eroica.localize.collectives import timeouts_ms
from eroica.localize.missing import absent_phrase
from eroica.localize.source import Project
from eroica.localize.stuck_suspect import Suspect, at
from eroica.localize.stuck_view import RankView
from eroica.localize.waits import short
from eroica.records import Finding, JobEvidence, Place, RankRow
from eroica.units import NS_PER_MS, rank_phrase


def waiting_ns(view: RankView, evidence: JobEvidence) -> int | None:
    """How long a rank has been where it is, from its oldest unfinished collective or last event."""
    if evidence.taken_ns is None:
        return None
    begun = view.pending[0].created_ns if view.pending else view.evidence.last_event_ns
    if begun is None or begun > evidence.taken_ns:
        return None
    return evidence.taken_ns - begun


def deadline_ns(views: Sequence[RankView], evidence: JobEvidence) -> int | None:
    """Time left until the collective time-out ends the job; None without the recorder."""
    timeout = timeouts_ms(v.evidence.flight for v in views if v.evidence.flight is not None)
    waited = [w for v in views if v.pending and (w := waiting_ns(v, evidence)) is not None]
    if timeout is None or not waited:
        return None
    return max(0, timeout * NS_PER_MS - max(waited))


def _last_collective(view: RankView) -> str:
    entry = view.pending[0] if view.pending else view.last
    if entry is None:
        return view.wait.op if view.wait is not None and view.wait.is_distributed else ""
    number = entry.p2p_sequence if entry.is_p2p else entry.sequence
    counted = f" #{number}" if number is not None else ""
    return entry.op + counted + ("" if view.pending else " (done)")


def _where(view: RankView, project: Project) -> str:
    if view.wait is None:
        return "ended" if view.has_exited else "not seen"
    place = view.wait.user[0] if view.wait.user else None
    text = f"{project.name_in_root(place.file)}:{place.line}  {place.name}" if place else ""
    doing = view.wait.op or view.wait.kind
    where = f"{text} > {doing}" if text and doing != place_name(place) else text or doing
    return f"ended in {where}" if view.has_exited else where


def place_name(place: Place | None) -> str:
    return short(place.name) if place is not None else ""


def table(
    views: Sequence[RankView], evidence: JobEvidence, project: Project, guilty: set[int]
) -> tuple[RankRow, ...]:
    """Fold ranks that wait alike into rows, the guilty first."""
    rows: dict[tuple[str, str, bool], list[RankView]] = {}
    for view in views:
        key = (_last_collective(view), _where(view, project), view.rank in guilty)
        rows.setdefault(key, []).append(view)
    marked = bool(guilty) and len(guilty) < len(views)
    found = [
        RankRow(
            ranks=tuple(v.rank for v in some),
            last_collective=last,
            place=where,
            since_ns=max((w for v in some if (w := waiting_ns(v, evidence))), default=None),
            note="odd one out" if is_guilty and marked else "",
        )
        for (last, where, is_guilty), some in rows.items()
    ]
    return tuple(sorted(found, key=lambda r: (not r.note, r.ranks)))


def headline(suspect: Suspect | None, project: Project) -> str:
    """One line: who is stuck, in what, where."""
    if suspect is None:
        return "no cause was found in what was collected"
    where = at(suspect.places[0], project) if suspect.places else ""
    if not where or where in suspect.summary:
        return suspect.summary
    return f"{suspect.summary}, at {where}"


def findings(
    views: Sequence[RankView], evidence: JobEvidence, project: Project
) -> tuple[Finding, ...]:
    """Facts the causes rest on: collectives, stacks, ends, steps."""
    found: list[tuple[str, str, tuple[int, ...]]] = []
    by_op: dict[str, list[int]] = {}
    for view in views:
        if view.pending or view.last is not None:
            by_op.setdefault(_last_collective(view), []).append(view.rank)
    if by_op:
        parts = [f"{op} on {rank_phrase(r)}" for op, r in by_op.items()]
        ranks = tuple(r for some in by_op.values() for r in some)
        found.append(("collective_divergence", "last collective: " + "; ".join(parts), ranks))
    stacked = tuple(v.rank for v in views if v.threads)
    if stacked:
        places: dict[str, list[int]] = {}
        for view in views:
            if view.threads:
                places.setdefault(_where(view, project), []).append(view.rank)
        text = "; ".join(f"{rank_phrase(r)}: {where}" for where, r in places.items())
        found.append(("stack", f"stacks of {len(stacked)} of {len(views)} ranks: {text}", stacked))
    ended = tuple(v.rank for v in views if v.has_exited)
    alive = tuple(v.rank for v in views if v.threads and not v.has_exited)
    if ended:
        found.append(("exit", f"{rank_phrase(ended)} ended", ended))
    elif len(alive) == len(views) and alive:
        found.append(("exit", "nobody exited", alive))
    steps = {v.rank: number for v in views if (number := v.num_steps)}
    if len(set(steps.values())) > 1:
        by_number: dict[int, list[int]] = {}
        for rank, number in steps.items():
            by_number.setdefault(number, []).append(rank)
        text = "; ".join(f"{n} on {rank_phrase(some)}" for n, some in by_number.items())
        found.append(("steps", f"steps done differ: {text}", tuple(steps)))
    return tuple(
        Finding(
            id=f"F{number}",
            kind=kind,
            rank=ranks[0] if len(ranks) == 1 else None,
            ranks=ranks,
            text=text,
        )
        for number, (kind, text, ranks) in enumerate(found, 1)
    )


def not_seen(views: Sequence[RankView], evidence: JobEvidence, project: Project) -> tuple[str, ...]:
    """Say what would make the answer surer, and how to get it."""
    missing: list[str] = []
    present = {v.rank for v in views}
    absent = absent_phrase(present, evidence.world_size)
    bare = [v.rank for v in views if not v.threads and not v.has_exited]
    if absent:
        missing.append(
            f"nothing was collected of {absent}: run `eroica collect` on "
            f"{'its host' if absent.startswith('rank ') else 'their hosts'}"
        )
    if bare:
        missing.append(f"no stacks of {rank_phrase(bare)}: `eroica collect` takes them with py-spy")
    unrecorded = [v.rank for v in views if v.evidence.flight is None]
    if unrecorded and len(unrecorded) == len(views):
        missing.append(
            "no Flight Recorder dump: run the job with `eroica run`, or set TORCH_FR_BUFFER_SIZE"
        )
    if project.root is None:
        missing.append("the project's source: give it with --source DIR")
    lacking: dict[str, list[int]] = {}
    for view in views:
        for text in view.evidence.missing:
            lacking.setdefault(text, []).append(view.rank)
    missing += [f"{rank_phrase(ranks)}: {text}" for text, ranks in lacking.items()]
    return tuple(dict.fromkeys(missing))[:12]
