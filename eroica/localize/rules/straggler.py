"""One or a few ranks hold the others: which, by how much, and with what.

Victims wait, culprits work: the ranks that wait least while the others wait are slow, and what they
do beyond their peers is the cause. Work that only they do (an evaluation, a dump, a save) is told
apart from work that all do and they do slower; sending slowly from work done slowly. Over 300
lines: finding the ranks and saying what they do share the view's tables.
"""

import ast

import numpy as np

from eroica import units
from eroica.localize.arrival import LateRank, arrival_table, late_ranks
from eroica.localize.counterfactual import Slowest, slowest
from eroica.localize.rules.draft import (
    Draft,
    hottest,
    pattern_finding,
    percent,
    step_text,
    where,
)
from eroica.localize.rules.flights import held_by_rank
from eroica.localize.rules.kinds import Group, category_of
from eroica.localize.rules.phase import (
    Spine,
    departure,
    find_spine,
)
from eroica.localize.rules.straggler_words import ADVICE, does
from eroica.localize.rules.threads import spinning_thread
from eroica.localize.rules.view import Bool, Float64, JobView, Row
from eroica.localize.rules.zones import frame_zone
from eroica.records import Finding, Place

MIN_SHARE = 0.10  # of the step, won by making the rank like its peers

MIN_EXCESS = 0.15  # of the step beyond the peers' median, before a rank is slow

MIN_WORK = 0.45  # of its own time: who waits more than it works holds nobody

SOME_WORK = 0.30  # where the Flight Recorders say that it comes last: collectives cost all a lot

MORE_THAN_FAIR = 1.3  # times what ranks would hold that are late in turn
CONTRADICTION = 0.10  # of a window: less is jitter beside what the samples of many steps say
AGREES = 0.6  # of all that is held by late ranks, by the slow ones
MAIN_PART = 0.3  # of the excess, in the activity that is named


def straggler(view: JobView) -> list[Draft]:
    """Return the cause on few ranks, if there is one."""
    if view.num_ranks < 2:
        return []
    spinning = spinning_thread(view)
    if spinning is not None:
        return [spinning]
    if not view.rows:
        return []
    work_R = view.sum(np.ones(len(view.rows), dtype=bool), view.work_FR)
    found = slowest(work_R, view.seen_R)
    if found is None or found.excess < MIN_EXCESS:
        return []
    is_last = _issues_last(view, found)
    if found.share < (MIN_SHARE if is_last else _needed(view)):
        return []
    least = float(work_R[list(found.positions)].min())
    if least < SOME_WORK or (least < MIN_WORK and not is_last):
        return []  # whoever holds the others does not itself wait most of the time
    if not _confirmed(view, found) or _is_starved(view, work_R, found):
        return []
    group = _largest_group(view, found)
    if group is None or (least < MIN_WORK and not group.exclusive):
        return []  # little work is enough only if nobody else does it
    return [_draft(view, found, group)]


def _needed(view: JobView) -> float:
    """The gain that sampling noise cannot make: three standard errors of a share, 10 % at least."""
    samples = [
        r.samples.num_samples
        for r in (view.evidence.ranks if view.evidence else ())
        if r.samples is not None
    ]
    noise = 3 * np.sqrt(0.25 / max(min(samples), 1)) if samples else 0.0
    return float(max(MIN_SHARE, view.parameters.straggler_share, min(noise, 0.5)))


def _issues_last(view: JobView, found: Slowest) -> bool:
    """Whether the Flight Recorders say the same: these ranks issue collectives last, and most."""
    held = held_by_rank(view)
    mine = sum(held.get(view.ranks[p], 0.0) for p in found.positions)
    return mine >= MIN_SHARE and mine >= AGREES * sum(held.values())


def _confirmed(view: JobView, found: Slowest) -> bool:
    """Where arrivals are known, the slow ranks must be the last at the collectives that cost.

    Samples cover more steps than a window does: against them arrivals count only where somebody
    else clearly holds the others.
    """
    profiled = [p for p in view.patterns if not p.is_sampled]
    table = arrival_table(profiled)
    if table is None:
        return True
    slow = {view.ranks[p] for p in found.positions}
    if view.source != "profiler":
        window_ns = max(p.window_ns for p in profiled)
        held_by_others = sum(r.held_ns for r in late_ranks(table) if r.rank not in slow)
        if held_by_others < CONTRADICTION * window_ns:
            return True
    if np.isnan(table.late_ns_CR).any():
        return True  # ranks meet in groups: the last of one group may be late for another's sake
    late = late_ranks(table)
    held = sum(r.held_ns for r in late)
    mine = sum(r.held_ns for r in late if r.rank in slow)
    # Of two ranks that take turns either holds the other half of the time.
    needed = max(0.5, MORE_THAN_FAIR * len(slow) / len(table.ranks))
    return held <= 0 or mine >= min(needed, 1.0) * held


