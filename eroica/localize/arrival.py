"""Who arrives last at the collectives, and what the others lose by it.

Collectives end together (measured: within microseconds in a host), so ends align clocks and the
start, counted back from the end, is the arrival. Lateness of a rank is its arrival after the
first one; the wait it causes is what the second-last rank still loses. No clock is compared over
ranks: ``late = max over ranks of (end - start) - (end - start)``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.columns import RankPatterns

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class ArrivalTable:
    """Collectives seen on more than one rank. C collectives, R ranks; NaN where absent."""

    keys: tuple[str, ...]
    ranks: tuple[int, ...]
    late_ns_CR: Float64
    """After the first arrival."""
    window_ns: float
    culprits: dict[int, tuple[str, ...]]
    """Rank to the function id it spent the time before each collective in; empty where unknown."""

    @property
    def last_C(self) -> "NDArray[np.int64]":
        """Position of the last rank of each collective."""
        filled = np.where(np.isnan(self.late_ns_CR), -1.0, self.late_ns_CR)
        return np.asarray(filled.argmax(axis=1), dtype=np.int64)

    @property
    def held_ns_C(self) -> Float64:
        """Time the last rank alone adds: its arrival after the one before it."""
        ordered = np.sort(np.where(np.isnan(self.late_ns_CR), 0.0, self.late_ns_CR), axis=1)
        return np.asarray(ordered[:, -1] - ordered[:, -2])


@dataclass(frozen=True)
class LateRank:
    """How often and how much a rank was the last to come."""

    rank: int
    times_last: int
    out_of: int
    held_ns: float
    share: float
    """``held_ns`` over the window."""
    function_id: str = ""
    """What it did most before those collectives."""


def arrival_table(patterns: Sequence[RankPatterns]) -> ArrivalTable | None:
    """Join the ranks' arrivals; None where fewer than two ranks share a collective."""
    given = [p for p in patterns if p.arrivals is not None and len(p.arrivals.key_C)]
    if len(given) < 2:
        return None
    keys = list(
        dict.fromkeys(
            k
            for p in given
            for k in p.arrivals.key_C  # type: ignore[union-attr]
            if not is_point_to_point(k)
        )
    )
    place = {key: i for i, key in enumerate(keys)}
    spent = np.full((len(keys), len(given)), np.nan)
    culprits: dict[int, tuple[str, ...]] = {}
    for column, one in enumerate(given):
        arrivals = one.arrivals
        assert arrivals is not None
        known = [i for i, k in enumerate(arrivals.key_C) if k in place]
        rows = [place[arrivals.key_C[i]] for i in known]
        length = np.asarray(arrivals.end_ns_C - arrivals.start_ns_C, dtype=np.float64)
        spent[rows, column] = length[known]
        if arrivals.culprit_C:
            by_row = {row: arrivals.culprit_C[i] for row, i in zip(rows, known, strict=True)}
            culprits[one.rank] = tuple(by_row.get(i, "") for i in range(len(keys)))
    seen_C = (~np.isnan(spent)).sum(axis=1)
    shared = seen_C >= 2
    if not shared.any():
        return None
    if any(is_point_to_point(k) for p in given for k in p.arrivals.key_C):  # type: ignore[union-attr]
        # In a pipeline whoever comes after a slow stage is late as well; only where all ranks
        # meet does the last one tell.
        shared &= seen_C == len(given)
        if not shared.any():
            return None
    late = np.nanmax(spent[shared], axis=1, keepdims=True) - spent[shared]
    kept = [k for k, yes in zip(keys, shared, strict=True) if yes]
    where = np.flatnonzero(shared)
    return ArrivalTable(
        keys=tuple(kept),
        ranks=tuple(p.rank for p in given),
        late_ns_CR=late,
        window_ns=float(np.median([p.window_ns for p in given])) or 1.0,
        culprits={r: tuple(c[i] for i in where) for r, c in culprits.items()},
    )


def is_point_to_point(key: str) -> bool:
    """Sends do not end together on both sides, and a pipeline's stages rightly come in turn."""
    parts = key.split("|")
    op = parts[1] if len(parts) > 2 else parts[0]
    return any(word in op for word in ("send", "recv", "p2p", "permute"))


def late_ranks(table: ArrivalTable) -> list[LateRank]:
    """Return every rank that was last somewhere, the one that cost most first."""
    last_C, held_C = table.last_C, table.held_ns_C
    found: list[LateRank] = []
    for column, rank in enumerate(table.ranks):
        mine = np.flatnonzero(last_C == column)
        if not len(mine):
            continue
        held = float(held_C[mine].sum())
        names = table.culprits.get(rank, ())
        weight: Counter[str] = Counter()
        for position in mine:
            if position < len(names) and names[position]:
                weight[names[position]] += int(held_C[position])
        found.append(
            LateRank(
                rank=rank,
                times_last=len(mine),
                out_of=len(table.keys),
                held_ns=held,
                share=min(1.0, held / table.window_ns),
                function_id=weight.most_common(1)[0][0] if weight else "",
            )
        )
    return sorted(found, key=lambda r: (-r.held_ns, -r.times_last))
