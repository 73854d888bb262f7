"""Collectives that cost more than they need: many small ones, objects, barriers.

Evidence is the Flight Recorder's count by call site where there is one, else the time seen in
stacks and the loop around the call in the source. Counter-evidence: a straggler, because then the
time in a collective is waiting, which would be spent in the next one.
"""

import itertools

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
from eroica.localize.rules.flights import Site, merged_sites
from eroica.localize.rules.phase import find_spine, key_of
from eroica.localize.rules.view import COLLECTIVE_ZONES, Bool, JobView, Row
from eroica.localize.rules.zones import short
from eroica.localize.source_calls import POINT_TO_POINT
from eroica.localize.source_flow import loops
from eroica.records import Finding, Place

SMALL_BYTES = 262_144  # below, latency is most of a collective's cost
MANY_PER_STEP = 6.0  # fewer small ones are what a step needs: loss, norm, a flag or two
OFTEN_PER_STEP = 0.2  # objects exchanged every fifth step and more
EVERY_STEP = 0.9  # barriers a step: a ring seldom begins and ends at a step's border


def communication(view: JobView) -> list[Draft]:
    """Return the causes in how ranks talk. Sites inside libraries (DDP's buckets, FSDP) are not
    the user's calls and count only for the number of exchanges a step."""
    drafts: list[Draft] = []
    sites = merged_sites(view)
    seen: set[tuple[str | None, str]] = set()
    for site, ranks in sites:
        if not site.chain or site.via_framework or _is_all_messages(site):
            continue
        draft = _of_site(view, site, ranks)
        if draft is not None:
            drafts.append(draft)
            seen.add(key_of(site.chain[0]))
    drafts += _of_stacks(view, seen)
    return drafts


def _stack_share(view: JobView, site: Site) -> float | None:
    """Share of time that stacks show in this site's collectives; None where stacks lack."""
    if not view.rows or not site.chain:
        return None
    key = key_of(site.chain[0])
    mask = np.array(
        [
            row.zone in COLLECTIVE_ZONES and row.site is not None and _same(key_of(row.site), key)
            for row in view.rows
        ],
        dtype=bool,
    )
    return mean_over(view.sum_seen(mask))


def _same(one: tuple[str | None, str], other: tuple[str | None, str]) -> bool:
    """Flight Recorder names functions without their class."""
    return one[0] == other[0] and one[1].rsplit(".", 1)[-1] == other[1].rsplit(".", 1)[-1]


def _of_site(view: JobView, site: Site, ranks: tuple[int, ...]) -> Draft | None:
    stacks = _stack_share(view, site)
    share = max(stacks, 0.0) if stacks is not None else site.share
    if site.zone == "object_collective":
        if site.per_step >= OFTEN_PER_STEP and share >= view.parameters.common_share:
            return _objects(view, site, share)
    elif site.zone == "barrier":
        if site.per_step >= EVERY_STEP and share >= view.parameters.common_share:
            return _barriers(view, site, share)
    elif site.zone == "collective" and site.median_bytes <= SMALL_BYTES:
        gain = share * (1 - 1 / max(site.per_step, 1.0))
        if site.per_step >= MANY_PER_STEP and gain >= view.parameters.common_share:
            return _small(view, site, gain)
    return None


def rate_finding(site: Site, text: str) -> Finding:
    return Finding(
        id="",
        kind="collective_rate",
        text=text,
        details={
            "per_step": round(site.per_step, 2),
            "median_bytes": site.median_bytes,
            "ops": sorted(site.ops),
            "share": round(site.share, 4),
        },
    )


def _small(view: JobView, site: Site, gain: float) -> Draft:
    place = where(site.chain[0], view)
    rate = f"{site.per_step:.0f} collectives a step of {units.size(site.median_bytes)} each"
    return Draft(
        rule="small_collectives",
        category="excessive_small_collectives",
        ranks="all",
        places=site.chain[:2],
        share=gain,
        confidence=0.9,
        summary=f"{rate} at {place} cost {percent(gain)} of the step",
        why=[
            f"The Flight Recorder counts {rate} from {place}.",
            f"Their latency adds up to {percent(gain)} of the step; one collective would carry "
            f"the same bytes{step_text(view, gain)}.",
        ],
        advice="Put the values into one tensor and reduce it once a step, or once every N steps.",
        findings=[rate_finding(site, f"{rate}, from {place}")],
        claims=gain,
    )