def _is_starved(view: JobView, work_R: Float64, found: Slowest) -> bool:
    """Whether these ranks only look busy because they wait for a core that others hold.

    What a rank does is worth its time on a CPU; what it waits for one is the host's doing.
    """
    on_cpu_R = np.ones(view.num_ranks)
    for position, rank in enumerate(view.ranks):
        for setting in view.values("cpu.schedule", rank):
            cpu, waiting = setting.value["on_cpu_ns"], setting.value["waiting_ns"]
            on_cpu_R[position] = cpu / max(cpu + waiting, 1)
    if (on_cpu_R == 1).all():
        return False
    fair = slowest(work_R * on_cpu_R, view.seen_R)
    return fair is None or fair.positions != found.positions or fair.excess < MIN_EXCESS


def _largest_group(view: JobView, found: Slowest) -> Group | None:
    """Group rows by activity and return the one with the largest excess."""
    spine = find_spine(view)
    slow = np.zeros(view.num_ranks, dtype=bool)
    slow[list(found.positions)] = True
    rest = view.seen_R & ~slow
    members: dict[object, list[int]] = {}
    about: dict[object, tuple[Place | None, Place | None]] = {}
    for position, row in enumerate(view.rows):
        key, entry, caller = _activity(view, row, spine)
        members.setdefault(key, []).append(position)
        if key not in about or (caller is not None and about[key][1] is None):
            about[key] = (entry, caller)
    best: Group | None = None
    for key, positions in members.items():
        mask = np.zeros(len(view.rows), dtype=bool)
        mask[positions] = True
        work_R = view.sum(mask, view.work_FR)
        mine, peers = float(work_R[slow].mean()), float(np.median(work_R[rest]))
        group = Group(mask, *about[key], mine - peers, mine, peers)
        if best is None or group.excess > best.excess:
            best = group
    if best is None or best.excess < MAIN_PART * found.excess:
        return _whole(view, slow, rest, found)
    return best


def _whole(view: JobView, slow: Bool, rest: Bool, found: Slowest) -> Group:
    """No activity stands out: everything is slower there."""
    mask = np.ones(len(view.rows), dtype=bool)
    work_R = view.sum(mask, view.work_FR)
    mine, peers = float(work_R[slow].mean()), float(np.median(work_R[rest]))
    return Group(mask, None, None, found.excess, mine, peers)


def _activity(view: JobView, row: Row, spine: Spine) -> tuple[object, Place | None, Place | None]:
    """Return what the row is part of: an entry off the spine, else a phase of training."""
    entry, caller = departure(row, spine)
    phase = next((z for f in reversed(row.frames) if (z := frame_zone(f)) in PHASES), None)
    if phase is None and row.zone in PHASES:
        phase = row.zone
    if phase is not None:
        outer = _entry_outside_phase(view, row, spine)
        if outer is not None:
            return (outer.file, outer.name), outer, caller
        hooked = phase == "backward" and entry is not None
        name = (entry.file, entry.name) if hooked and entry else None
        return (phase, name), entry if hooked else None, caller
    if entry is not None:
        return (entry.file, entry.name), entry, caller
    if caller is not None:
        return ("line", caller.file, caller.name, row.zone == "user"), None, caller
    return row.zone, None, None


PHASES = ("forward", "backward", "optimizer", "loader", "loader_wait", "ddp")


def _entry_outside_phase(view: JobView, row: Row, spine: Spine) -> Place | None:
    """A project function off the spine that lies outside the phase: ``evaluate`` > loader.

    A generator that hands the loader's batches on is a part of loading.
    """
    on_spine = set(spine.keys)
    mine = set(row.project)
    outermost: Place | None = None
    for frame in reversed(row.frames):
        if frame_zone(frame) in PHASES:
            return outermost
        is_off = frame in mine and (frame.file, frame.name) not in on_spine
        if is_off and outermost is None and not _is_generator(view, frame):
            outermost = frame
    return None


