"""Stuck and failed jobs: from what was gathered of all ranks to the few causes worth acting on.

Order of belief: a rank that ended explains those that wait for it; a rank that waits for
something inside itself or outside the job explains those that wait for it in collectives; ranks
that all wait for each other are compared by place and by the source between the places; the
Flight Recorder alone gives the roll call. Majority decides who is odd, never the first rank.
"""

from collections.abc import Sequence
from dataclasses import replace

from eroica.config import Parameters
from eroica.localize import stuck_order as order
from eroica.localize import stuck_words as words
from eroica.localize.missing import absent_phrase
from eroica.localize.source import Project
from eroica.localize.stuck_blocked import blocked, follower
from eroica.localize.stuck_divergence import Divergence
from eroica.localize.stuck_failed import Death, deaths, failed, stopped
from eroica.localize.stuck_left import last_places
from eroica.localize.stuck_logs import with_logs
from eroica.localize.stuck_peers import Peers
from eroica.localize.stuck_recorder import from_recorder
from eroica.localize.stuck_sources import other_sources
from eroica.localize.stuck_suspect import Suspect
from eroica.localize.stuck_view import RankView, views
from eroica.records import FAMILY, JobEvidence, Symptom, Verdict
from eroica.units import rank_phrase

MAX_CAUSES = 4  # a person reads the first two
STILL_WORKING = frozenset({"serialized_on_rank0", "straggler_compute"})
"""Categories of a rank that works while the others wait: no hang."""
SURE = 0.6  # confidence from which nothing vaguer is asked


def localize_stuck(evidence: JobEvidence, *, parameters: Parameters | None = None) -> Verdict:
    """Say why a job is stuck or failed. Any one kind of evidence will do; more makes it surer.

    An empty list of causes means that what was collected does not tell; ``not_seen`` says what
    would. Sources are read below ``evidence.source_root`` where it exists.
    """
    del parameters  # no threshold decides here
    evidence = with_logs(evidence)
    project = Project.of(evidence)
    seen = views(evidence, project)
    ended = deaths(evidence, seen)
    suspects = _few(_merge(_rank(_suspects(evidence, project, seen, ended))))
    facts = words.findings(seen, evidence, project)
    hosts = {v.rank: v.evidence.host for v in seen}
    cited = tuple(f.id for f in facts)
    first = suspects[0] if suspects else None
    guilty = set() if first is None else (set(hosts) if first.ranks == "all" else set(first.ranks))
    return Verdict(
        symptom=_symptom(evidence, seen, ended, first),
        causes=tuple(s.cause(n, cited, hosts) for n, s in enumerate(suspects, 1)),
        findings=facts,
        headline=_headline(first, project, seen, evidence),
        ranks_table=words.table(seen, evidence, project, guilty),
        not_seen=words.not_seen(seen, evidence, project),
        deadline_ns=words.deadline_ns(seen, evidence),
        warnings=evidence.warnings,
    )


def _suspects(
    evidence: JobEvidence, project: Project, seen: Sequence[RankView], ended: Sequence[Death]
) -> list[Suspect]:
    local = {v.rank: v.evidence.local_rank for v in seen if v.evidence.local_rank is not None}
    divergence = Divergence(project, evidence.world_size, local)
    alive = [v for v in seen if not v.has_exited]
    waiting = tuple(v.rank for v in alive if v.wait is not None and v.wait.is_distributed)
    found: list[Suspect] = []
    only_timeouts = bool(ended) and all(d.is_timeout or d.is_secondary for d in ended)
    if ended and not only_timeouts:
        others = [d for d in ended if d is not ended[0]]
        found.append(_placed(failed(ended[0], project, others, waiting), ended, seen, project))
        if len(ended) == len(seen):
            return found
    found += _stopped(stopped(alive), waiting)
    peers = Peers(project, divergence, seen)
    held_up = [v for v in alive if v.is_blocked]
    rules = follower(project, divergence.calls, evidence.log_events)
    found += blocked(held_up, rules, waiting, peers)
    found += order.two_threads(peers)
    if any(s.confidence >= SURE for s in found):
        return _after_a_death(found, ended, alive)
    if order.only_point_to_point(peers):
        found += order.point_to_point(peers)
    else:
        found += peers.diverged() or ([] if peers.lags else order.point_to_point(peers))
        found += order.other_groups(peers)
        found += other_sources(peers)
    found += [_behind(s, found) for s in from_recorder(peers)]
    found = _after_a_death(found, ended, alive) or peers.apart()
    return found or _missed(ended, waiting, project)


def _missed(ended: Sequence[Death], waiting: tuple[int, ...], project: Project) -> list[Suspect]:
    """A rank that a peer or a time-out ended, where nothing else is seen: the others miss it."""
    if not ended or not waiting:
        return []
    first = ended[0]
    found = failed(first, project, ended[1:], waiting)
    ended_by = "a connection that a peer closed"
    if first.signal:
        ended_by = "the launcher, as after another rank's failure"
    elif first.is_timeout:
        ended_by = "a collective that timed out"
    against = (*found.against, f"it was ended by {ended_by}: look for who left before it")
    return [replace(found, confidence=0.45, against=against, action="investigate")]


