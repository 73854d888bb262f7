"""Against a healthy past: what got slower, by function, on which ranks.

Functions are matched by id, ranks by number, time by step: ``total_ns`` on the critical path is not
kept, so the cost of a function is ``beta x window / steps``. A function that takes at least a
tenth of the old step longer than before, on most ranks or on some, is a cause even where it is
below the floor for what all ranks have in common: the job ran without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.columns import RankPatterns
from eroica.localize.rules.draft import Draft, brief, percent, where
from eroica.localize.rules.view import JobView
from eroica.localize.rules.zones import Zone, project_frames, zone_of
from eroica.records import Finding, Function, Place

Float64 = NDArray[np.float64]
MIN_GROWTH = 0.05  # of the old step
MAX_ROWS = 12  # of the table of what changed
MOST_RANKS = 0.7  # of those both runs have: more of them changed, so all did


@dataclass(frozen=True)
class Change:
    """One function's time a step, before and now, in ns; on the ranks that changed."""

    function: Function
    before_ns: float
    now_ns: float
    ranks: tuple[int, ...]
    everyone: bool

    @property
    def grown_ns(self) -> float:
        return self.now_ns - self.before_ns


def changes(old: Sequence[RankPatterns], new: Sequence[RankPatterns]) -> list[Change]:
    """Return the functions whose time a step changed, the most grown first.

    Where the two runs have no rank in common, the medians over ranks are compared.
    """
    before, now = _times(old), _times(new)
    shared = sorted(set(before.ranks) & set(now.ranks))
    ids = dict.fromkeys([*now.functions, *before.functions])
    found: list[Change] = []
    for name in ids:
        function = now.functions.get(name) or before.functions[name]
        new_R = now.of(name, shared or now.ranks)
        old_R = before.of(name, shared or before.ranks)
        if not shared:
            new_R, old_R = np.array([np.median(new_R)]), np.array([np.median(old_R)])
        grown = new_R - old_R
        floor = 0.25 * float(grown.max(initial=0.0))
        ranks = tuple(r for r, g in zip(shared, grown, strict=False) if g > floor and g > 0)
        everyone = not shared or len(ranks) > MOST_RANKS * len(shared)
        value = float(np.median(grown)) if everyone else float(grown.max())
        base = float(np.median(old_R)) if everyone else float(old_R[int(grown.argmax())])
        found.append(Change(function, base, base + value, ranks, everyone))
    return sorted(found, key=lambda c: -c.grown_ns)


@dataclass(frozen=True)
class _Times:
    ranks: tuple[int, ...]
    functions: dict[str, Function]
    cells: dict[int, dict[str, float]]

    def of(self, name: str, ranks: Sequence[int]) -> Float64:
        return np.array([self.cells.get(r, {}).get(name, 0.0) for r in ranks])


def _times(patterns: Sequence[RankPatterns]) -> _Times:
    functions: dict[str, Function] = {}
    cells: dict[int, dict[str, float]] = {}
    for one in patterns:
        step_ns = one.window_ns / max(one.num_steps or 1, 1)
        cell = cells.setdefault(one.rank, {})
        for function, beta in zip(one.functions, one.beta_F, strict=True):
            functions[function.id] = function
            cell[function.id] = float(beta) * step_ns
    return _Times(tuple(sorted(cells)), functions, cells)


def step_ns(patterns: Sequence[RankPatterns]) -> float | None:
    """Return the median step of the windows; None where no step was seen."""
    known = [p.window_ns / p.num_steps for p in patterns if p.num_steps]
    return float(np.median(known)) if known else None


def slower_than(
    old: Sequence[RankPatterns], new: Sequence[RankPatterns], view: JobView
) -> list[Draft]:
    """Return a draft for the function that grew most, with the table of the others as findings."""
    before, now = step_ns(old), step_ns(new)
    if before is None or now is None or not new:
        return []
    found = [c for c in changes(old, new) if c.grown_ns > MIN_GROWTH * before]
    # Waiting grows with whatever grew elsewhere: a collective is named only where nothing else is.
    own = [c for c in found if c.function.kind not in ("collective", "idle", "rest")]
    if now < (1 + MIN_GROWTH) * before or not found:
        return []
    best = (own or found)[0]
    zone = zone_of(_frames(best.function), best.function.kind)
    category = _category(best, zone)
    chain = project_frames(_frames(best.function), view.project.contains)
    places = chain[:2] or _frames(best.function)[:1]
    grown = min(best.grown_ns / now, 1.0)
    at = where(places[0], view)
    who = "on all ranks" if best.everyone else f"on {units.rank_phrase(best.ranks)}"
    text = (
        f"{at} takes {units.duration(best.now_ns)} a step {who}, "
        f"{units.duration(best.before_ns)} before"
    )
    return [
        Draft(
            rule="baseline",
            category=category,
            ranks="all" if best.everyone else best.ranks,
            places=places,
            share=grown,
            confidence=0.7 if own else 0.5,
            summary=f"{text}: {percent(grown)} of the step",
            action="investigate" if category == "straggler_network" else "patch",
            why=[
                f"A step takes {units.duration(now)} now and took {units.duration(before)}.",
                text + ".",
            ],
            advice="Compare what changed between the two runs at this place.",
            findings=[_finding(c) for c in found[:MAX_ROWS]],
            claims=grown,
        )
    ]


def _frames(function: Function) -> tuple[Place, ...]:
    return (Place(name=function.name, file=function.file, line=function.line), *function.stack)


def _category(change: Change, zone: Zone) -> str:
    if change.function.kind == "collective":
        return "straggler_network"
    if zone in ("loader", "loader_wait", "loader_start", "unpickle"):
        return "dataloader_bottleneck" if change.everyone else "straggler_data_loading"
    if zone in ("gc", "checkpoint", "compile", "logging"):
        return {
            "gc": "gc_pause",
            "checkpoint": "checkpoint_overhead",
            "compile": "recompilation",
            "logging": "logging_overhead",
        }[zone]
    if change.function.kind in ("kernel", "op", "memory"):
        return "load_imbalance" if change.everyone else "straggler_compute"
    return "python_overhead" if change.everyone else "straggler_compute"


def _finding(change: Change) -> Finding:
    return Finding(
        id="",
        kind="baseline",
        ranks=change.ranks,
        function=change.function,
        text=f"{brief(change.function.name)}: {units.duration(change.before_ns)} a step before, "
        f"{units.duration(change.now_ns)} now",
        details={"before_ns": round(change.before_ns), "now_ns": round(change.now_ns)},
    )
