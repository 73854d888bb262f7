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
    with_setup,
)
from eroica.localize.rules.phase import (
    INPUT_WORDS,
    LOG_WORDS,
    departure,
    find_spine,
    has_word,
    is_input,
)
from eroica.localize.rules.view import Bool, Float64, JobView, warm_up
from eroica.localize.source_flow import loops
from eroica.records import Finding, Place

SYNC_MARKS = (".item()", ".tolist()", ".cpu()", "synchronize(", ".numpy()")
NO_ROWS = np.zeros(0, dtype=bool)


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
    share_R = np.maximum(seen_R if view.source == "samples" else seen_R, told_R)
    mean, total = mean_over(share_R), float(share_R.sum())
    waiting = mean_over(view.sum(np.ones(len(view.rows), bool), view.wait_FR))
    share = min(1.0, max(mean, min(total, mean + waiting)))
    if mean < 0.02 or share < view.parameters.common_share:
        return []
    explicit = sum(float(p.get("explicit_count") or 0) for p in pauses.values())
    places = hottest(view, mask, view.share_FR.mean(axis=1)) if mask.any() else ()
    told = next((s.places for s in view.values("gc.pauses") if s.places), ())
    if explicit or not places:
        places = tuple(told[:2]) or places
    if not places:
        spine = find_spine(view)
        key, line = spine.innermost, spine.lines.get(spine.innermost) if spine.innermost else None
        places = (Place(name=key[1], file=key[0], line=int(line)),) if key and line else ()
    longest = max((float(p.get("max_ns") or 0) for p in pauses.values()), default=0.0)
    at = where(places[0] if places else None, view)
    how = f"called at {at}" if explicit and at else "started by allocations"
    text = f"garbage collection, {how}, stops ranks at different steps"
    guilty = view.ranks_where(share_R > 0.25 * max(float(share_R.max()), 1e-9))
    findings = [
        Finding(id="", kind="gc_pauses", ranks=guilty, text=f"pauses: {percent(mean)} of each "
                f"rank's time, up to {units.duration(longest)}",
                details={"by_rank": {str(r): p for r, p in list(pauses.items())[:16]}})
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
            why=[f"Each rank spends {percent(mean)} of its time collecting garbage"
                 + (f", up to {units.duration(longest)} at once." if longest else "."),
                 "A pause of one rank holds all others in the next collective, so the pauses of "
                 f"{len(guilty)} ranks add up{step_text(view, share)}."],
            advice="Freeze long-lived objects (gc.freeze) after setup, and collect at the same step "
            "on all ranks or not at all.",
            findings=findings,
            claims=share,
        )
    ]


def _pause_share(view: JobView, rank: int, value: object) -> float:
    steps = view.steps.get(rank)
    if not isinstance(value, dict) or steps is None:
        return 0.0
    total = float(sum(steps.duration_ns))
    # total_ns also holds what importing and building the model cost, so of the automatic pauses
    # only those since the first step count.
    paused = max(float(value.get("explicit_ns") or 0), float(value.get("steps_ns") or 0))
    return min(1.0, paused / total) if total else 0.0


def checkpoints(view: JobView) -> list[Draft]:
    """Saving that holds the step: by the hook's record of ``torch.save``, or by stacks."""
    told_R = np.zeros(view.num_ranks)
    for column, rank in enumerate(view.ranks):
        for setting in view.values("checkpoint.saves", rank):
            steps, value = view.steps.get(rank), setting.value
            if steps is not None and isinstance(value, dict) and float(value.get("count") or 0) > 1:
                total = float(sum(steps.duration_ns))
                told_R[column] = min(1.0, float(value.get("total_ns") or 0) / total)
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
    who = "all ranks save" if everyone else f"{units.rank_phrase(guilty)} save{'s' * (len(guilty) == 1)}"
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


