"""What a Flight Recorder history says of the pace: collectives a step, by call site.

A ring holds the last 2,000 or so entries of a rank, so rates are taken over the steps that the
ring covers. Gaps are the time from one entry's creation to the next one's, which for a blocking
call is its latency and for the last call of a run everything until the next run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eroica.columns import Int64
from eroica.localize.rules.view import JobView
from eroica.localize.rules.zones import Zone, has, project_frames, zone_of
from eroica.records import CollectiveEntry, Place, StepTimes

DTYPE_BYTES = {
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64", "complexfloat"), 8),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "float8_e4m3fn"), 1),
}
FRAMEWORKS = (
    *("torch/distributed/fsdp", "torch/distributed/_composable", "torch/distributed/tensor"),
    *("torch/distributed/pipelining", "torch/distributed/algorithms", "torch/distributed/optim"),
    *("deepspeed/", "megatron/", "accelerate/", "lightning/", "torch/nn/parallel/distributed.py"),
    *("pytorch_lightning/", "lightning_fabric/", "transformers/", "colossalai/", "composer/"),
    *("fairscale/", "torchrec/", "transformer_engine/", "horovod/", "apex/"),
    "torch/nn/modules/_functions.py",
)
MIN_COMPLETE = 10  # collectives of all ranks: fewer cannot tell who is late as a rule


@dataclass
class Site:
    """Collectives issued from one project function, through one kind of call."""

    zone: Zone
    chain: tuple[Place, ...]
    """Project frames, innermost first, at the line used most."""
    via_framework: bool
    count: int = 0
    num_bytes: list[int] = field(default_factory=list)
    num_elements: int = 0
    """Of all calls together."""
    gap_ns: float = 0.0
    """Time between two calls of this site without another between them."""
    ops: set[str] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)
    created_ns: list[int] = field(default_factory=list)
    per_step: float = 0.0
    share: float = 0.0
    """``gap_ns`` over the time the ring covers."""

    @property
    def median_bytes(self) -> float:
        return float(np.median(self.num_bytes)) if self.num_bytes else 0.0


@dataclass(frozen=True)
class Pace:
    """One rank's sites and the steps its ring covers; ``steps`` is None where unknown."""

    sites: tuple[Site, ...]
    steps: float | None
    span_ns: float


def entry_bytes(entry: CollectiveEntry) -> int:
    """Return the payload of one entry by its sizes and types."""
    sizes = entry.input_sizes or entry.output_sizes
    dtypes = entry.input_dtypes or entry.output_dtypes
    total = 0
    for position, size in enumerate(sizes):
        dtype = dtypes[position] if position < len(dtypes) else "float"
        total += math.prod(size) * DTYPE_BYTES.get(dtype.lower().removeprefix("torch."), 4)
    return total


def entry_elements(entry: CollectiveEntry) -> int:
    """Return how many numbers one entry carries, whatever their type."""
    return sum(math.prod(size) for size in entry.input_sizes or entry.output_sizes)


def pace_of(view: JobView, rank: int) -> Pace | None:
    """Return what the rank's ring shows since training began; None without a history."""
    entries = view.flights.get(rank)
    if not entries:
        return None
    steps = view.steps.get(rank)
    timed = [e for e in entries if e.created_ns is not None]
    if steps is not None and timed:
        timed = [e for e, known in zip(timed, _in_steps(steps, timed), strict=True) if known]
    if len(timed) < 3:
        return None
    timed.sort(key=lambda e: (e.created_ns or 0, e.record_id))
    span = float((timed[-1].created_ns or 0) - (timed[0].created_ns or 0))
    if steps is not None:
        span = min(span, float((_ends(steps) - np.asarray(steps.start_ns)).sum()))
    sites = _sites(view, timed)
    covered = _steps_within(steps, timed) if steps is not None else _steps_by_sync(sites)
    for site in sites:
        site.per_step = site.count / covered if covered else 0.0
        site.share = site.gap_ns / span if span else 0.0
    return Pace(tuple(sites), covered, span)


def _ends(steps: StepTimes) -> Int64:
    """When each step's own time is over: with what comes between two steps as a rule.

    Steps during a profiler window are left out of ``steps``; the hole they leave is no step's.
    """
    starts = np.asarray(steps.start_ns, dtype=np.int64)
    ends = starts + np.asarray(steps.duration_ns, dtype=np.int64)
    between = starts[1:] - ends[:-1]
    usual = int(np.median(between)) if len(between) else 0
    ends = ends + max(0, 2 * usual)
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    return ends


def _in_steps(steps: StepTimes, entries: Sequence[CollectiveEntry]) -> NDArray[np.bool_]:
    starts = np.asarray(steps.start_ns, dtype=np.int64)
    created = np.asarray([e.created_ns or 0 for e in entries], dtype=np.int64)
    step = np.searchsorted(starts, created, side="right") - 1
    return (step >= 0) & (created <= _ends(steps)[np.maximum(step, 0)])


