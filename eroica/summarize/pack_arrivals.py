"""Arrivals as bytes: differences, byte planes apart, so that zstd finds the zeros."""

from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.columns import Arrivals, Int64


class PackedArrivals(msgspec.Struct, array_like=True):
    """``key_C`` is kept as a prefix (``group|op``) and how far k is from counting on."""

    prefixes: list[str]
    prefix: bytes
    k: bytes
    start: bytes
    duration: bytes
    num_bytes: bytes
    culprits: list[str]
    culprit: bytes


def newest(arrivals: Arrivals, number: int) -> Arrivals:
    """Return the last ``number`` collectives."""
    first = max(len(arrivals.key_C) - number, 0)
    return replace(
        arrivals,
        key_C=arrivals.key_C[first:],
        start_ns_C=arrivals.start_ns_C[first:],
        end_ns_C=arrivals.end_ns_C[first:],
        num_bytes_C=arrivals.num_bytes_C[first:],
        culprit_C=arrivals.culprit_C[first:],
    )


def pack_arrivals(arrivals: Arrivals) -> PackedArrivals:
    """Return the packed form; every value comes back exactly."""
    prefixes: dict[str, int] = {}
    culprits: dict[str, int] = {}
    expected: dict[str, int] = {}
    prefix_C, k_C = [], []
    for key in arrivals.key_C:
        prefix, k = key.rsplit("|", 1)
        prefix_C.append(prefixes.setdefault(prefix, len(prefixes)))
        k_C.append(int(k) - expected.get(prefix, 0))
        expected[prefix] = int(k) + 1
    culprit_C = [culprits.setdefault(id, len(culprits)) for id in arrivals.culprit_C]
    return PackedArrivals(
        prefixes=list(prefixes),
        prefix=_planes(np.array(prefix_C, np.int64)),
        k=_planes(np.array(k_C, np.int64)),
        start=_planes(np.diff(arrivals.start_ns_C, prepend=0)),
        duration=_planes(arrivals.end_ns_C - arrivals.start_ns_C),
        num_bytes=_planes(arrivals.num_bytes_C),
        culprits=list(culprits),
        culprit=_planes(np.array(culprit_C, np.int64)),
    )


def unpack_arrivals(packed: PackedArrivals) -> Arrivals:
    """Return what ``pack_arrivals`` made; ValueError or IndexError where the bytes disagree."""
    expected: dict[int, int] = {}
    keys = []
    for prefix, k in zip(_values(packed.prefix).tolist(), _values(packed.k).tolist(), strict=True):
        number = k + expected.get(prefix, 0)
        expected[prefix] = number + 1
        keys.append(f"{packed.prefixes[prefix]}|{number}")
    start = np.cumsum(_values(packed.start))
    columns = [packed.start, packed.duration, packed.num_bytes]
    columns += [packed.culprit] if packed.culprit else []  # none where nobody knows
    if any(len(column) != 8 * len(keys) for column in columns):
        raise ValueError("columns of collectives are of different length")
    return Arrivals(
        key_C=tuple(keys),
        start_ns_C=start,
        end_ns_C=start + _values(packed.duration),
        num_bytes_C=_values(packed.num_bytes),
        culprit_C=tuple(packed.culprits[i] for i in _values(packed.culprit).tolist()),
    )


def _planes(values: NDArray[np.int64]) -> bytes:
    """Return all lowest bytes, then all second lowest and so on."""
    zigzag = (values << 1) ^ (values >> 63)  # small negative numbers get small bytes too
    return zigzag.astype("<i8").view(np.uint8).reshape(-1, 8).T.tobytes()


def _values(planes: bytes) -> Int64:
    zigzag = np.frombuffer(planes, np.uint8).reshape(8, -1).T.copy().view("<u8").ravel()
    return ((zigzag >> np.uint64(1)).astype(np.int64)) ^ -(zigzag & np.uint64(1)).astype(np.int64)
