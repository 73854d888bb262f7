"""How many of a sample are far from each rank: the inner loop of Delta, compiled and plain.

Complexity O(R N) at worst a function; the sample is sorted by its distance to its median, so that
for a rank near it the triangle inequality decides most of the sample unseen.
"""

from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Columns = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
FEW_RANKS = 8192
"""Waking threads costs more than counting for fewer."""


def count_far(columns: Columns, reference: Float32, delta: float) -> Int32:
    """Return for each rank how many of the sample are at normalized L1 distance >= delta.

    ``columns`` are beta, mu and sigma of R ranks, float32; ``reference`` is (3, N).
    """
    factors = _factors(columns, reference)
    sample = reference * factors[:, None]
    center = np.median(sample, axis=1).astype(np.float32)
    apart = np.abs(sample - center[:, None]).sum(axis=0)
    order = np.argsort(apart, kind="stable")
    kernel = _count_far if len(columns[0]) > FEW_RANKS else _count_far_alone
    counts: Int32 = kernel(
        *columns,
        factors,
        center,
        np.ascontiguousarray(sample[:, order]),
        apart[order].astype(np.float32),
        np.float32(delta),
    )
    return counts


def _factors(columns: Columns, reference: Float32) -> Float32:
    """One over each dimension's largest value; 0 where all are 0."""
    largest = np.array(
        [max(float(c.max()), float(r.max())) for c, r in zip(columns, reference, strict=True)],
        np.float32,
    )
    return np.where(largest > 0, 1.0 / np.where(largest > 0, largest, 1), 0).astype(np.float32)


def _count_far_plain(  # type: ignore[no-untyped-def]  # noqa: ANN202  # pragma: no cover
    beta_R,  # noqa: ANN001
    mu_R,  # noqa: ANN001
    sigma_R,  # noqa: ANN001
    factors,  # noqa: ANN001
    center,  # noqa: ANN001
    sample,  # noqa: ANN001
    apart,  # noqa: ANN001
    delta,  # noqa: ANN001
):
    count, size = len(beta_R), len(apart)
    out = np.empty(count, np.int32)
    slack = np.float32(1e-5)
    for i in nb.prange(count):
        b, m, s = beta_R[i] * factors[0], mu_R[i] * factors[1], sigma_R[i] * factors[2]
        t = abs(b - center[0]) + abs(m - center[1]) + abs(s - center[2])
        # |t - apart| <= distance <= t + apart: outside these bounds nothing needs computing.
        low = np.searchsorted(apart, delta - t - slack)
        high = np.searchsorted(apart, delta + t + slack)
        if t - apart[size - 1] >= delta + slack:
            out[i] = size
            continue
        far = size - high
        for j in range(low, high):
            d = abs(b - sample[0, j]) + abs(m - sample[1, j]) + abs(s - sample[2, j])
            far += d >= delta
        out[i] = far
    return out


_count_far = nb.njit(parallel=True, fastmath=True, cache=True)(_count_far_plain)
_count_far_alone = nb.njit(fastmath=True, cache=True)(_count_far_plain)


def plain_count_far(
    columns: Columns, reference: Float32, delta: float, chunk: int = 1 << 14
) -> Int32:
    """The same rule in plain numpy; the yardstick of tests and benchmarks."""
    factors = _factors(columns, reference)
    sample = reference * factors[:, None]
    out = np.empty(len(columns[0]), np.int32)
    for begin in range(0, len(out), chunk):
        part = slice(begin, begin + chunk)
        apart = sum(
            np.abs(np.asarray(c[part])[:, None] * f - s[None, :])
            for c, f, s in zip(columns, factors, sample, strict=True)
        )
        out[part] = (apart >= np.float32(delta)).sum(axis=1)
    return out