def _objects(view: JobView, site: Site, share: float) -> Draft:
    place = where(site.chain[0], view)
    return Draft(
        rule="object_collectives",
        category="excessive_object_collectives",
        ranks="all",
        places=site.chain[:2],
        share=share,
        confidence=0.9,
        summary=f"Python objects exchanged in the step at {place} cost {percent(share)} of it",
        why=[
            f"Object collectives are issued from {place} {site.per_step:.1f} times a step.",
            f"They hold {percent(share)} of the step{step_text(view, share)}.",
        ],
        advice="Exchange tensors, or gather objects once an epoch and only what is read.",
        findings=[rate_finding(site, f"object collectives at {place}, {site.per_step:.1f} a step")],
        claims=share,
    )


def _barriers(view: JobView, site: Site, share: float) -> Draft:
    place = where(site.chain[0], view)
    return Draft(
        rule="barriers",
        category="excessive_barriers",
        ranks="all",
        places=site.chain[:2],
        share=share,
        confidence=0.75,
        summary=f"{site.per_step:.1f} barriers a step at {place} cost {percent(share)} of it",
        why=[
            f"The Flight Recorder counts {site.per_step:.1f} barriers a step from {place}.",
            f"Ranks spend {percent(share)} of the step in them; collectives order ranks already.",
        ],
        against=["Part of the time in a barrier is waiting that the next collective would show."],
        advice="Take the barrier out of the step.",
        findings=[rate_finding(site, f"{site.per_step:.1f} barriers a step at {place}")],
        claims=share,
    )


def _of_stacks(view: JobView, seen: set[tuple[str | None, str]]) -> list[Draft]:
    """Without a Flight Recorder: time in the user's collective calls, and the loop around them."""
    if view.flights or not view.rows:
        return []
    drafts: list[Draft] = []
    spine = find_spine(view)
    keys = {key_of(r.project[0]) for r in view.rows if r.project and r.zone in COLLECTIVE_ZONES}
    for key in keys - seen:
        for zone in COLLECTIVE_ZONES:
            mask = np.array(
                [
                    r.zone == zone
                    and bool(r.project)
                    and key_of(r.project[0]) == key
                    and not _is_point_to_point(r)
                    for r in view.rows
                ],
                dtype=bool,
            )
            share = mean_over(view.sum_seen(mask))
            if share < view.parameters.common_share:
                continue
            places = hottest(view, mask, view.share_FR.mean(axis=1))
            draft = _from_stack(view, zone, places, share, mask, key in spine.keys)
            if draft is not None:
                drafts.append(draft)
    return drafts


def _is_all_messages(site: Site) -> bool:
    """The recorder names them ``send`` or, of NCCL, ``send 0->1``."""
    return bool(site.ops) and all(op.split(" ")[0] in POINT_TO_POINT for op in site.ops)


def _is_point_to_point(row: Row) -> bool:
    """A message from stage to stage has to be sent, and a pipeline waits for it by its nature."""
    own = itertools.takewhile(lambda frame: frame != row.site, row.frames)
    return any(short(frame.name) in POINT_TO_POINT for frame in own)


def _from_stack(
    view: JobView, zone: str, places: tuple[Place, ...], share: float, mask: Bool, in_spine: bool
) -> Draft | None:
    place = where(places[0], view)
    categories = {
        "object_collective": ("excessive_object_collectives", 0.75),
        "barrier": ("excessive_barriers", 0.6),
        "collective": ("excessive_small_collectives", 0.65),
    }
    category, confidence = categories[zone]
    if zone == "collective" and (in_spine or not _in_loop(view, places[0])):
        return None
    text = f"{percent(share)} of the step is spent in collectives called at {place}"
    return Draft(
        rule=f"stack_{zone}",
        category=category,
        ranks="all",
        places=places,
        share=share,
        confidence=confidence,
        summary=text,
        why=[f"Stacks of all ranks show {percent(share)} of the time at {place}."],
        against=["Not counted: there is no Flight Recorder history."],
        advice="Exchange once what is exchanged piece by piece, and not in every step.",
        findings=[pattern_finding(view, mask, text=text)],
        claims=share,
    )


def _in_loop(view: JobView, place: Place) -> bool:
    info = view.project.enclosing(place.file, place.line)
    return bool(info and place.line and loops(info, place.line))
