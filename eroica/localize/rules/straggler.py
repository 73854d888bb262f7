"""One or a few ranks hold the others: which, by how much, and with what.

Victims wait, culprits work: the ranks that wait least while the others wait are slow, and what they
do beyond their peers is the cause. Work that only they do (an evaluation, a dump, a save) is told
apart from work that all do and they do slower; sending slowly from work done slowly.
"""

import ast
from dataclasses import dataclass

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
from eroica.localize.rules.phase import (
    LOG_WORDS,
    SAVE_WORDS,
    Spine,
    departure,
    find_spine,
    has_word,
    is_input,
    statement_at,
)
from eroica.localize.rules.view import Bool, Float64, JobView, Row
from eroica.localize.rules.zones import frame_zone
from eroica.localize.source_flow import loops
from eroica.records import Action, Finding, Place

MIN_SHARE = 0.10
MIN_EXCESS = 0.15
MIN_WORK = 0.45
BUSY_THREAD = 0.5
EXCLUSIVE = 0.2
LOWER_RATE = 0.92


@dataclass(frozen=True)
class Group:
    """Rows that are one activity, with what the slow ranks spend on it beyond their peers."""

    mask: Bool
    entry: Place | None
    caller: Place | None
    excess: float
    mine: float
    peers: float

    @property
    def exclusive(self) -> bool:
        return self.peers < EXCLUSIVE * self.mine


def straggler(view: JobView) -> list[Draft]:
    """Return the cause on few ranks, if there is one."""
    if view.num_ranks < 2:
        return []
    spinning = _spinning_thread(view)
    if spinning is not None:
        return [spinning]
    if not view.rows or view.num_ranks < 2:
        return []
    work_R = view.sum(np.ones(len(view.rows), dtype=bool), view.work_FR)
    found = slowest(work_R)
    if found is None or found.share < _needed(view) or found.excess < MIN_EXCESS:
        return []
    if float(work_R[list(found.positions)].min()) < MIN_WORK:
        return []  # whoever holds the others does not itself wait most of the time
    if not _confirmed(view, found):
        return []
    group = _largest_group(view, found)
    if group is None:
        return []
    return [_draft(view, found, group)]


def _needed(view: JobView) -> float:
    """The gain that sampling noise cannot make: three standard errors of a share, 10 % at least."""
    samples = [
        r.samples.num_samples
        for r in (view.evidence.ranks if view.evidence else ())
        if r.samples is not None
    ]
    noise = 3 * np.sqrt(0.25 / max(min(samples), 1)) if samples else 0.0
    return float(max(MIN_SHARE, view.parameters.straggler_share, min(noise, 0.2)))


def _confirmed(view: JobView, found: Slowest) -> bool:
    """Where arrivals are known, the slow ranks must be the last at the collectives that cost."""
    table = arrival_table([p for p in view.patterns if not p.is_sampled])
    if table is None or view.source != "profiler":
        return True
    slow = {view.ranks[p] for p in found.positions}
    if np.isnan(table.late_ns_CR).any():
        return True  # ranks meet in groups: the last of one group may be late for another's sake
    late = late_ranks(table)
    held = sum(r.held_ns for r in late)
    mine = sum(r.held_ns for r in late if r.rank in slow)
    return held <= 0 or mine >= 0.5 * held


def _largest_group(view: JobView, found: Slowest) -> Group | None:
    """Group rows by activity and return the one with the largest excess."""
    spine = find_spine(view)
    slow = np.zeros(view.num_ranks, dtype=bool)
    slow[list(found.positions)] = True
    members: dict[object, list[int]] = {}
    about: dict[object, tuple[Place | None, Place | None]] = {}
    for position, row in enumerate(view.rows):
        key, entry, caller = _activity(row, spine)
        members.setdefault(key, []).append(position)
        if key not in about or (caller is not None and about[key][1] is None):
            about[key] = (entry, caller)
    best: Group | None = None
    for key, positions in members.items():
        mask = np.zeros(len(view.rows), dtype=bool)
        mask[positions] = True
        work_R = view.sum(mask, view.work_FR)
        mine, peers = float(work_R[slow].mean()), float(np.median(work_R[~slow]))
        group = Group(mask, *about[key], mine - peers, mine, peers)
        if best is None or group.excess > best.excess:
            best = group
    if best is None or best.excess < 0.3 * found.excess:
        return _whole(view, slow, found)
    return best


