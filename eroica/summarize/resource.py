"""mu and sigma: mean and deviation of the resource that a kind of function uses.

| kind | counter looked for | without it |
|---|---|---|
| kernel | SM activity or utilization of the GPU | speed: fastest execution / execution |
| memory | PCIe throughput, else DRAM activity | the same |
| collective | NIC or InfiniBand transmit, else NVLink | bytes/s over the best, else as above |
| python, op | CPU share of the training thread, else of the host | not measured: 0 |

With counters, samples are pooled over the critical durations (paper Algorithm 1). A proxy is made
of whole executions and is named in ``RankPatterns.proxy``. What is relative to the best on this
rank keeps that best as ``reference_F``, so that ``merge`` can make it relative to the best of all
ranks: a link that is slow from the first byte to the last must not set its own standard.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.columns import Float32, HardwareSamples, Int32, Int64
from eroica.summarize.critical_duration import pool_critical_samples

KINDS = ("kernel", "memory", "collective", "python", "op")
_COUNTERS: dict[str, tuple[str, ...]] = {
    "kernel": (r"sm_(?:activity|active)", r"gpu\d*\.(?:utilization|util)", r"sm_clock"),
    "memory": (r"pcie", r"dram|memory_(?:activity|utilization|bandwidth)"),
    "collective": (r"(?:nic|ib|infiniband|rdma|net)[\w.-]*(?:tx|xmit|sent)", r"nvlink"),
    "python": (r"(?:training|main)_?thread\w*\.cpu|thread\.cpu", r"rank\.cpu|process\.cpu", r"cpu"),
}
_COUNTERS["op"] = _COUNTERS["python"]
_NO_USE = re.compile(r"error|replay|recover|limit|width|wait|pressure|throttl|congest|discard|down")
"""Counters that tell how a device is, not what it does."""


@dataclass(frozen=True)
class Use:
    """mu, sigma and what they are relative to, a function."""

    mu_F: Float32
    sigma_F: Float32
    reference_F: Float32
    proxy: str


def find_counter(hardware: HardwareSamples, kind: str) -> NDArray[np.float64] | None:
    """Return the samples of the resource that ``kind`` uses, several devices summed; else None."""
    for pattern in _COUNTERS[kind]:
        found = [
            values
            for name, values in hardware.values_N.items()
            if re.search(pattern, name.lower()) and not _NO_USE.search(name.lower())
        ]
        if found:
            used = np.nan_to_num(np.sum(found, axis=0), nan=0.0, posinf=0.0, neginf=0.0)
            return np.asarray(np.maximum(used, 0.0), np.float64)
    return None


def measure(
    hardware: HardwareSamples | None,
    kind_F: NDArray[np.str_],
    start_ns: Int64,
    end_ns: Int64,
    function: Int32,
    num_bytes: Int64,
    share: float,
) -> Use:
    """Return mu and sigma from the executions of all functions (columns of equal length).

    ``start_ns``/``end_ns`` are Unix times; ``num_bytes`` is -1 where unknown.
    """
    num_functions = len(kind_F)
    mu = np.zeros(num_functions, np.float32)
    sigma = np.zeros(num_functions, np.float32)
    reference = np.zeros(num_functions, np.float32)
    notes: list[str] = []
    for kind in KINDS:
        if not (kind_F == kind).any():
            continue
        counter = find_counter(hardware, kind) if hardware is not None else None
        if counter is None and kind in ("python", "op"):
            notes.append(f"{kind}: not measured")
            continue
        rows = np.flatnonzero(kind_F[function] == kind)
        if hardware is not None and counter is not None:
            mean, deviation, best = _from_counter(
                hardware.time_ns_N,
                counter,
                start_ns[rows],
                end_ns[rows],
                function[rows],
                num_functions,
                share,
            )
        else:
            mean, deviation, best, how = _from_speed(
                end_ns[rows] - start_ns[rows], function[rows], num_bytes[rows], num_functions
            )
            notes.append(f"{kind}: {how}")
        of_kind = kind_F == kind
        mu[of_kind], sigma[of_kind] = mean[of_kind], deviation[of_kind]
        reference[of_kind] = best[of_kind]
    return Use(mu, sigma, reference, "; ".join(notes))


def _from_counter(
    time_ns_N: Int64,
    use_N: NDArray[np.float64],
    start_ns: Int64,
    end_ns: Int64,
    function: Int32,
    num_functions: int,
    share: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    order = np.argsort(time_ns_N, kind="stable")
    peak = float(use_N.max(initial=0.0))
    scale = peak if peak > 1.0 else 1.0  # bytes/s become a share of the highest seen
    mean, deviation, _ = pool_critical_samples(
        time_ns_N[order], use_N[order] / scale, start_ns, end_ns, function, num_functions, share
    )
    return mean, deviation, np.full(num_functions, peak if peak > 1.0 else 0.0)


def _from_speed(
    duration_ns: Int64, function: Int32, num_bytes: Int64, num_functions: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], str]:
    """Return the speed of executions relative to the best: bytes/s where sizes are known.

    A function of which any size is known is measured by its executions of known size only, so
    that ranks do not differ in what they measured.
    """
    has_size = num_bytes > 0
    sized_F = np.bincount(function[has_size], minlength=num_functions) > 0
    counts = has_size | ~sized_F[function]
    function, by_size = function[counts], sized_F[function[counts]]
    seconds = np.maximum(duration_ns[counts], 1) / 1e9
    rate = np.where(by_size, num_bytes[counts], 1.0) / seconds
    best = np.zeros(num_functions)
    np.maximum.at(best, function, rate)
    best[sized_F] = best[sized_F].max(initial=0.0)
    relative = rate / best[function]
    count = np.maximum(np.bincount(function, minlength=num_functions), 1)
    mean = np.bincount(function, weights=relative, minlength=num_functions) / count
    square = np.bincount(function, weights=relative**2, minlength=num_functions) / count
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
    how = ["bytes/s over the best"] * bool(sized_F.any())
    how += ["fastest execution over execution"] * bool((~by_size).any())
    return mean, deviation, best, " or ".join(how)
