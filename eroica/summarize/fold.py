"""Folding: which functions stand alone in a rank's patterns and which count with others.

A window has thousands of distinct stacks and a few dozen that matter. A builtin too small to stand
alone counts with the Python frame that called it (its caller is what a person can change); what is
still below ``rest_beta`` goes to one function, ``rest``, so that shares add up. Collectives are
kept however small: comparing ranks needs the overlapped ones too. So are device waits, copies and
garbage collection that lasted 1 % of the window, on the critical path or not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.columns import Int32, Int64
from eroica.records import Function

REST = Function(id="rest", kind="rest", name="rest")
LASTING_SHARE = 0.01
"""Summed duration, as a share of the window, from which a wait, copy or collection is kept."""


@dataclass(frozen=True)
class Folding:
    """``kept`` functions in order of falling beta; ``target_F`` numbers into kept, then rest."""

    kept: Int64
    target_F: Int32
    """Position in ``kept`` that each function counts with; ``len(kept)`` is rest."""
    stands_F: NDArray[np.bool_]
    """Whether a function is kept itself."""


def fold(
    critical_ns_F: Int64,
    total_ns_F: Int64,
    caller_F: Int64,
    is_small_F: NDArray[np.bool_],
    is_always_kept_F: NDArray[np.bool_],
    is_kept_when_lasting_F: NDArray[np.bool_],
    window_ns: int,
    rest_beta: float,
) -> Folding:
    """Decide what each function counts with.

    ``caller_F`` is the function that a builtin (``is_small_F``) may fold into, -1 for none.
    """
    num_functions = len(critical_ns_F)
    limit = rest_beta * window_ns
    moves = is_small_F & (critical_ns_F < limit) & (caller_F >= 0)
    held = critical_ns_F.copy()
    held[moves] = 0
    np.add.at(held, caller_F[moves], critical_ns_F[moves])
    lasting = is_kept_when_lasting_F & (total_ns_F >= LASTING_SHARE * window_ns)
    stands = ((held >= limit) & (held > 0)) | is_always_kept_F | lasting
    kept = np.flatnonzero(stands)
    kept = kept[np.argsort(-held[kept], kind="stable")]
    target = np.full(num_functions + 1, len(kept), np.int32)
    target[kept] = np.arange(len(kept), dtype=np.int32)
    via = np.where(moves & ~stands, caller_F, np.arange(num_functions))
    return Folding(kept, target[via], stands)