def _whole(view: JobView, slow: Bool, found: Slowest) -> Group | None:
    """No activity stands out: everything is slower there."""
    mask = np.ones(len(view.rows), dtype=bool)
    work_R = view.sum(mask, view.work_FR)
    mine, peers = float(work_R[slow].mean()), float(np.median(work_R[~slow]))
    return Group(mask, None, None, found.excess, mine, peers)


def _activity(row: Row, spine: Spine) -> tuple[object, Place | None, Place | None]:
    """Return what the row is part of: an entry off the spine, else a phase of training."""
    entry, caller = departure(row, spine)
    phase = next(
        (z for f in reversed(row.frames) if (z := frame_zone(f)) in PHASES), None
    )
    if phase is None and row.zone in PHASES:
        phase = row.zone
    if phase is not None:
        outer = _entry_outside_phase(row, spine)
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


def _entry_outside_phase(row: Row, spine: Spine) -> Place | None:
    """A project function off the spine that lies outside the phase: ``evaluate`` > loader."""
    on_spine = set(spine.keys)
    mine = set(row.project)
    outermost: Place | None = None
    for frame in reversed(row.frames):
        if frame_zone(frame) in PHASES:
            return outermost
        if frame in mine and (frame.file, frame.name) not in on_spine and outermost is None:
            outermost = frame
    return None


def _draft(view: JobView, found: Slowest, group: Group) -> Draft:
    slow = tuple(view.ranks[p] for p in found.positions)
    columns = list(found.positions)
    extra_F = view.work_FR[:, columns].mean(axis=1)
    rest = [c for c in range(view.num_ranks) if c not in columns]
    if not group.exclusive:
        extra_F = np.maximum(extra_F - np.median(view.work_FR[:, rest], axis=1), 0.0)
    top = _top_row(view, group, extra_F)
    category, action, confidence = _category(view, group, top, columns)
    entry = group.entry if group.exclusive and category in ENTRY_CATEGORIES else None
    places = hottest(view, group.mask, extra_F, entry=entry) or hottest(
        view, group.mask, extra_F
    )
    if not places and top is not None:
        places = top.frames[:1]
    if category in ENTRY_CATEGORIES and group.caller is not None and len(places) < 2:
        places = (*places, *[p for p in (group.caller,) if p not in places])
    at = where(places[0] if places else None, view)
    who = units.rank_phrase(slow)
    text = f"{who} {_does(category, at, len(slow))} and hold{'s' if len(slow) == 1 else ''} the other {len(rest)}"
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
            f"{who} work{'s' if len(slow) == 1 else ''} {percent(_of(view, columns))} of the time; "
            f"the others wait for {percent(found.excess)} more of it.",
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
ADVICE = {
    "straggler_data_loading": "Make its data as cheap as its peers': cache or preprocess it, "
    "spread the expensive samples over ranks, give the loader workers.",
    "serialized_on_rank0": "Spread the work over ranks, do it less often, or off the training "
    "path, so that nobody waits.",
    "straggler_rank_logging": "Write less and less often, or from a background thread.",
    "straggler_compute": "If its work is the same, look at the host: clocks, other processes, "
    "temperature. If not, balance it.",
    "load_imbalance": "Balance by work, not by number of samples: stride or bucket by length.",
    "straggler_network": "Drain the host, then look at its link, NIC counters and cabling; no "
    "change of code will help.",
    "checkpoint_overhead": "Save less often, or copy to host memory and write in the background.",
    "gc_pause": "Collect at the same step on all ranks, or freeze long-lived objects.",
    "recompilation": "Give that rank the shapes the others have, or mark the dimension dynamic.",
}


