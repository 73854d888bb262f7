"""A cause in the making, and the words and places all rules share."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from eroica import units
from eroica.localize.rules.view import Bool, Float64, JobView, Row
from eroica.records import Action, Finding, Function, FunctionKind, Place
from eroica.text import function_name

KINDS = get_args(FunctionKind)
RankSet = tuple[int, ...] | Literal["all"]


@dataclass
class Draft:
    """One rule's answer. ``share`` is the counterfactual; ``rank_share`` orders causes where the
    share cannot be measured."""

    rule: str
    category: str
    ranks: RankSet
    places: tuple[Place, ...]
    share: float | None
    confidence: float
    summary: str
    action: Action = "patch"
    why: list[str] = field(default_factory=list)
    against: list[str] = field(default_factory=list)
    advice: str = ""
    findings: list[Finding] = field(default_factory=list)
    victims: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    rank_share: float | None = None
    claims: float = 0.0
    """Step time it explains on the guilty ranks; a vaguer cause of the same time gives way."""

    @property
    def weight(self) -> float:
        value = self.share if self.share is not None else (self.rank_share or 0.0)
        return value * self.confidence


def where(place: Place | None, view: JobView) -> str:
    """``train.py:28 Dataset.__getitem__``; empty where nothing is known."""
    if place is None:
        return ""
    if place.file is None:
        return brief(place.name)
    file = view.project.name_in_root(place.file)
    if file.startswith("/"):
        file = file.rsplit("/", 1)[-1]
    name = function_name(place.name)
    return f"{file}:{place.line} {name}" if place.line else f"{file} {name}"


def brief(name: str, limit: int = 60) -> str:
    """Cut template arguments and what is too long to read out of a kernel's name."""
    short = name.removeprefix("void ").split("<")[0] if "<" in name[1:] else name
    return short if len(short) <= limit else short[: limit - 3] + "..."


def hottest(
    view: JobView, mask: Bool, weights_F: Float64, *, entry: Place | None = None
) -> tuple[Place, ...]:
    """Return the place to look at and its caller: the innermost project function that holds most
    of the weight, at its hottest line.

    With ``entry`` (a function, its line ignored) that function stands in for the innermost one:
    the whole of the work below it is the matter, not its busiest leaf. Where the weights are 0
    everywhere (stacks that differ in a line from rank to rank have a median of 0) the mean share
    stands for them.
    """
    if view.num_ranks and mask.any() and not (weights_F[mask] > 0).any():
        weights_F = view.share_FR.mean(axis=1)
    totals: dict[tuple[str | None, str], float] = {}
    chains: dict[tuple[str | None, str], dict[tuple[Place, ...], float]] = {}
    for position in np.flatnonzero(mask & (weights_F > 0)):
        chain = _from_entry(view.rows[position].project, entry)
        if not chain:
            continue
        key = (chain[0].file, chain[0].name)
        totals[key] = totals.get(key, 0.0) + float(weights_F[position])
        pairs = chains.setdefault(key, {})
        pairs[chain[:2]] = pairs.get(chain[:2], 0.0) + float(weights_F[position])
    if not totals:
        return ()
    best = chains[max(totals, key=lambda k: totals[k])]
    lines: dict[Place, float] = {}
    for pair, weight in best.items():
        lines[pair[0]] = lines.get(pair[0], 0.0) + weight
    first = max(lines, key=lambda p: lines[p])
    callers = {p[1]: w for p, w in best.items() if len(p) > 1 and p[0] == first}
    return (first, *([max(callers, key=lambda p: callers[p])] if callers else []))


def _from_entry(chain: tuple[Place, ...], entry: Place | None) -> tuple[Place, ...]:
    if entry is None:
        return chain
    for position in range(len(chain) - 1, -1, -1):
        if (chain[position].file, chain[position].name) == (entry.file, entry.name):
            return chain[position:]
    return ()


def with_setup(places: Sequence[Place], setup: Sequence[Place]) -> tuple[Place, ...]:
    """Put the line that set a thing up second, behind the place where it costs."""
    given = [*places[:1], *setup[:1]] or list(places)
    return tuple(given + [p for p in places[1:] if p not in given])


def mean_over(values_R: Float64) -> float:
    return float(np.mean(values_R)) if len(values_R) else 0.0


def pattern_finding(
    view: JobView, mask: Bool, *, text: str, ranks: tuple[int, ...] = (), kind: str = "pattern"
) -> Finding:
    """Return the numbers of a group of stacks: the share on the ranks named and on their peers."""
    share_R = view.sum(mask)
    inside = np.array([r in ranks for r in view.ranks], dtype=bool)
    mine = share_R[inside] if inside.any() else share_R
    rest = share_R[~inside] if inside.any() and (~inside).any() else None
    details = {"share_by_rank": {str(r): round(float(s), 4) for r, s in _some(view, share_R)}}
    positions = np.flatnonzero(mask)
    function = None
    if len(positions):
        largest = view.share_FR[positions].max(axis=1, initial=0.0)
        function = function_of(view.rows[int(positions[largest.argmax()])])
    return Finding(
        id="",
        kind=kind,
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks,
        function=function,
        beta=round(float(mine.mean()), 4) if len(mine) else None,
        peers={"beta": round(float(np.median(rest)), 4)} if rest is not None else {},
        text=text,
        details=details,
    )


def function_of(row: Row) -> Function:
    place = row.frames[0]
    return Function(
        id=row.function_id or f"stack-{zlib.crc32(repr(row.frames).encode()):08x}",
        kind=row.kind if row.kind in KINDS else "python",  # type: ignore[arg-type]
        name=place.name,
        file=place.file,
        line=place.line,
        stack=row.frames[1:],
    )


def _some(view: JobView, values_R: Float64, limit: int = 16) -> list[tuple[int, float]]:
    """The ranks with the largest and smallest values; all where they are few."""
    pairs = list(zip(view.ranks, values_R.tolist(), strict=True))
    if len(pairs) <= limit:
        return pairs
    pairs.sort(key=lambda p: p[1])
    return pairs[: limit // 2] + pairs[-limit // 2 :]


def percent(value: float | None) -> str:
    return units.share(value) if value is not None else "an unknown share"


def step_text(view: JobView, share: float | None) -> str:
    """``the step would take 187 ms, not 328 ms``; empty where the step is not known.

    Also where nothing would be left of it: shares of several ranks may add up to the whole step.
    """
    if view.step_ns is None or share is None or share >= 1:
        return ""
    after, before = view.step_ns * (1 - share), view.step_ns
    return f"; without it the step would take {units.duration(after)}, not {units.duration(before)}"
