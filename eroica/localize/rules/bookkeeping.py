"""Metrics, logs and other plain Python that all ranks do in the step besides training."""

import ast
from collections.abc import Sequence

import numpy as np

from eroica.localize.rules.draft import (
    Draft,
    hottest,
    pattern_finding,
    percent,
    step_text,
    where,
)
from eroica.localize.rules.hooked import hook_names, hooked_frame
from eroica.localize.rules.phase import (
    LOG_WORDS,
    departure,
    find_spine,
    has_word,
    is_input,
)
from eroica.localize.rules.view import Bool, Float64, JobView
from eroica.localize.source_flow import loops
from eroica.records import Place

BETWEEN_EPOCHS = 0.4  # of the time: preparing an epoch is work, until it takes this much

SYNC_MARKS = (".item()", ".tolist()", ".cpu()", "synchronize(", ".numpy()")
MIN_SHARE = 0.12  # of the step, outside training: below, a step needs some Python of its own
PLAIN_SHARE = 0.3  # of the step, in the loop's own body where no call is to blame


def bookkeeping(view: JobView) -> list[Draft]:
    """Metrics, logs and other Python that every rank does in the step besides training."""
    if not view.rows:
        return []
    spine = find_spine(view)
    if not spine.keys:
        return []
    weights_F = view.work_FR.mean(axis=1)
    groups: dict[object, list[int]] = {}
    names = hook_names(view)
    for position, row in enumerate(view.rows):
        if weights_F[position] <= 0 or not row.project:
            continue
        if (hook := hooked_frame(view, row, names)) is not None:
            groups.setdefault(("hook", hook.file, hook.name), []).append(position)
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
    for key, positions in groups.items():
        is_hook = isinstance(key, tuple) and key[0] == "hook"
        mask = np.zeros(len(view.rows), dtype=bool)
        mask[positions] = True
        share = float(np.median(view.sum_seen(mask, view.work_FR)))
        if share >= max(MIN_SHARE, view.parameters.common_share) and (
            is_hook or _model_forward(view, mask) < 0.5
        ):
            draft = _bookkeeping(view, mask, share, weights_F, is_hook=is_hook)
            if share >= BETWEEN_EPOCHS or not is_between_epochs(view, draft.places):
                drafts.append(draft)
    return drafts


def is_between_epochs(view: JobView, places: Sequence[Place]) -> bool:
    """Whether a line stands in a loop around the loop that trains: once an epoch, not a step."""
    for place in places:
        info = view.project.enclosing(place.file, place.line)
        around = loops(info, place.line) if info is not None and place.line else []
        if around and _holds_training_loop(around[0].node):
            return True
    return False


def _holds_training_loop(loop: ast.AST) -> bool:
    inner = [n for n in ast.walk(loop) if isinstance(n, ast.For | ast.While) and n is not loop]
    calls = [n for one in inner for n in ast.walk(one) if isinstance(n, ast.Call)]
    return any(isinstance(n.func, ast.Attribute) and n.func.attr == "backward" for n in calls)


def _model_forward(view: JobView, mask: Bool) -> float:
    """Share of the group inside nn.Module calls: a loss or a second model is the job's work."""
    inside = mask & np.array([r.zone == "forward" for r in view.rows], dtype=bool)
    total = float(view.sum(mask).sum())
    return float(view.sum(inside).sum()) / total if total else 0.0


def _bookkeeping(
    view: JobView, mask: Bool, share: float, weights_F: Float64, *, is_hook: bool = False
) -> Draft:
    places = hottest(view, mask, weights_F)
    rows = [view.rows[i] for i in np.flatnonzero(mask)]
    numbers = np.flatnonzero(mask)
    top = view.rows[int(numbers[weights_F[numbers].argmax()])]
    lines = " ".join(view.project.line_text(p.file, p.line) for p in places)
    is_log = has_word(view, top, LOG_WORDS) or any(r.zone == "logging" for r in rows)
    on_device = view.device.startswith("cuda")
    category = "logging_overhead" if is_log else "python_overhead"
    if on_device and any(mark in lines for mark in SYNC_MARKS):
        category = "host_sync"
    place = where(places[0] if places else None, view)
    text = f"all ranks spend {percent(share)} of the step in {place}, outside training"
    when = "as a hook, by torch," if is_hook else "after the backward pass"
    return Draft(
        rule="bookkeeping",
        category=category,
        ranks="all",
        places=places,
        share=share,
        confidence=0.85 if is_log else 0.65,
        summary=text,
        why=[
            f"{place} is called {when} in every step and holds "
            f"{percent(share)} of it{step_text(view, share)}.",
            "It is neither the model, the optimizer nor the loader.",
        ],
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
    weights_F = view.work_FR.mean(axis=1)
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
    share = float(np.median(view.sum_seen(mask, view.work_FR)))
    if share < PLAIN_SHARE:
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