def _of(view: JobView, columns: list[int]) -> float:
    return float(view.work_FR[:, columns].sum(axis=0).mean())


def _does(category: str, at: str, count: int) -> str:
    s = "s" if count == 1 else ""
    what = {
        "straggler_data_loading": f"load{s} data slowly",
        "serialized_on_rank0": f"work{s} alone",
        "straggler_rank_logging": f"write{s} logs or metrics",
        "checkpoint_overhead": f"save{s} checkpoints",
        "straggler_network": f"communicate{s} slowly",
        "load_imbalance": f"ha{'s' if count == 1 else 've'} more to compute",
        "gc_pause": f"collect{s} garbage",
        "recompilation": f"recompile{s}",
    }.get(category, f"compute{s} slower")
    return f"{what} at {at}" if at else what


def _top_row(view: JobView, group: Group, extra_F: Float64) -> Row | None:
    weights = np.where(group.mask, extra_F, 0.0)
    return view.rows[int(weights.argmax())] if weights.any() else None


def _category(
    view: JobView, group: Group, top: Row | None, columns: list[int]
) -> tuple[str, Action, float]:
    """Return category, action and confidence for the group's activity."""
    if top is None:
        return "straggler_compute", "investigate", 0.5
    spine = find_spine(view)
    if _is_sending(view, group, top, columns):
        return "straggler_network", "drain", 0.8
    if top.zone in ("gc", "compile"):
        return {"gc": "gc_pause", "compile": "recompilation"}[top.zone], "patch", 0.8
    alone = group.entry is not None and group.exclusive
    if top.zone == "checkpoint" or (alone and has_word(view, top, SAVE_WORDS)):
        return "checkpoint_overhead", "patch", 0.85
    if top.zone in ("loader", "loader_wait", "unpickle") and not alone:
        return "straggler_data_loading", "patch", 0.9
    if top.zone == "logging" or (alone and has_word(view, top, LOG_WORDS)):
        return "straggler_rank_logging", "patch", 0.9
    if alone and is_input(view, top, spine) is not True:
        return "serialized_on_rank0", "patch", 0.85
    if is_input(view, top, spine) is True:
        return "straggler_data_loading", "patch", 0.85
    if top.zone in ("forward", "backward", "ddp", "optimizer", "other"):
        return _compute_kind(view, top, columns)
    if has_word(view, top, LOG_WORDS):
        return "straggler_rank_logging", "patch", 0.75
    return "straggler_compute", "patch", 0.7


def _compute_kind(view: JobView, top: Row, columns: list[int]) -> tuple[str, Action, float]:
    """More work, or the same work done slower: by executions a step and by their rate.

    Kernels that all run at a lower rate on a device are the device's fault; the same on a CPU may
    be the host's. Without either number, work that the user's code does is taken for more work.
    """
    more, rate = _compare_execution(view, columns)
    if more is not None and more > 1.2:
        return "load_imbalance", "patch", 0.8
    if rate is not None and rate < LOWER_RATE:
        if top.kind == "kernel":
            return "gpu_throttled", "drain", 0.8
        return "straggler_compute", "investigate", 0.75
    if view.source == "samples" and top.project:
        return "load_imbalance", "patch", 0.65
    return "straggler_compute", "investigate", 0.7


def _compare_execution(view: JobView, columns: list[int]) -> tuple[float | None, float | None]:
    """Return (executions a step, rate of execution) of the slow ranks over their peers'.

    The rate is nanoseconds per execution of the functions both have, weighted by the peers' time.
    """
    slow = {view.ranks[c] for c in columns}
    counts: dict[bool, list[float]] = {True: [], False: []}
    each: dict[bool, dict[str, list[tuple[float, float]]]] = {True: {}, False: {}}
    for one in view.patterns:
        if one.is_sampled:
            continue
        side = one.rank in slow
        total = 0
        for function, count, spent in zip(
            one.functions, one.count_F, one.total_ns_F, strict=True
        ):
            if function.kind in ("op", "kernel") and count > 0:
                total += int(count)
                pair = (float(spent) / float(count), float(spent))
                each[side].setdefault(function.id, []).append(pair)
        if total:
            counts[side].append(total / (one.num_steps or 1))
    more = None
    if counts[True] and counts[False] and np.median(counts[False]):
        more = float(np.mean(counts[True]) / np.median(counts[False]))
    return more, _rate_of(each[True], each[False])