def bookkeeping(view: JobView) -> list[Draft]:
    """Metrics, logs and other Python that every rank does in the step besides training."""
    if not view.rows:
        return []
    spine = find_spine(view)
    if not spine.keys:
        return []
    weights_F = np.median(view.work_FR, axis=1)
    groups: dict[object, list[int]] = {}
    for position, row in enumerate(view.rows):
        if weights_F[position] <= 0 or not row.project:
            continue
        if row.zone not in ("user", "logging", "other", "forward"):
            continue
        entry, caller = departure(row, spine)
        if row.zone == "forward" and (entry is None or is_input(view, row, spine) is not False):
            continue  # the model's own forward, or input made by modules
        if row.zone != "logging" and is_input(view, row, spine) is not False:
            continue
        if entry is None:
            key: object = ("line", caller)
        else:
            key = (entry.file, entry.name)
        groups.setdefault(key, []).append(position)
    drafts = []
    for positions in groups.values():
        mask = np.zeros(len(view.rows), dtype=bool)
        mask[positions] = True
        share = float(np.median(view.sum(mask, view.work_FR)))
        if share >= max(0.12, view.parameters.common_share) and _model_forward(view, mask) < 0.5:
            drafts.append(_bookkeeping(view, mask, share, weights_F))
    return drafts


def _model_forward(view: JobView, mask: Bool) -> float:
    """Share of the group inside nn.Module calls: a loss or a second model is the job's work."""
    inside = mask & np.array([r.zone == "forward" for r in view.rows], dtype=bool)
    total = float(view.sum(mask).sum())
    return float(view.sum(inside).sum()) / total if total else 0.0


def _bookkeeping(view: JobView, mask: Bool, share: float, weights_F: Float64) -> Draft:
    places = hottest(view, mask, weights_F)
    rows = [view.rows[i] for i in np.flatnonzero(mask)]
    top = max(rows, key=lambda r: weights_F[[i for i in np.flatnonzero(mask)
                                             if view.rows[i] is r][0]])
    lines = " ".join(view.project.line_text(p.file, p.line) for p in places)
    is_log = has_word(view, top, LOG_WORDS) or any(r.zone == "logging" for r in rows)
    on_device = view.device.startswith("cuda")
    category = "logging_overhead" if is_log else "python_overhead"
    if on_device and any(mark in lines for mark in SYNC_MARKS):
        category = "host_sync"
    place = where(places[0] if places else None, view)
    text = f"all ranks spend {percent(share)} of the step in {place}, outside training"
    return Draft(
        rule="bookkeeping",
        category=category,
        ranks="all",
        places=places,
        share=share,
        confidence=0.85 if is_log else 0.65,
        summary=text,
        why=[f"{place} is called after the backward pass in every step and holds "
             f"{percent(share)} of it{step_text(view, share)}.",
             "It is neither the model, the optimizer nor the loader."],
        against=[] if is_log else ["The step may need this work; its name does not say."],
        advice="Do it every N steps, or hand it to a background thread.",
        findings=[pattern_finding(view, mask, text=text)],
        claims=share,
    )