def _placed(
    death: Suspect, ended: Sequence[Death], seen: Sequence[RankView], project: Project
) -> Suspect:
    """A rank that ended without a traceback is placed by what was last seen of it.

    Where others still wait, the place where they miss it is told later, by what they wait for.
    """
    if death.places or len(ended) < len(seen):
        return death
    own = next(v for v in seen if v.rank == ended[0].rank)
    peers = [v for v in seen if v is not own]
    places = last_places(own, peers, project, is_clean=ended[0].is_clean)
    return replace(death, places=places)


def _after_a_death(
    suspects: Sequence[Suspect], ended: Sequence[Death], alive: Sequence[RankView]
) -> list[Suspect]:
    """What stands after a rank was killed or raised is first of all its consequence.

    Of a rank that left without a word nobody knows where it was; then the place where it is
    missed is told.
    """
    if not ended or not suspects:
        return list(suspects)
    guilty = suspects[0].ranks
    if guilty == "all" or ended[0].rank not in guilty:
        return list(suspects)
    death, rest = suspects[0], suspects[1:]
    if not death.places:
        missed = [v.wait.user[:2] for v in alive if v.wait is not None and v.wait.user]
        death = replace(death, places=rest[0].places if rest else (missed[0] if missed else ()))
    if ended[0].is_clean:
        return [death, *rest]
    ceiling = max(0.0, death.confidence - 0.05)
    return [death, *(replace(s, confidence=min(s.confidence, ceiling)) for s in rest)]


def _stopped(some: Sequence[RankView], waiting: tuple[int, ...]) -> list[Suspect]:
    if not some:
        return []
    ranks = tuple(v.rank for v in some)
    wait = some[0].wait
    return [
        Suspect(
            category="rank_exited",
            ranks=ranks,
            places=wait.user[:2] if wait is not None else (),
            confidence=0.9,
            summary=f"stopped by a signal: {rank_phrase(ranks)}",
            why=("the kernel shows the process as stopped (state T)",),
            advice="continue it: kill -CONT PID; find who sent SIGSTOP (a debugger, the scheduler)",
            action="investigate",
            victims=tuple(r for r in waiting if r not in ranks),
        )
    ]


def _behind(suspect: Suspect, found: Sequence[Suspect]) -> Suspect:
    """The recorder's roll call stands behind any reason found in the source."""
    best = max((s.confidence for s in found), default=1.0)
    return replace(suspect, confidence=min(suspect.confidence, best - 0.05))


def _rank(suspects: Sequence[Suspect]) -> list[Suspect]:
    return sorted(suspects, key=lambda s: -s.confidence)


def _merge(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Join suspects that say the same of different ranks, best first."""
    merged: dict[tuple[str, str | None, int | None], Suspect] = {}
    for one in suspects:
        place = one.places[0] if one.places else None
        key = (one.category, place.file if place else None, place.line if place else None)
        known = merged.get(key)
        if known is None:
            merged[key] = one
        elif known.ranks != "all" and one.ranks != "all":
            ranks = tuple(sorted({*known.ranks, *one.ranks}))
            victims = tuple(r for r in known.victims if r not in ranks)
            summary = _for_ranks(known.summary, ranks) if known.ranks != ranks else known.summary
            merged[key] = replace(known, ranks=ranks, victims=victims, summary=summary)
    return list(merged.values())


_PLURAL = {"has": "have", "does": "do", "is": "are"}


def _for_ranks(summary: str, ranks: tuple[int, ...]) -> str:
    """``rank 1 sleeps in ...`` of several ranks."""
    start, _, rest = summary.partition(" ")
    _, _, rest = rest.partition(" ")
    if start not in ("rank", "ranks") or not rest:
        return summary
    verb, _, tail = rest.partition(" ")
    plural = _PLURAL.get(verb, verb.removesuffix("s") if start == "rank" else verb)
    return f"{rank_phrase(ranks)} {plural} {tail}"


def _few(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Leave out what only repeats the answer: the same ranks and family with less behind it."""
    kept: list[Suspect] = []
    for one in suspects:
        if not (kept and _repeats(one, kept[0])):
            kept.append(one)
    return kept[:MAX_CAUSES]


def _repeats(one: Suspect, first: Suspect) -> bool:
    if first.confidence >= 0.9 and one.confidence < 0.5:
        return True
    families = {FAMILY.get(one.category), FAMILY.get(first.category)}
    return one.ranks == first.ranks and (
        len(families) == 1 or families == {"collective", "process"}
    )


def _symptom(
    evidence: JobEvidence,
    seen: Sequence[RankView],
    ended: Sequence[Death],
    first: Suspect | None,
) -> Symptom:
    if first is not None and first.category in STILL_WORKING:
        return "slow"
    if evidence.symptom_hint in ("stuck", "failed"):
        return "stuck" if evidence.symptom_hint == "stuck" else "failed"
    if ended and (len(ended) == len(seen) or any(not d.is_clean for d in ended)):
        return "failed"
    if first is None:
        return "unknown"
    return "stuck"


def _headline(
    first: Suspect | None, project: Project, seen: Sequence[RankView], evidence: JobEvidence
) -> str:
    if first is not None:
        return words.headline(first, project)
    waiting = [v for v in seen if v.wait is not None and v.wait.is_distributed]
    present = {v.rank for v in seen if v.wait is not None or v.evidence.flight is not None}
    absent = absent_phrase(present, evidence.world_size)
    if waiting and absent:
        op = waiting[0].wait.op if waiting[0].wait else "a collective"
        ranks = rank_phrase([v.rank for v in waiting])
        return f"{ranks} wait in {op}; nothing was collected from {absent}"
    return words.headline(None, project)