def _is_generator(view: JobView, place: Place) -> bool:
    info = view.project.enclosing(place.file, place.line)
    nodes = info.own_nodes if info is not None else ()
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes)


def _draft(view: JobView, found: Slowest, group: Group) -> Draft:
    slow = tuple(view.ranks[p] for p in found.positions)
    columns = list(found.positions)
    extra_F = view.work_FR[:, columns].mean(axis=1)
    rest = [c for c in range(view.num_ranks) if c not in columns]
    if not group.exclusive:
        peers = [c for c in rest if view.seen_R[c]]
        extra_F = np.maximum(extra_F - np.median(view.work_FR[:, peers], axis=1), 0.0)
    top = _top_row(view, group, extra_F)
    category, action, confidence = category_of(view, group, top, columns)
    entry = group.entry if group.exclusive and category in ENTRY_CATEGORIES else None
    places = hottest(view, group.mask, extra_F, entry=entry) or hottest(view, group.mask, extra_F)
    if not places and top is not None:
        places = top.frames[:1]
    if category in ENTRY_CATEGORIES and group.caller is not None and len(places) < 2:
        places = (*places, *[p for p in (group.caller,) if p not in places])
    at = where(places[0] if places else None, view)
    who = units.rank_phrase(slow)
    s = "s" if len(slow) == 1 else ""
    text = f"{who} {does(category, at, len(slow))} and hold{s} the other {len(rest)}"
    finding = pattern_finding(view, group.mask, text=text, ranks=slow)
    arrival = _arrival_findings(view, slow)
    victims = tuple(r for r in view.ranks if r not in slow)
    return Draft(
        rule="straggler",
        category=category,
        ranks=slow,
        places=places,
        share=found.share,
        confidence=confidence,
        summary=f"{text}: {percent(found.share)} of the step",
        action=action,
        why=[
            f"{who} {'is' if len(slow) == 1 else 'are'} busy {percent(_of(view, columns))} of the "
            f"time; the others wait {percent(found.excess)} of the time more than "
            f"{'it does' if len(slow) == 1 else 'they do'}.",
            f"{at or 'Its work'} takes {percent(group.mine)} there and {percent(group.peers)} on "
            f"the peers{step_text(view, found.share)}.",
            *[f.text for f in arrival[:1]],
        ],
        against=_against(view, found, group),
        advice=ADVICE.get(category, "Make the work equal over ranks, or look at the host."),
        findings=[finding, *arrival],
        victims=victims,
        hosts=tuple(dict.fromkeys(h for r in slow if (h := view.hosts.get(r)))),
        claims=found.excess,
    )


ENTRY_CATEGORIES = ("serialized_on_rank0", "checkpoint_overhead", "straggler_rank_logging")


def _of(view: JobView, columns: list[int]) -> float:
    return float(view.work_FR[:, columns].sum(axis=0).mean())


def _top_row(view: JobView, group: Group, extra_F: Float64) -> Row | None:
    weights = np.where(group.mask, extra_F, 0.0)
    return view.rows[int(weights.argmax())] if weights.any() else None


def _arrival_findings(view: JobView, slow: tuple[int, ...]) -> list[Finding]:
    table = arrival_table([p for p in view.patterns if not p.is_sampled])
    if table is None:
        return []
    return [arrival_finding(one) for one in late_ranks(table) if one.rank in slow]


def arrival_finding(one: LateRank) -> Finding:
    """Return the finding that a rank comes last, in numbers."""
    return Finding(
        id="",
        kind="collective_arrival",
        rank=one.rank,
        ranks=(one.rank,),
        text=f"rank {one.rank} arrives last in {one.times_last} of {one.out_of} collectives "
        f"and holds the others for {units.duration(one.held_ns)}",
        details={
            "times_last": one.times_last,
            "collectives": one.out_of,
            "held_ns": one.held_ns,
            "share": round(one.share, 4),
            "function": one.function_id,
        },
    )


def _against(view: JobView, found: Slowest, group: Group) -> list[str]:
    said: list[str] = []
    if group.excess < AGREES * found.excess:
        said.append(f"It explains {percent(group.excess / max(found.excess, 1e-9))} of the excess.")
    if view.source == "profiler":
        steps = [p.num_steps for p in view.patterns if p.num_steps]
        if steps and max(steps) < 3:
            said.append(f"The window holds {max(steps)} step{'s' if max(steps) > 1 else ''} only.")
    return said
