"""Localize a slow job: from patterns and live evidence of all ranks to a short list of causes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eroica import units
from eroica.columns import RankPatterns
from eroica.config import Parameters, load
from eroica.localize.arrival import arrival_table, late_ranks
from eroica.localize.baseline import slower_than
from eroica.localize.missing import absent_phrase
from eroica.localize.ranking import number, rank_drafts
from eroica.localize.roles import roles_of_patterns
from eroica.localize.rules import RULES
from eroica.localize.rules.draft import Draft
from eroica.localize.rules.straggler import arrival_finding
from eroica.localize.rules.view import FEW_SAMPLES, JobView, build_view
from eroica.records import Breakdown, Cause, Finding, JobEvidence, Verdict, Warning

SET_UP_SHARE = 0.25  # of its weight: a setting has no part in a change, but is worth a line
MIN_LINK_RANKS = 16  # fewer give no neighbors to tell bursts from a steady low rate


def localize_slow(
    patterns: Sequence[RankPatterns],
    *,
    evidence: JobEvidence | None = None,
    baseline: Sequence[RankPatterns] | None = None,
    parameters: Parameters | None = None,
) -> Verdict:
    """Return what slows the job, or that it is healthy.

    ``patterns`` may come from profiler windows or sampling, of all ranks or some; ``evidence`` adds
    settings, step times, stall samples and Flight Recorder histories. Either alone is enough for
    the rules that need only it. With ``baseline`` (patterns of a healthy past) what became slower
    is reported even where it is below the floor of a cause common to all ranks.
    """
    parameters = parameters or load()
    view = build_view(patterns, evidence, parameters)
    drafts = [draft for rule in RULES for draft in rule(view)]
    if not drafts and _sampled_too_little(view):
        view = build_view(patterns, evidence, parameters, use_windows=True)
        drafts = [draft for rule in RULES for draft in rule(view)]
    drafts += _links(patterns, parameters)
    if baseline:
        _set_back(drafts)
        drafts += slower_than(baseline, patterns, view)
    known = _arrival_facts(view, drafts)
    standing = rank_drafts(drafts, parameters)
    causes, findings = number(standing, known)
    symptom = "slow" if causes else ("healthy" if _saw_enough(view) else "unknown")
    return Verdict(
        symptom=symptom,  # type: ignore[arg-type]
        causes=tuple(causes),
        findings=tuple(findings),
        headline=_headline(view, causes, symptom),
        breakdown=_breakdown(patterns),
        not_seen=tuple(_not_seen(view)),
        warnings=tuple(_warnings(view)),
    )


def _set_back(drafts: Sequence[Draft]) -> None:
    """What the job was set up with from its start does not explain why it became slow since."""
    for draft in drafts:
        if draft.share is None and draft.rank_share is not None:
            draft.rank_share *= SET_UP_SHARE
            draft.against.append("It was so before the job became slow as well.")


def _sampled_too_little(view: JobView) -> bool:
    """A short job gives few samples; what they do not show, a window of every call may."""
    if view.source != "samples" or view.evidence is None:
        return False
    counts = [r.samples.num_samples for r in view.evidence.ranks if r.samples is not None]
    return min(counts, default=0) < FEW_SAMPLES


def _links(patterns: Sequence[RankPatterns], parameters: Parameters) -> list[Draft]:
    """Bad links, where there are enough ranks for mu and sigma of a collective to tell."""
    profiled = [p for p in patterns if not p.is_sampled]
    if len(profiled) < MIN_LINK_RANKS:
        return []
    from eroica.localize.fleet import scan_table
    from eroica.localize.rules.links import bad_links
    from eroica.summarize import merge

    table = merge(profiled)
    roles = dict(zip([p.rank for p in profiled], roles_of_patterns(profiled), strict=True))
    table = replace(table, roles_R=tuple(str(roles[int(rank)]) for rank in table.ranks_R))
    return bad_links(scan_table(table, parameters=parameters))


def _saw_enough(view: JobView) -> bool:
    """Nobody can call a job healthy of which most ranks were not seen."""
    return bool(view.rows or view.steps or view.flights) and not _mostly_missing(view)


def _mostly_missing(view: JobView) -> bool:
    return len(_known(view)) * 2 < view.world_size


def _known(view: JobView) -> set[int]:
    """Ranks of which stacks, steps or collectives were seen; settings alone show no fault."""
    return {*view.ranks_where(view.seen_R), *view.steps, *view.flights}


def _arrival_facts(view: JobView, drafts: Sequence[Draft]) -> list[Finding]:
    """Who arrives last is worth knowing even where it costs little."""
    table = arrival_table([p for p in view.patterns if not p.is_sampled])
    if table is None:
        return []
    said = {f.rank for d in drafts for f in d.findings if f.kind == "collective_arrival"}
    late = [one for one in late_ranks(table) if one.rank not in said]
    return [arrival_finding(one) for one in late[:3]]


def _headline(view: JobView, causes: Sequence[Cause], symptom: str) -> str:
    if causes:
        return causes[0].summary
    if symptom == "unknown" and not _mostly_missing(view):
        return "nothing was collected that could tell"
    count = len(_known(view)) if symptom == "unknown" else view.num_ranks
    known = f"{count} rank{'s' if count != 1 else ''}"
    pace = ""
    if view.step_ns is not None:
        pace = f", step {units.duration(view.step_ns)}"
        spread = _spread(view)
        pace += f" ± {units.duration(spread)}" if spread else ""
    if symptom == "unknown":
        return f"{known} of {view.world_size} seen{pace}: no fault in what is here"
    return f"{known}{pace}, no function off its peers or its past"


def _spread(view: JobView) -> float | None:
    """Half the distance between the quartiles of step time."""
    found = [np.asarray(s.duration_ns, dtype=np.float64) for s in view.steps.values()]
    if not found:
        return None
    return float(np.median([(np.percentile(d, 75) - np.percentile(d, 25)) / 2 for d in found]))


def _breakdown(patterns: Sequence[RankPatterns]) -> tuple[Breakdown, ...]:
    kept = {p.rank: p for p in patterns if p.breakdown}
    names = ("compute", "exposed_communication", "memory", "data", "python", "idle")
    return tuple(
        Breakdown(rank=rank, **{n: float(p.breakdown.get(n, 0.0)) for n in names})
        for rank, p in sorted(kept.items())
    )


def _not_seen(view: JobView) -> list[str]:
    said: list[str] = []
    missing = view.world_size - view.num_ranks
    if missing > 0:
        said.append(
            f"{absent_phrase(view.ranks, view.world_size)} of {view.world_size}: nothing was "
            "collected; whoever they hold or are held by cannot be told"
        )
    if view.seen_R.any() and not view.seen_R.all():
        said.append(
            f"no stacks of {units.rank_phrase(view.ranks_where(~view.seen_R))}: what they do is "
            "compared with nobody"
        )
    if view.source == "none":
        said.append("no profile: run under `eroica run`, or give it traces of all ranks")
    return said


def _warnings(view: JobView) -> list[Warning]:
    return [*(w for p in view.patterns for w in p.warnings), *view.warnings]
