"""Causes on the host that all ranks share: collection, saving, metrics, growth, polling, syncs.

What only some ranks do is a straggler's (``straggler.py``): these rules ask that most ranks show
it, except where a rank's own record (saves, pauses) names the ranks.
"""

import ast

import numpy as np

from eroica import units
from eroica.localize.rules.draft import (
    Draft,
    hottest,
    mean_over,
    pattern_finding,
    percent,
    step_text,
    where,
)
from eroica.localize.rules.phase import (
    find_spine,
)
from eroica.localize.rules.view import Bool, JobView
from eroica.localize.source_flow import loops
from eroica.records import Finding, Place, StepTimes

MIN_COLLECTING = 0.02  # of a rank's own time in collection
GUILTY = 0.25  # of the share of the rank that collects most

REGULAR_PAUSES = 5  # long automatic ones; a few come while a job's objects are still new


def garbage_collection(view: JobView) -> list[Draft]:
    """Pauses of the garbage collector. On every rank at its own time they add up, because each
    pause of one rank holds all others."""
    pauses = {
        rank: s.value
        for rank in view.ranks
        for s in view.values("gc.pauses", rank)
        if isinstance(s.value, dict)
    }
    mask = _mask(view, "gc")
    seen_R = view.sum(mask)
    told_R = np.array([_pause_share(view, r, pauses.get(r)) for r in view.ranks])
    share_R = np.maximum(seen_R, told_R)
    mean, total = mean_over(share_R), float(share_R.sum())
    waiting = mean_over(view.sum_seen(np.ones(len(view.rows), bool), view.wait_FR))
    share = min(1.0, max(mean, min(total, mean + waiting)))
    if mean < MIN_COLLECTING or share < view.parameters.common_share:
        return []
    explicit = sum(float(p.get("explicit_count") or 0) for p in pauses.values())
    places = hottest(view, mask, view.share_FR.mean(axis=1)) if mask.any() else ()
    told = next((s.places for s in view.values("gc.pauses") if s.places), ())
    if explicit or not places:
        places = tuple(told[:2]) or places
    places = places or _allocating(view)
    longest = max((float(p.get("max_ns") or 0) for p in pauses.values()), default=0.0)
    at = where(places[0] if places else None, view)
    how = f"called at {at}" if explicit and at else "started by allocations"
    text = f"garbage collection, {how}, stops ranks at different steps"
    guilty = view.ranks_where(share_R > GUILTY * max(float(share_R.max()), 1e-9))
    findings = [
        Finding(
            id="",
            kind="gc_pauses",
            ranks=guilty,
            text=f"pauses: {percent(mean)} of each rank's time, up to {units.duration(longest)}",
            details={"by_rank": {str(r): p for r, p in list(pauses.items())[:16]}},
        )
    ]
    return [
        Draft(
            rule="gc",
            category="gc_pause",
            ranks="all" if len(guilty) == view.num_ranks else guilty,
            places=places,
            share=share,
            confidence=0.9 if explicit else 0.8,
            summary=f"{text}: {percent(share)} of the step",
            why=[
                f"Each rank spends {percent(mean)} of its time collecting garbage"
                + (f", up to {units.duration(longest)} at once." if longest else "."),
                "A pause of one rank holds all others in the next collective, so the pauses of "
                f"{len(guilty)} ranks add up{step_text(view, share)}.",
            ],
            advice="Freeze long-lived objects (gc.freeze) after setup, and collect at the same "
            "step on all ranks or not at all.",
            findings=findings,
            claims=share,
        )
    ]


def _allocating(view: JobView) -> tuple[Place, ...]:
    """Of automatic collections: the line that set when they start, and the busiest of the job's
    own Python, which is what allocates; else the innermost line of the step."""
    calls = [s for s in view.values("gc.call") if s.places and isinstance(s.value, dict)]
    chosen = next((s.places[:1] for s in calls if s.value.get("call") == "set_threshold"), ())
    mask = np.array([r.zone == "user" and bool(r.project) for r in view.rows], dtype=bool)
    busiest = hottest(view, mask, view.work_FR.mean(axis=1)) if mask.any() else ()
    if chosen or busiest:
        return (*chosen, *(p for p in busiest if p not in chosen))
    spine = find_spine(view)
    key, line = spine.innermost, spine.lines.get(spine.innermost) if spine.innermost else None
    return (Place(name=key[1], file=key[0], line=int(line)),) if key and line else ()


def _pause_share(view: JobView, rank: int, value: object) -> float:
    steps = view.steps.get(rank)
    if not isinstance(value, dict) or steps is None:
        return 0.0
    total = run_ns(steps)
    # total_ns also holds what importing and building the model cost, so of the automatic pauses
    # only those since the first step count.
    is_regular = float(value.get("steps_count") or 0) >= REGULAR_PAUSES
    automatic = float(value.get("steps_ns") or 0) if is_regular else 0.0
    paused = max(float(value.get("explicit_ns") or 0), automatic)
    return min(1.0, paused / total) if total else 0.0


