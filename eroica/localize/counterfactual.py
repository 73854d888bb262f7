"""How much step time would go if the slow ranks were like their peers.

A synchronous step lasts as long as its slowest rank works: ``T = max_r W_r`` with W the share of
the window a rank works rather than waits for others. Were the slow ranks S like the rest, it would
last ``max over the others``, so the share of S is ``min over S of W - max over others of W``: what
a cure is certain to win, before the next slowest rank takes over.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
CLOSE = 0.2  # a rank within this part of the spread of the slowest one is slow as well


@dataclass(frozen=True)
class Slowest:
    """The ranks (as positions) whose work sets the step, and what being like the rest would win."""

    positions: tuple[int, ...]
    share: float
    """Certain gain: the slow ranks against the slowest of the others."""
    excess: float
    """Against the median of the others."""


def slowest(work_R: Float64, seen_R: Bool | None = None) -> Slowest | None:
    """Return the minority of ranks that works longest; None where no minority stands out.

    Worked example: W = (0.40, 0.38, 1.00, 0.41) gives rank 2, share 0.59, excess 0.60. With
    ``seen_R`` only those ranks are compared: of the others nobody knows how long they work.
    """
    if seen_R is not None:
        at = np.flatnonzero(seen_R)
        found = slowest(work_R[at])
        return found and replace(found, positions=tuple(int(at[p]) for p in found.positions))
    count = len(work_R)
    if count < 2:
        return None
    top, bottom = float(work_R.max()), float(work_R.min())
    slow = work_R >= top - CLOSE * (top - bottom)
    if slow.sum() * 2 > count:
        return None
    rest = work_R[~slow]
    return Slowest(
        positions=tuple(int(p) for p in np.flatnonzero(slow)),
        share=float(work_R[slow].min() - rest.max()),
        excess=float(work_R[slow].mean() - np.median(rest)),
    )


def without(work_R: Float64, positions: tuple[int, ...], relief_R: Float64) -> float:
    """Return the share of step time that goes if ``relief_R`` is taken off those ranks' work."""
    before = float(work_R.max())
    after = work_R.copy()
    for position in positions:
        after[position] = max(0.0, after[position] - relief_R[position])
    return max(0.0, (before - float(after.max())) / before) if before > 0 else 0.0