def python_in_step(view: JobView) -> list[Draft]:
    """Plain Python in the spine's own body, where no call is to blame."""
    spine = find_spine(view)
    if not view.rows or not spine.keys:
        return []
    weights_F = np.median(view.work_FR, axis=1)
    mask = np.array(
        [
            r.zone == "user"
            and bool(r.project)
            and r.project[0] == r.frames[0]
            and departure(r, spine)[0] is None
            for r in view.rows
        ],
        dtype=bool,
    )
    share = float(np.median(view.sum(mask, view.work_FR)))
    if share < 0.3:
        return []
    places = hottest(view, mask, weights_F)
    text = f"{percent(share)} of the step is plain Python at {where(places[0], view)}"
    return [
        Draft(
            rule="python_in_step",
            category="python_overhead",
            ranks="all",
            places=places,
            share=share,
            confidence=0.55,
            summary=text,
            why=[text + "."],
            advice="Move it out of the loop or into tensor operations.",
            findings=[pattern_finding(view, mask, text=text)],
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
            why=[f"{percent(share)} of the step is spent in a sleep inside a loop at {place}"
                 f"{step_text(view, share)}.",
                 "Whatever it waits for may be there long before the sleep ends."],
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


def growth(view: JobView) -> list[Draft]:
    """Steps that take longer the more of them there were, steadily, on all ranks."""
    trend = step_trend(view)
    if trend is None:
        return []
    first, last, steadiness = trend
    spine = find_spine(view)
    mask, grows = _growing_rows(view)
    share = max(0.0, 1.0 - first / last)
    places = hottest(view, mask, view.share_FR.mean(axis=1)) if mask.any() else ()
    if not places and last < 1.6 * first:
        return []
    held = mean_over(view.sum(mask))
    if mask.any() and held < view.parameters.common_share:
        return []
    del spine
    at = where(places[0] if places else None, view)
    text = (
        f"a step took {units.duration(first)} at first and takes {units.duration(last)} now"
        f"{f', with {at} holding {percent(held)} of it' if at else ''}"
    )
    return [
        Draft(
            rule="growth",
            category="growing_state",
            ranks="all",
            places=places,
            share=share,
            confidence=0.9 if grows else 0.7,
            summary=text,
            why=[text + ".", f"The growth is steady (rank correlation {steadiness:.2f})."]
            + (["The project appends to what this place works over."] if grows else []),
            against=[] if grows else ["What grows was not seen in the source."],
            advice="Keep a bounded window or a running summary instead of everything so far.",
            findings=[Finding(id="", kind="step_trend", text=text, details={
                "first_ms": first / 1e6, "last_ms": last / 1e6, "rank_correlation": steadiness})],
            action="patch" if places else "investigate",
            claims=max(share, held),
        )
    ]


def step_trend(view: JobView) -> tuple[float, float, float] | None:
    """Return (first, last, rank correlation) of step time where it rises steadily, else None.

    Over tenths of the run after warm-up, median of each, median over ranks.
    """
    blocks: list[Float64] = []
    for steps in view.steps.values():
        durations = np.asarray(steps.duration_ns, dtype=np.float64)
        durations = durations[warm_up(durations) :]
        if len(durations) < 40:
            return None
        blocks.append(np.array([np.median(part) for part in np.array_split(durations, 10)]))
    if not blocks:
        return None
    level = np.median(np.array(blocks), axis=0)
    order = np.argsort(np.argsort(level)).astype(np.float64)
    correlation = float(np.corrcoef(order, np.arange(len(order)))[0, 1])
    first, last = float(level[:2].mean()), float(level[-2:].mean())
    middle = float(level[4:6].mean())
    rises = last >= 1.35 * first and first * 1.05 < middle < last * 0.98
    return (first, last, correlation) if rises and correlation >= 0.85 else None


def _growing_rows(view: JobView) -> tuple[Bool, bool]:
    """Rows of the function whose work may grow: most time outside training, best where the source
    shows that it, or its class, appends to something kept."""
    spine = find_spine(view)
    totals: dict[tuple[str | None, str], float] = {}
    members: dict[tuple[str | None, str], list[int]] = {}
    for position, row in enumerate(view.rows):
        trains = row.zone in ("backward", "optimizer", "forward", "ddp", "loader", "import")
        if trains or not row.project:
            continue
        entry, caller = departure(row, spine)
        site = entry or caller
        if site is None:
            continue
        key = (site.file, site.name)
        totals[key] = totals.get(key, 0.0) + float(view.share_FR[position].mean())
        members.setdefault(key, []).append(position)
    mask = np.zeros(len(view.rows), dtype=bool)
    if not totals:
        return mask, False
    growing = {k: v for k, v in totals.items() if v > 0.03 and _accumulates(view, k)}
    chosen = growing or totals
    best = max(chosen, key=lambda k: chosen[k])
    mask[members[best]] = True
    return mask, best in growing


def _accumulates(view: JobView, key: tuple[str | None, str]) -> bool:
    """Whether the function's class, or its module, appends to an attribute or global it keeps."""
    module = view.project.module(key[0])
    if module is None:
        return False
    name = key[1].split(".")[0]
    tree: ast.AST = module.classes.get(name, module.tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("append", "extend", "add", "update", "insert", "appendleft"):
                return True
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            if isinstance(node.value, ast.List | ast.ListComp | ast.JoinedStr):
                return True
    return False


def _mask(view: JobView, zone: str) -> Bool:
    return np.array([r.zone == zone for r in view.rows], dtype=bool)


__all__ = [
    "INPUT_WORDS",
    "bookkeeping",
    "checkpoints",
    "garbage_collection",
    "growth",
    "polling",
    "python_in_step",
    "step_trend",
    "with_setup",
]
