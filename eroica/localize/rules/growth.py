"""Steps that take longer the more of them there were."""

import ast

import numpy as np

from eroica import units
from eroica.localize.rules.draft import (
    Draft,
    hottest,
    mean_over,
    percent,
    where,
)
from eroica.localize.rules.phase import (
    departure,
    find_spine,
)
from eroica.localize.rules.view import Bool, Float64, JobView, warm_up
from eroica.records import Finding

WITHOUT_PLACE = 1.6  # times longer at the end, where nothing in the code is seen to accumulate
MIN_STEPS = 40  # fewer show no trend
ONE_JUMP = 0.5  # of the growth in one place is a change, not growth
GROWTH = 1.35  # times longer at the end than at the beginning
CORRELATION = 0.85  # of step time with the step's number
MIN_PART = 0.03  # of the time, in a function that accumulates


def growth(view: JobView) -> list[Draft]:
    """Steps that take longer the more of them there were, steadily, on all ranks."""
    trend = step_trend(view)
    if trend is None:
        return []
    first, last, steadiness = trend
    mask, grows = _growing_rows(view)
    share = max(0.0, 1.0 - first / last)
    places = hottest(view, mask, view.share_FR.mean(axis=1)) if mask.any() else ()
    if not places and last < WITHOUT_PLACE * first:
        return []
    held = mean_over(view.sum_seen(mask))
    if mask.any() and held < view.parameters.common_share:
        return []
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
            findings=[
                Finding(
                    id="",
                    kind="step_trend",
                    text=text,
                    details={
                        "first_ms": first / 1e6,
                        "last_ms": last / 1e6,
                        "rank_correlation": steadiness,
                    },
                )
            ],
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
        if len(durations) < MIN_STEPS:
            continue  # it joined late, say; the others tell
        blocks.append(np.array([np.median(part) for part in np.array_split(durations, 10)]))
    if not blocks:
        return None
    level = np.median(np.array(blocks), axis=0)
    order = np.argsort(np.argsort(level)).astype(np.float64)
    correlation = float(np.corrcoef(order, np.arange(len(order)))[0, 1])
    first, last = float(level[:2].mean()), float(level[-2:].mean())
    one_jump = float(np.diff(level).max()) > ONE_JUMP * (last - first)
    rises = last >= GROWTH * first > 0 and not one_jump
    return (first, last, correlation) if rises and correlation >= CORRELATION else None


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
    growing = {k: v for k, v in totals.items() if v > MIN_PART and _accumulates(view, k)}
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
    return any(_appends(node) for node in ast.walk(tree))


def _appends(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("append", "extend", "add", "update", "insert", "appendleft")
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return isinstance(node.value, ast.List | ast.ListComp | ast.JoinedStr)
    return False