def _sites(view: JobView, entries: Sequence[CollectiveEntry]) -> list[Site]:
    found: dict[tuple[object, ...], Site] = {}
    chains: dict[tuple[object, ...], dict[tuple[Place, ...], int]] = {}
    meanings: dict[tuple[Place, ...], tuple[Zone, tuple[Place, ...], bool]] = {}
    previous: tuple[Site, int] | None = None
    for entry in entries:
        if entry.frames not in meanings:
            zone = zone_of(entry.frames, "python") if entry.frames else "collective"
            if "barrier" in entry.op and zone == "collective":
                zone = "barrier"
            chain = project_frames(entry.frames, view.project.contains)
            first = next(
                (i for i, f in enumerate(entry.frames) if chain and f == chain[0]),
                len(entry.frames),
            )
            framework = any(has(f.file, *FRAMEWORKS) for f in entry.frames[:first])
            meanings[entry.frames] = (zone, chain, framework)
        zone, chain, framework = meanings[entry.frames]
        inner = chain[0] if chain else None
        key: tuple[object, ...] = (
            zone,
            framework,
            inner.file if inner else None,
            inner.name if inner else None,
        )
        site = found.setdefault(key, Site(zone, chain, framework))
        counts = chains.setdefault(key, {})
        counts[chain] = counts.get(chain, 0) + 1
        size = entry_bytes(entry)
        site.count += 1
        site.ops.add(entry.op)
        site.num_bytes.append(size)
        site.num_elements += entry_elements(entry)
        site.sizes[size] = site.sizes.get(size, 0) + 1
        created = entry.created_ns or 0
        site.created_ns.append(created)
        if previous is not None and previous[0] is site:
            site.gap_ns += created - previous[1]
        previous = (site, created)
    for name, site in found.items():
        counts = chains[name]
        site.chain = max(counts, key=lambda c: counts[c])
        site.gap_ns = _within_runs(site)
    return list(found.values())


def _within_runs(site: Site) -> float:
    """Gaps between calls of one burst: those up to 5 times the median gap of the site."""
    gaps = np.diff(np.asarray(site.created_ns, dtype=np.float64))
    if not len(gaps):
        return 0.0
    limit = 5 * float(np.median(gaps))
    return float(min(gaps[gaps <= limit].sum(), site.gap_ns if site.gap_ns else np.inf))


def _steps_within(steps: StepTimes, entries: Sequence[CollectiveEntry]) -> float:
    """How many steps the ring reaches over, the one that it begins in the middle of included."""
    ends = [entries[0].created_ns or 0, entries[-1].created_ns or 0]
    first, last = np.searchsorted(np.asarray(steps.start_ns), ends, side="right") - 1
    return float(max(last - max(first, 0) + 1, 1))


def _steps_by_sync(sites: Sequence[Site]) -> float | None:
    """Without step times: the rarest regular size of the gradient exchange comes once a step."""
    engine = [s for s in sites if s.zone in ("backward", "ddp") and s.count >= 3]
    counts = [n for s in engine for n in s.sizes.values() if n >= 3]
    return float(min(counts)) if counts else None


def merged_sites(view: JobView) -> list[tuple[Site, tuple[int, ...]]]:
    """Return the sites seen, each with the ranks that issue it; rates are means over them."""
    found: dict[tuple[object, ...], list[tuple[int, Site]]] = {}
    for rank in view.flights:
        pace = pace_of(view, rank)
        for site in pace.sites if pace is not None and pace.steps else ():
            inner = site.chain[0] if site.chain else None
            key = (
                site.zone,
                site.via_framework,
                inner.file if inner else None,
                inner.name if inner else None,
            )
            found.setdefault(key, []).append((rank, site))
    merged: list[tuple[Site, tuple[int, ...]]] = []
    for pairs in found.values():
        sites = [site for _, site in pairs]
        one = max(sites, key=lambda s: s.count)
        one.per_step = float(np.mean([s.per_step for s in sites]))
        one.share = float(np.mean([s.share for s in sites]))
        merged.append((one, tuple(rank for rank, _ in pairs)))
    return merged


def held_by_rank(view: JobView) -> dict[int, float]:
    """Return the share of time each rank alone holds the others, by when it issued collectives.

    The last rank to issue one holds it from the moment the one before came. Clocks are compared,
    so only ranks of one host are; empty where that is not all of them.
    """
    hosts = {view.hosts.get(rank, "") for rank in view.flights}
    if len(view.flights) < 2 or len(view.flights) < view.num_ranks or len(hosts) != 1:
        return {}
    issued: dict[tuple[str, int], dict[int, int]] = {}
    for rank, entries in view.flights.items():
        steps = view.steps.get(rank)
        begin = steps.start_ns[0] if steps is not None else 0
        for entry in entries:
            if entry.is_p2p or entry.sequence is None:
                continue  # a send has the number of the collective before it
            if (entry.created_ns or 0) >= max(begin, 1):
                key = (entry.group, entry.sequence)
                issued.setdefault(key, {})[rank] = entry.created_ns or 0
    complete = [times for times in issued.values() if len(times) == len(view.flights)]
    if len(complete) < MIN_COMPLETE:
        return {}
    first = min(min(times.values()) for times in complete)
    span = max(max(times.values()) for times in complete) - first
    held: dict[int, float] = {}
    for times in complete:
        last = max(times, key=lambda r: times[r])
        before, at = sorted(times.values())[-2:]
        held[last] = held.get(last, 0.0) + (at - before) / max(span, 1)
    return held
