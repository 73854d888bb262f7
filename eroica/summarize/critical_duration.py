"""Critical duration (paper Algorithm 1): the part of an execution in which the resource was used.

A collective kernel spins with zero traffic until its last peer arrives; averaged over the whole
kernel a healthy link looks slow. mu and sigma are therefore taken over the critical duration only:
the stretch that holds at least ``share`` (0.8) of the execution's use and, of such stretches, the
one that needs the smallest run of zeros inside it. For samples u_1 .. u_n::

    feasible(g): cut the samples wherever more than g zeros follow each other, take the piece
                 with the largest sum; feasible if that sum >= share * sum(u)
    g*           = the smallest feasible g; its piece, zeros trimmed, is the critical duration

Feasibility grows with g (pieces only merge), so g* is found by binary search: O(n log n). The
paper's text leaves open whether g is searched or fixed; we search. No use at all (sum = 0): the
whole execution, mu = sigma = 0.

Worked example, share 0.8: 0 0 0 5 5 0 5 0 0 0 1 -> total 16; g = 0 gives 10 (5 5), g = 1 gives
15 (5 5 0 5) >= 12.8, so the critical duration is samples 3 .. 6.
"""

import numpy as np
from numpy.typing import NDArray

from eroica.read.compiled import compiled

Float64 = NDArray[np.float64]


@compiled
def _largest_piece(use: Float64, begin: int, end: int, most_zeros: int) -> tuple[int, int, float]:
    best_first, best_last, best = begin, begin, -1.0
    first, last, held = -1, -1, 0.0
    for i in range(begin, end):
        if use[i] <= 0:
            continue
        if first >= 0 and i - last - 1 > most_zeros:
            if held > best:
                best_first, best_last, best = first, last, held
            first, held = -1, 0.0
        if first < 0:
            first = i
        last = i
        held += use[i]
    if held > best:
        best_first, best_last, best = first, last, held
    return best_first, best_last + 1, best


@compiled
def _critical(use: Float64, begin: int, end: int, share: float) -> tuple[int, int]:
    """Return the critical duration among ``use[begin:end]``."""
    total = 0.0
    for i in range(begin, end):
        total += use[i]
    if total <= 0:
        return begin, end
    need = share * total * (1 - 1e-12)  # sums in another order may differ in the last digit
    low, high = 0, end - begin
    while low < high:
        middle = (low + high) // 2
        if _largest_piece(use, begin, end, middle)[2] >= need:
            high = middle
        else:
            low = middle + 1
    first, last, _ = _largest_piece(use, begin, end, low)
    return first, last


def critical_duration(use: Float64, share: float) -> tuple[int, int]:
    """Return [first, last) of the critical duration among an execution's samples.

    Samples are use of the resource, not negative; without any use the whole range comes back.
    """
    first, last = _critical(use, 0, len(use), share)
    return first, last


def pool_critical_samples(
    time_ns_N: NDArray[np.int64],
    use_N: Float64,
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    function: NDArray[np.int32],
    num_functions: int,
    share: float,
) -> tuple[Float64, Float64, NDArray[np.int64]]:
    """Return mean, standard deviation and number of the pooled critical samples of each function.

    ``time_ns_N`` is sorted; executions without a sample in them add nothing.
    """
    begin = np.searchsorted(time_ns_N, start_ns)
    end = np.searchsorted(time_ns_N, end_ns)
    total, square = np.zeros(num_functions), np.zeros(num_functions)
    count = np.zeros(num_functions, np.int64)
    _pool(use_N, begin, end, function, share, total, square, count)
    number = np.maximum(count, 1)
    mean = total / number
    deviation = np.sqrt(np.maximum(square / number - mean * mean, 0.0))
    return mean, deviation, count


@compiled
def _pool(
    use: Float64,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    function: NDArray[np.int32],
    share: float,
    total: Float64,
    square: Float64,
    count: NDArray[np.int64],
) -> None:
    for i in range(len(begin)):
        if end[i] <= begin[i]:
            continue
        first, last = _critical(use, begin[i], end[i], share)
        which = function[i]
        for j in range(first, last):
            total[which] += use[j]
            square[which] += use[j] * use[j]
        count[which] += last - first
