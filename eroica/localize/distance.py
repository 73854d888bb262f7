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

One function is in memory at a time, 12 bytes a rank. mu and sigma are touched only where some rank
exceeds the lower bound of beta: on disk (``table_file``) the others are never read.

Worked example: 8 ranks, one with beta 0.5 against 0.1 of the rest, mu and sigma equal. Divided by
the largest, beta is 1.0 against 0.2: distance 0.8 >= 0.4, Delta 7/8 for the one and 1/8 for the
others; M = 1/8, MAD = 0, the floor 0.5 decides: one abnormal rank.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eroica.columns import PatternTable
from eroica.config import Parameters
from eroica.localize.far import count_far
from eroica.records import Function

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Numbers = NDArray[Any]
"""float32, or float16 that lies on disk until it is looked at."""
SEED = 20260  # of the common sample: the same table gives the same answer


@dataclass(frozen=True)
class Block:
    """One function of all R ranks, fractions 0..1."""

    function: Function
    beta_R: Numbers
    mu_R: Numbers
    sigma_R: Numbers

    def at(self, positions: Int64) -> Float32:
        """Return (beta, mu, sigma) of some ranks, shape (3, len(positions))."""
        columns = (self.beta_R, self.mu_R, self.sigma_R)
        return np.stack([c[positions] for c in columns]).astype(np.float32)


@dataclass(frozen=True)
class Peers:
    """Ranks of one role, as positions, and the sample of them that all are compared with."""

    role: int
    positions: Int64
    sample: Int64


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
    peers: list[Peers] | None = None
    for block in blocks:
        if peers is None:
            peers = peers_of(len(block.beta_R), roles_R, parameters.sample_size)
        found = distances_of(block, peers, parameters)
        if found is not None:
            yield found


def peers_of(count: int, roles_R: Int32 | None, size: int) -> list[Peers]:
    """Return every role with its common sample; drawn once, the same for all functions."""
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
        found.append(Peers(int(role), positions, drawn))
    return found


def distances_of(
    block: Block, peers: list[Peers], parameters: Parameters
) -> FunctionDistances | None:
    """Return who is unlike in one function; None where nobody is or it costs nobody anything."""
    beta_R = np.asarray(block.beta_R, np.float32)
    top = float(beta_R.max(initial=0.0))
    if top <= parameters.min_beta:
        return None
    limit = max(expected_beta(block.function.kind, parameters), parameters.min_beta)
    unexpected = int(np.count_nonzero(beta_R > limit)) if limit < 1 else 0
    columns = (beta_R, np.asarray(block.mu_R, np.float32), np.asarray(block.sigma_R, np.float32))
    whole = len(peers) == 1
    medians: dict[int, tuple[float, float, float]] = {}
    chosen: list[Int64] = []
    deltas: list[Float32] = []
    thresholds: list[Float32] = []
    for one in peers:
        mine = columns if whole else tuple(c[one.positions] for c in columns)
        reference = np.stack([c[one.sample] for c in columns])
        counts = count_far(mine, reference, parameters.delta)  # type: ignore[arg-type]
        threshold = limit_of(counts, len(one.sample), parameters)
        far = (counts > threshold * len(one.sample)) & (mine[0] > parameters.min_beta)
        here = np.flatnonzero(far)
        medians[one.role] = tuple(float(v) for v in np.median(reference, axis=1))  # type: ignore[assignment]
        chosen.append(one.positions[here])
        deltas.append(np.asarray(counts[here] / len(one.sample), np.float32))
        thresholds.append(np.full(len(here), threshold, np.float32))
    positions = np.concatenate(chosen)
    if not len(positions) and not unexpected:
        return None
    beta_A, mu_A, sigma_A = (c[positions] for c in columns)
    return FunctionDistances(
        function=block.function,
        positions_A=positions,
        beta_A=beta_A,
        mu_A=mu_A,
        sigma_A=sigma_A,
        delta_A=np.concatenate(deltas),
        threshold_A=np.concatenate(thresholds),
        peers=medians,
        num_unexpected=unexpected,
        max_expected_distance=max(0.0, top - limit) if limit < 1 else 0.0,
    )


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
