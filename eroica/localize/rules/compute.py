"""Compiling again and again."""

import ast
from typing import Any

import numpy as np

from eroica import units
from eroica.localize.rules.draft import Draft, hottest, mean_over, pattern_finding, percent, where
from eroica.localize.rules.host import run_ns
from eroica.localize.rules.view import Bool, JobView
from eroica.records import Finding, Place

MIN_COMPILES = 3  # the first, one more for dynamic shapes; the third is one too many
FEW = 0.3  # of the most compiling rank's time: less is not compiling again
SEEN = 0.05  # of the time in compilation, by stacks: what the counter says is confirmed


def recompilation(view: JobView) -> list[Draft]:
    """Return a cause where compiling goes on after the first steps.

    Evidence: the count by function that torch keeps, or stacks inside dynamo. Counter-evidence:
    few compilations, all in the first steps; that is start-up.
    """
    mask = np.array([r.zone == "compile" for r in view.rows], dtype=bool)
    recompiles = {
        rank: s.value
        for rank in view.ranks
        for s in view.values("compile.recompiles", rank)
        if isinstance(s.value, dict)
    }
    guilty = _guilty(view, mask, recompiles)
    share_R = view.sum(mask)[[r in guilty for r in view.ranks]]
    seen = mean_over(share_R) if view.rows else 0.0
    count, seconds, functions = _counted(list(recompiles.values()))
    told = _share_of_time(view, seconds, functions)
    share = max(seen, told or 0.0) if view.source != "profiler" else max(seen, 0.0)
    if share < view.parameters.common_share:
        return []
    if recompiles and count < MIN_COMPILES:
        return []
    places = _places(view, mask, functions)
    if not recompiles and view.source == "none":
        return []
    reasons = [str(f.get("reason")) for f in functions[:1] if f.get("reason")]
    at = where(places[0] if places else None, view)
    text = f"torch.compile compiles again during training{f', called at {at}' if at else ''}"
    findings = [
        Finding(
            id="",
            kind="recompiles",
            text=f"{count} compilations of one function",
            details={"count": count, "total_s": seconds, "by_function": functions[:5]},
        )
    ]
    if mask.any():
        findings.append(pattern_finding(view, mask, text=f"{percent(seen)} of time in dynamo"))
    known = f"{count:.0f} times" if count else "again and again"
    return [
        Draft(
            rule="recompilation",
            category="recompilation",
            ranks="all" if len(guilty) == view.num_ranks else tuple(sorted(guilty)),
            places=places,
            share=share,
            confidence=0.95 if count >= MIN_COMPILES and seen >= SEEN else 0.85,
            summary=f"{text}: {percent(share)} of the time",
            why=[
                f"A function was compiled {known} in {units.duration(seconds * 1e9)}."
                if count
                else text + ".",
                *[f"The guard that failed: {reason}." for reason in reasons],
            ],
            advice="Mark the changing dimension dynamic, pad to a few sizes, or pass numbers that "
            "change every step as tensors.",
            findings=findings,
            victims=tuple(r for r in view.ranks if r not in guilty),
            claims=share,
        )
    ]


def _guilty(view: JobView, mask: Bool, recompiles: dict[int, dict[str, Any]]) -> set[int]:
    """Ranks that compile again: by count where it is told, else by stacks; all if most do."""
    counts = {rank: _counted([value])[0] for rank, value in recompiles.items()}
    again = {rank for rank, count in counts.items() if count >= MIN_COMPILES}
    if not again:
        share_R = view.sum(mask)
        again = set(view.ranks_where(share_R > FEW * max(float(share_R.max(initial=0.0)), 1e-9)))
    told_R = np.array([bool(view.settings.get(rank)) for rank in view.ranks], dtype=bool)
    known = np.count_nonzero(told_R | view.seen_R)
    return again if 0 < len(again) * 2 <= known else set(view.ranks)


def _counted(found: list[dict[str, Any]]) -> tuple[float, float, list[dict[str, Any]]]:
    """The rank that compiled most: compilations of its worst function, seconds, functions."""
    best: tuple[float, float, list[dict[str, Any]]] = (0.0, 0.0, [])
    for value in found:
        functions = [f for f in value.get("by_function") or [] if isinstance(f, dict)]
        functions.sort(key=lambda f: -float(f.get("count") or 0))
        worst = float((functions[0] if functions else value).get("count") or 0)
        if worst > best[0]:
            best = (worst, float(value.get("total_s") or 0.0), functions)
    return best


def _share_of_time(view: JobView, seconds: float, functions: list[dict[str, Any]]) -> float | None:
    """Compile time beyond each function's first compilation over the time of all steps so far."""
    total = max((run_ns(s) for s in view.steps.values()), default=0.0)
    if functions and all(f.get("seconds") and f.get("count") for f in functions):
        seconds = sum(float(f["seconds"]) * (1 - 1 / float(f["count"])) for f in functions)
    return min(1.0, seconds * 1e9 / total) if total and seconds else None


def _places(
    view: JobView,
    mask: Bool,
    functions: list[dict[str, Any]],
) -> tuple[Place, ...]:
    hot = hottest(view, mask, view.share_FR.mean(axis=1)) if mask.any() else ()
    if not hot:
        hot = _call_sites(view, functions)
    setup = next((s.places for s in view.values("compile") if s.places), ())
    return (*hot[:1], *[p for p in setup[:1] if p not in hot[:1]])


def _call_sites(view: JobView, functions: list[dict[str, Any]]) -> tuple[Place, ...]:
    """Where the result of ``torch.compile`` is called, by name in the source."""
    for setting in view.values("compile"):
        for place in setting.places[:1]:
            line = _called_at(view, place)
            if line is not None:
                return (line,)
    for function in functions[:1]:
        known, file = function.get("line"), str(function.get("file"))
        if view.project.contains(file):
            name = str(function.get("name"))
            return (Place(name=name, file=file, line=known if isinstance(known, int) else None),)
    return ()


def _called_at(view: JobView, place: Place) -> Place | None:
    info = view.project.enclosing(place.file, place.line)
    if info is None:
        return None
    names: set[str] = set()
    for node in info.own_nodes:
        if isinstance(node, ast.Assign) and node.lineno == place.line:
            names |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    for node in info.own_nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            return info.place(node.lineno)
    return None