def _rate_of(
    mine: dict[str, list[tuple[float, float]]], peers: dict[str, list[tuple[float, float]]]
) -> float | None:
    ratios, weights = [], []
    for name in mine.keys() & peers.keys():
        other = float(np.median([p[0] for p in peers[name]]))
        own = float(np.mean([p[0] for p in mine[name]]))
        if own > 0:
            ratios.append(other / own)
            weights.append(float(np.median([p[1] for p in peers[name]])))
    return float(np.average(ratios, weights=weights)) if sum(weights) > 0 else None


def _is_sending(view: JobView, group: Group, top: Row, columns: list[int]) -> bool:
    """The extra time is idle, inside code that issues collectives, while backward or a collective
    is under way: time on the wire rather than work."""
    if not top.project:
        return False
    in_backward = any(frame_zone(f) == "backward" for f in top.frames)
    issues = any(_issues_collective(view, place) for place in top.project[:2])
    if not issues:
        return False
    share = float(view.share_FR[np.ix_(group.mask, columns)].sum(axis=0).mean())
    busy = view.busy_FR[np.ix_(group.mask, columns)]
    idle = np.isnan(busy).all() or float(np.nansum(busy, axis=0).mean()) < 0.5 * share
    return bool(idle) and (in_backward or top.zone in ("user", "collective"))


def _issues_collective(view: JobView, place: Place) -> bool:
    """Whether the function's own body calls torch.distributed, by the module's imports."""
    info = view.project.enclosing(place.file, place.line)
    if info is None or info.is_module:
        return False
    for node in info.own_nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in ("all_reduce", "reduce_scatter_tensor", "all_gather", "broadcast", "reduce",
                        "all_gather_into_tensor", "reduce_scatter", "all_to_all_single",
                        "all_to_all", "isend", "irecv", "send", "recv"):
                return not _trains(info)
    return False


def _trains(info: "object") -> bool:
    return any(
        isinstance(n, ast.Attribute) and n.attr == "backward"
        for n in info.own_nodes  # type: ignore[attr-defined]
    )


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
        details={"times_last": one.times_last, "collectives": one.out_of,
                 "held_ns": one.held_ns, "share": round(one.share, 4),
                 "function": one.function_id},
    )


def _against(view: JobView, found: Slowest, group: Group) -> list[str]:
    said: list[str] = []
    if group.excess < 0.6 * found.excess:
        said.append(f"It explains {percent(group.excess / max(found.excess, 1e-9))} of the excess.")
    if view.source == "profiler":
        steps = [p.num_steps for p in view.patterns if p.num_steps]
        if steps and max(steps) < 3:
            said.append(f"The window holds {max(steps)} step{'s' if max(steps) > 1 else ''} only.")
    return said


def _spinning_thread(view: JobView) -> Draft | None:
    """A thread of the project that never rests takes the interpreter lock from the trainer.

    Whether it runs is not enough: a thread that waits for the lock looks idle to the kernel. So a
    thread counts whose samples stand on the tests of a loop, never in a call that blocks.
    """
    totals: dict[object, Float64] = {}
    spins: dict[object, Float64] = {}
    busy: dict[object, Float64] = {}
    masks: dict[object, Bool] = {}
    for position, row in enumerate(view.others):
        if not row.process.startswith("thread") or not row.project:
            continue
        key = (row.process, row.project[-1].file, row.project[-1].name)
        zeros = np.zeros(view.num_ranks)
        share = view.others_share_FR[position]
        totals[key] = totals.get(key, zeros) + share
        busy[key] = busy.get(key, zeros) + np.nan_to_num(view.others_busy_FR[position])
        if _tests_a_loop(view, row):
            spins[key] = spins.get(key, zeros) + share
            masks.setdefault(key, np.zeros(len(view.others), dtype=bool))[position] = True
    knows = bool(np.isfinite(view.others_busy_FR).any())
    for key in sorted(spins, key=lambda k: -float(spins[k].max())):
        column = int(spins[key].argmax())
        spinning = float(spins[key][column])
        on_cpu = float(busy[key][column])
        if spinning >= BUSY_THREAD * float(totals[key][column]) and spinning >= BUSY_THREAD:
            if not knows or on_cpu >= 0.1:
                return _thread_draft(view, spins[key], masks[key])
    return None