def run_ns(steps: StepTimes) -> float:
    """What all steps so far took, at the pace of those the ring still holds.

    The hook counts pauses and saves from the start, the ring forgets.
    """
    kept = max(len(steps.duration_ns), 1)
    return float(sum(steps.duration_ns)) * (steps.first_step + kept) / kept


def checkpoints(view: JobView) -> list[Draft]:
    """Saving that holds the step: by the hook's record of ``torch.save``, or by stacks."""
    told_R = np.zeros(view.num_ranks)
    for column, rank in enumerate(view.ranks):
        for setting in view.values("checkpoint.saves", rank):
            steps, value = view.steps.get(rank), setting.value
            if steps is not None and isinstance(value, dict) and float(value.get("count") or 0) > 1:
                total = run_ns(steps)
                part = float(value.get("total_ns") or 0) / total if total else 0.0
                told_R[column] = min(1.0, part)
    mask = _mask(view, "checkpoint")
    share_R = np.maximum(told_R, view.sum(mask))
    share = float(share_R.max()) if len(share_R) else 0.0
    if share < view.parameters.common_share:
        return []
    guilty_R = share_R > 0.3 * share
    guilty = view.ranks_where(guilty_R)
    weights = view.share_FR[:, guilty_R].mean(axis=1) if len(view.rows) else np.zeros(0)
    places = hottest(view, mask, weights) if mask.any() else ()
    if not places:
        told = [s for r in guilty for s in view.values("checkpoint.saves", r) if s.places]
        places = told[0].places[:2] if told else ()
    everyone = len(guilty) == view.num_ranks
    who = (
        "all ranks save"
        if everyone
        else f"{units.rank_phrase(guilty)} save{'s' * (len(guilty) == 1)}"
    )
    at = where(places[0] if places else None, view)
    text = f"{who} checkpoints{f' at {at}' if at else ''} while training waits"
    return [
        Draft(
            rule="checkpoint",
            category="checkpoint_overhead",
            ranks="all" if everyone else guilty,
            places=places,
            share=share,
            confidence=0.9,
            summary=f"{text}: {percent(share)} of the time",
            why=[f"Saving holds {percent(share)} of the time{step_text(view, share)}."],
            advice="Save less often, or copy to host memory and write in the background.",
            findings=[pattern_finding(view, mask, text=text, ranks=guilty)],
            victims=tuple(r for r in view.ranks if r not in guilty),
            claims=share,
        )
    ]


def polling(view: JobView) -> list[Draft]:
    """Sleeping in a loop until something is there, on the training thread."""
    mask = np.array([_polls(view, row.project, row.frames) for row in view.rows], dtype=bool)
    share_R = view.sum(mask)
    share = float(np.median(share_R)) if len(share_R) else 0.0
    most = float(share_R.max()) if len(share_R) else 0.0
    if most < view.parameters.common_share:
        return []
    everyone = share >= 0.5 * most
    guilty = view.ranks if everyone else view.ranks_where(share_R > 0.5 * most)
    places = hottest(view, mask, view.share_FR.max(axis=1))
    place = where(places[0], view)
    share = share if everyone else most
    text = f"the training thread sleeps and polls at {place}"
    return [
        Draft(
            rule="polling",
            category="polling_wait",
            ranks="all" if everyone else guilty,
            places=places,
            share=share,
            confidence=0.9,
            summary=f"{text}: {percent(share)} of the step",
            why=[
                f"{percent(share)} of the step is spent in a sleep inside a loop at {place}"
                f"{step_text(view, share)}.",
                "Whatever it waits for may be there long before the sleep ends.",
            ],
            advice="Wait on a queue, condition or event instead of sleeping in a loop.",
            findings=[pattern_finding(view, mask, text=text, ranks=guilty)],
            claims=share,
        )
    ]


def _polls(view: JobView, project: tuple[Place, ...], frames: tuple[Place, ...]) -> bool:
    """The innermost frames sleep (or test), called from a ``while`` loop that waits."""
    if not project:
        return False
    inner = frames[0]
    sleeping = "sleep" in inner.name or inner == project[0]
    if not sleeping:
        return False
    site = project[0]
    info = view.project.enclosing(site.file, site.line)
    if info is None or site.line is None:
        return False
    if inner == site and "sleep(" not in view.project.line_text(site.file, site.line):
        return False
    candidates = loops(info, site.line)
    if site.line == info.line:  # a profiler knows the def line only
        candidates = []
        for node in info.own_nodes:
            if isinstance(node, ast.While) and "sleep" in ast.unparse(node):
                return not _trains(node)
        return False
    return any(isinstance(b.node, ast.While) and not _trains(b.node) for b in candidates)


def _trains(loop: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Attribute) and n.attr in ("backward", "step", "zero_grad")
        for n in ast.walk(loop)
    )


def _mask(view: JobView, zone: str) -> Bool:
    return np.array([r.zone == zone for r in view.rows], dtype=bool)
