"""D and Delta of the paper (section 4), streamed one function at a time.

Definition, for a function f and rank w with pattern P = (beta, mu, sigma):

- ``D``: L1 distance of P to the range expected of the kind (Python: beta <= 0.01; collective and
  memory: beta <= 0.3, our choice; compute: anything). For a box that is the sum of the excesses.
- ``Delta``: the share of a sample of peers whose pattern of f is at L1 distance >= 0.4, each
  dimension divided by its largest value over the peers.
- abnormal: ``beta > 0.01 and (D > 0 or Delta > max(M + 5 MAD, floor))`` with M, MAD of Delta over
  the peers.

Traps mended, each of which makes a healthy job look ill: every rank is compared with one common
sample (own samples give a healthy rank that happens to draw the faulty one Delta > 0); a floor
stands where MAD is 0, the usual case; only ranks of one role are peers; absent is (0, 0, 0).

Complexity O(F R N) at worst; the sample is sorted by its distance to its median, so that for a
rank near it the triangle inequality decides most of the sample unseen. One function is in memory
at a time: 6 to 12 bytes a rank.

Worked example: 8 ranks, one with beta 0.5 against 0.1 of the rest, mu and sigma equal. Divided by
the largest, beta is 1.0 against 0.2: distance 0.8 >= 0.4, Delta 7/8 for the one and 1/8 for the
others; M = 1/8, MAD = 0, the floor 0.5 decides: one abnormal rank.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from eroica.columns import PatternTable
from eroica.config import Parameters
from eroica.records import Function

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Numbers = NDArray[Any]  # float32, or uint16 in 1/65535
SEED = 20260
FEW_RANKS = 8192


@dataclass(frozen=True)
class Block:
    """One function of all R ranks. Values are float32, or uint16 in 1/65535."""

    function: Function
    beta_R: Numbers
    mu_R: Numbers
    sigma_R: Numbers


@dataclass(frozen=True)
class FunctionDistances:
    """What sets some ranks apart in one function. A abnormal ranks, as positions."""

    function: Function
    positions_A: Int64
    beta_A: Float32
    mu_A: Float32
    sigma_A: Float32
    delta_A: Float32
    threshold_A: Float32
    peers: dict[int, tuple[float, float, float]]
    """Role to median beta, mu, sigma of its ranks."""
    num_unexpected: int
    """Ranks with D > 0."""
    max_expected_distance: float


def expected_beta(kind: str, parameters: Parameters) -> float:
    """Upper end of the range of beta expected of a kind; compute is never unexpected."""
    if kind == "python":
        return parameters.expected_python_beta
    if kind == "collective":
        return parameters.expected_collective_beta
    return parameters.expected_memory_beta if kind == "memory" else 1.0


def expected_distance(beta: float, kind: str, parameters: Parameters) -> float:
    """Return D: only beta is bounded, so it is the excess over the range."""
    return max(0.0, beta - expected_beta(kind, parameters))


def blocks_of(table: PatternTable) -> Iterator[Block]:
    """Yield a table in memory function by function."""
    for position, function in enumerate(table.functions):
        yield Block(
            function, table.beta_FR[position], table.mu_FR[position], table.sigma_FR[position]
        )


def distances(
    blocks: Iterable[Block],
    *,
    roles_R: Int32 | None = None,
    parameters: Parameters | None = None,
) -> Iterator[FunctionDistances]:
    """Yield each function that is unlike among peers, or outside its expected range somewhere."""
    parameters = parameters or Parameters()
    members: list[tuple[int, Int64, Int64]] | None = None
    for block in blocks:
        if members is None:
            members = _members(len(block.beta_R), roles_R, parameters.sample_size)
        found = _one(block, members, parameters)
        if found is not None:
            yield found


def _members(count: int, roles_R: Int32 | None, size: int) -> list[tuple[int, Int64, Int64]]:
    """Return (role, positions, common sample) of every role; drawn once, the same for all."""
    random = np.random.default_rng(SEED)
    roles = np.zeros(count, np.int32) if roles_R is None else roles_R
    found = []
    for role in np.unique(roles):
        positions = np.flatnonzero(roles == role)
        drawn = (
            positions
            if len(positions) <= size
            else np.sort(random.choice(positions, size, replace=False))
        )
        found.append((int(role), positions, drawn))
    return found


def _one(
    block: Block, members: list[tuple[int, Int64, Int64]], parameters: Parameters
) -> FunctionDistances | None:
    scale = _scale(block.beta_R)
    top = float(block.beta_R.max()) * scale if len(block.beta_R) else 0.0
    if top <= parameters.min_beta:
        return None
    limit = max(expected_beta(block.function.kind, parameters), parameters.min_beta)
    unexpected = int(np.count_nonzero(block.beta_R > limit / scale)) if limit < 1 else 0
    parts: list[tuple[Int64, Float32, float]] = []
    peers: dict[int, tuple[float, float, float]] = {}
    whole = len(members) == 1
    for role, positions, sample in members:
        columns = (
            (block.beta_R, block.mu_R, block.sigma_R)
            if whole
            else (block.beta_R[positions], block.mu_R[positions], block.sigma_R[positions])
        )
        reference = np.stack(
            [np.asarray(c)[sample] for c in (block.beta_R, block.mu_R, block.sigma_R)]
        ).astype(np.float32)
        counts = count_far(columns, reference, parameters.delta)
        threshold = limit_of(counts, len(sample), parameters)
        far = counts > threshold * len(sample)
        far &= columns[0] > parameters.min_beta / scale
        here = np.flatnonzero(far)
        peers[role] = tuple(float(v) * scale for v in np.median(reference, axis=1))  # type: ignore[assignment]
        near = np.asarray(counts[here] / len(sample), np.float32)
        parts.append((positions[here], near, threshold))
    chosen = np.concatenate([p for p, _, _ in parts])
    if not len(chosen) and not unexpected:
        return None
    return FunctionDistances(
        function=block.function,
        positions_A=chosen,
        beta_A=np.asarray(block.beta_R[chosen] * np.float32(scale), np.float32),
        mu_A=np.asarray(block.mu_R[chosen] * np.float32(scale), np.float32),
        sigma_A=np.asarray(block.sigma_R[chosen] * np.float32(scale), np.float32),
        delta_A=np.concatenate([d for _, d, _ in parts]),
        threshold_A=np.concatenate([np.full(len(p), t, np.float32) for p, _, t in parts]),
        peers=peers,
        num_unexpected=unexpected,
        max_expected_distance=max(0.0, top - limit) if limit < 1 else 0.0,
    )


def _scale(values: Numbers) -> float:
    return 1.0 / 65535.0 if values.dtype == np.uint16 else 1.0


def limit_of(counts_R: Int32, size: int, parameters: Parameters) -> float:
    """Return the share of the sample above which a rank is abnormal: M + k MAD, floored.

    Counts are whole numbers up to the sample's size, so median and MAD come from a histogram.
    """
    seen = np.bincount(counts_R, minlength=size + 1)
    median = _middle(seen)
    apart = np.zeros(2 * size + 2, np.int64)
    np.add.at(apart, np.abs(2 * np.arange(len(seen)) - int(2 * median)), seen)
    mad = _middle(apart) / 2
    return max((median + parameters.mad_factor * mad) / size, parameters.delta_floor)


def _middle(histogram: Int64) -> float:
    total = int(histogram.sum())
    running = np.cumsum(histogram)
    low = int(np.searchsorted(running, (total + 1) // 2))
    high = int(np.searchsorted(running, total // 2 + 1))
    return (low + high) / 2


def count_far(columns: tuple[Numbers, Numbers, Numbers], reference: Float32, delta: float) -> Int32:
    """Return for each rank how many of the sample are at normalized L1 distance >= delta.

    ``reference`` is (3, N) in the columns' own unit.
    """
    largest = np.array(
        [max(float(c.max()), float(r.max())) for c, r in zip(columns, reference, strict=True)],
        np.float32,
    )
    factors = np.where(largest > 0, 1.0 / np.where(largest > 0, largest, 1), 0).astype(np.float32)
    sample = reference * factors[:, None]
    center = np.median(sample, axis=1).astype(np.float32)
    apart = np.abs(sample - center[:, None]).sum(axis=0)
    order = np.argsort(apart, kind="stable")
    # Waking threads costs more than counting for few ranks.
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


@dataclass
class Scan:
    """One pass over all functions: what stands out, and sums per rank on the way past."""

    found: list[FunctionDistances]
    time_by_kind: dict[str, Float32]
    """Summed beta of each rank, by kind of function."""
    medians: list[dict[int, tuple[float, float, float]]]
    """Per function, role to the median pattern of the common sample; empty for small functions."""
    functions: list[Function]

    @property
    def wait_R(self) -> Float32:
        some = next(iter(self.time_by_kind.values()))
        return self.time_by_kind.get("collective", np.zeros_like(some))

    @property
    def work_R(self) -> Float32:
        """Share of the window each rank works rather than waits for others or exchanges."""
        parts = [v for kind, v in self.time_by_kind.items() if kind not in ("collective", "idle")]
        return np.asarray(sum(parts, np.zeros_like(self.wait_R)), np.float32)


def scan(
    blocks: Iterable[Block],
    *,
    roles_R: Int32 | None = None,
    parameters: Parameters | None = None,
) -> Scan:
    """Run the paper's rule over every function and keep what the rules for few ranks need."""
    parameters = parameters or Parameters()
    result = Scan([], {}, [], [])
    members: list[tuple[int, Int64, Int64]] | None = None
    for block in blocks:
        if members is None:
            members = _members(len(block.beta_R), roles_R, parameters.sample_size)
        kind = block.function.kind
        total = result.time_by_kind.setdefault(kind, np.zeros(len(block.beta_R), np.float32))
        total += block.beta_R * np.float32(_scale(block.beta_R))
        found = _one(block, members, parameters)
        if found is not None:
            result.found.append(found)
        result.functions.append(block.function)
        result.medians.append(
            _medians(block, members, parameters) if found is None else found.peers
        )
    return result


def _medians(
    block: Block, members: list[tuple[int, Int64, Int64]], parameters: Parameters
) -> dict[int, tuple[float, float, float]]:
    scale = _scale(block.beta_R)
    if not len(block.beta_R) or float(block.beta_R.max()) * scale <= parameters.min_beta / 10:
        return {}
    columns = (block.beta_R, block.mu_R, block.sigma_R)
    return {
        role: tuple(float(np.median(c[sample])) * scale for c in columns)  # type: ignore[misc]
        for role, _, sample in members
    }


def plain_count_far(
    columns: tuple[Numbers, Numbers, Numbers],
    reference: Float32,
    delta: float,
    chunk: int = 1 << 14,
) -> Int32:
    """The same rule in plain numpy; the yardstick of tests and benchmarks."""
    largest = np.array(
        [max(float(c.max()), float(r.max())) for c, r in zip(columns, reference, strict=True)],
        np.float32,
    )
    factors = np.where(largest > 0, 1.0 / np.where(largest > 0, largest, 1), 0).astype(np.float32)
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