def _tests_a_loop(view: JobView, row: Row) -> bool:
    """The thread stands on a ``while`` or ``if`` test, ``pass`` or ``continue`` in a loop that
    never waits."""
    site = row.project[0]
    if row.frames[0] != site and not _quick(row):
        return False
    info = view.project.enclosing(site.file, site.line)
    if info is None or site.line is None:
        return False
    statement = statement_at(info, site.line)
    if not isinstance(statement, ast.While | ast.If | ast.Pass | ast.Continue):
        return False
    loop = next((b.node for b in loops(info, site.line) if isinstance(b.node, ast.While)), None)
    if loop is None and isinstance(statement, ast.While):
        loop = statement
    return loop is not None and not _waits_first(loop)


def _quick(row: Row) -> bool:
    """Library calls that return at once: ``Queue.empty``, ``Event.is_set`` and the like."""
    return row.frames[0].name.rsplit(".", 1)[-1] in ("empty", "qsize", "is_set", "is_alive", "full",
                                                     "_qsize", "locked", "poll", "done")


def _waits_first(loop: ast.While) -> bool:
    """Whether the idle way through the loop sleeps or blocks: each does, or the branch taken when
    nothing is there does."""
    for statement in loop.body:
        if isinstance(statement, ast.If):
            if any(isinstance(n, ast.Continue) for n in statement.body):
                return any(_blocks(n) for n in statement.body)
            if statement.orelse and any(_blocks(n) for n in statement.orelse):
                return True
            continue
        if _blocks(statement):
            return True
    return False


def _blocks(node: ast.AST) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(
                part.func, "id", "")
            if name in ("sleep", "wait", "get", "acquire", "join", "recv", "select", "result"):
                return True
    return False


def _thread_draft(view: JobView, spins_R: Float64, mask: Bool) -> Draft:
    top = float(spins_R.max())
    guilty = view.ranks_where(spins_R > 0.5 * top)
    everyone = len(guilty) == view.num_ranks
    weights: dict[tuple[Place, ...], float] = {}
    for position in np.flatnonzero(mask):
        chain = view.others[position].project[:2]
        weights[chain] = weights.get(chain, 0.0) + float(view.others_share_FR[position].sum())
    places = max(weights, key=lambda c: weights[c])
    at = where(places[0], view)
    rest = [r for r in view.ranks if r not in guilty]
    who = "a thread of all ranks" if everyone else f"a thread of {units.rank_phrase(guilty)}"
    text = f"{who} runs without rest at {at} and takes the interpreter from the training thread"
    return Draft(
        rule="spinning_thread",
        category="polling_wait" if everyone else "straggler_compute",
        ranks="all" if everyone else guilty,
        places=places,
        share=None,
        rank_share=min(0.9, top),
        confidence=0.9,
        summary=text,
        why=[f"In {percent(top)} of the samples that thread tests its loop and never blocks.",
             "Python runs one thread at a time: the training thread waits for it at every "
             "instruction" + (f", and {units.rank_phrase(rest)} for that rank." if rest else ".")],
        against=["What it costs here was not measured."],
        advice="Block on the queue (get with a time-out) or sleep instead of spinning.",
        findings=[Finding(id="", kind="stack", ranks=guilty, text=text,
                          details={"spinning": {str(r): round(float(b), 3) for r, b in
                                                zip(view.ranks, spins_R, strict=True)}})],
        victims=tuple(rest),
        claims=top,
    )
