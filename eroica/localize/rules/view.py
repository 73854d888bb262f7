"""One job as the slow rules see it: who spends which share of its time in which stack.

Profiler windows and sampling profiles give the same picture here, so that a rule need not know
which of them it stands on; the table of stacks is made here too, since nothing else may see it
half done. Arrays are function-major: F rows (stacks), R ranks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eroica.columns import RankPatterns
from eroica.config import Parameters
from eroica.localize.rules.told import checked
from eroica.localize.rules.zones import Zone, frame_zone, project_frames, zone_of
from eroica.localize.source import Project
from eroica.records import (
    CollectiveEntry,
    JobEvidence,
    Place,
    RankEvidence,
    SampledStack,
    Setting,
    StepTimes,
    Warning,
)
from eroica.summarize.samples import training_thread

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

COLLECTIVE_ZONES: tuple[Zone, ...] = ("collective", "object_collective", "barrier")

FEW_SAMPLES = 80  # below, a share of 20 % is known to +-13 % only


LATEST_NS = 2**62  # the year 2116; what is later is no time, and no number of 64 bits for long


@dataclass(frozen=True)
class Row:
    """One distinct stack, innermost first, with what it means."""

    frames: tuple[Place, ...]
    zone: Zone
    project: tuple[Place, ...]
    """The user's frames of it, innermost first."""
    kind: str = "python"
    function_id: str = ""
    process: str = ""
    """Empty for the rank's training thread, else whose stack it is."""

    @property
    def site(self) -> Place | None:
        return self.project[0] if self.project else None


@dataclass
class JobView:
    """All ranks of a job. ``share_FR`` sums to at most 1 per rank over the training thread."""

    ranks: tuple[int, ...]
    rows: tuple[Row, ...]
    share_FR: Float64
    busy_FR: Float64
    """Share on the CPU (or busy at its resource); NaN where the source does not say."""
    others: tuple[Row, ...]
    """Stacks of other threads and children."""
    others_share_FR: Float64
    others_busy_FR: Float64
    world_size: int
    parameters: Parameters
    evidence: JobEvidence | None
    patterns: tuple[RankPatterns, ...]
    project: Project
    source: str = "none"
    """``samples``, ``profiler`` or ``none``."""
    settings: dict[int, tuple[Setting, ...]] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    warnings: tuple[Warning, ...] = ()

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    @cached_property
    def by_rank(self) -> dict[int, RankEvidence]:
        return {r.rank: r for r in self.evidence.ranks} if self.evidence else {}

    @cached_property
    def steps(self) -> dict[int, StepTimes]:
        return {
            rank: e.steps
            for rank, e in self.by_rank.items()
            if e.steps is not None and len(e.steps.duration_ns) >= 3
        }

    @cached_property
    def flights(self) -> dict[int, tuple[CollectiveEntry, ...]]:
        """Flight Recorder histories by rank, oldest first."""
        found: dict[int, tuple[CollectiveEntry, ...]] = {}
        for rank, evidence in self.by_rank.items():
            record = evidence.flight
            if record is not None and record.entries and not record.only_active:
                timed = [e for e in record.entries if abs(e.created_ns or 0) < LATEST_NS]
                found[rank] = tuple(sorted(timed, key=lambda e: e.record_id))
        return found

    @cached_property
    def step_ns(self) -> float | None:
        """Mean step over ranks, first steps left out; the pace the job is really going at."""
        means: list[float] = []
        for steps in self.steps.values():
            durations = np.asarray(steps.duration_ns, dtype=np.float64)
            means.append(float(np.mean(durations[warm_up(durations) :])))
        if means:
            return float(np.median(means))
        windows = [p.window_ns / p.num_steps for p in self.patterns if p.num_steps]
        return float(np.median(windows)) if windows else None

    @cached_property
    def device(self) -> str:
        values = self.values("device")
        return str(values[0].value) if values else ""

    @cached_property
    def seen_R(self) -> Bool:
        """Ranks of which any stack was seen; of the others there may be steps or counters."""
        return np.asarray(self.share_FR.sum(axis=0) > 0)

    @cached_property
    def zones(self) -> dict[Zone, Bool]:
        names = np.array([row.zone for row in self.rows], dtype=object)
        return {zone: np.asarray(names == zone) for zone in set(names.tolist())}

    @cached_property
    def wait_FR(self) -> Float64:
        """Share spent waiting for others: collectives, and the idle part of backward."""
        wait = np.zeros_like(self.share_FR)
        engine = np.zeros(len(self.rows), dtype=bool)
        for position, row in enumerate(self.rows):
            if row.zone in COLLECTIVE_ZONES:
                wait[position] = self.share_FR[position]
            elif row.zone in ("backward", "ddp") and not _is_hooked(row):
                engine[position] = True
        share, busy = self.share_FR[engine], self.busy_FR[engine]
        if self.source == "samples" and engine.any() and np.isnan(busy[share > 0]).all():
            # Nobody says who was on the CPU. All ranks compute the same backward pass, so what a
            # rank spends in it beyond the quickest one is waiting.
            total_R = share.sum(axis=0)
            part_R = 1 - total_R.min() / np.maximum(total_R, 1e-9)
            wait[engine] = share * part_R
        else:
            wait[engine] = np.maximum(share - np.where(np.isnan(busy), share, busy), 0.0)
        return wait

    @cached_property
    def work_FR(self) -> Float64:
        return np.maximum(self.share_FR - self.wait_FR, 0.0)

    def sum(self, mask: Bool, table: Float64 | None = None) -> Float64:
        data = self.share_FR if table is None else table
        if not len(self.rows):
            return np.zeros(self.num_ranks)
        return np.asarray(data[mask].sum(axis=0))

    def sum_seen(self, mask: Bool, table: Float64 | None = None) -> Float64:
        """``sum`` on the ranks of which stacks were seen; one 0 where that is nobody."""
        return self.sum(mask, table)[self.seen_R] if self.seen_R.any() else np.zeros(1)

    def values(self, key: str, rank: int | None = None) -> list[Setting]:
        """Return the settings of that key: of one rank, or of all in rank order."""
        ranks = self.settings if rank is None else {rank: self.settings.get(rank, ())}
        return [s for r in sorted(ranks) for s in ranks[r] if s.key == key]

    def value(self, key: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return the value most ranks report."""
        found = [s.value for s in self.values(key)]
        if not found:
            return default
        common = Counter(map(repr, found)).most_common(1)[0][0]
        return next(value for value in found if repr(value) == common)

    def ranks_where(self, mask_R: Bool) -> tuple[int, ...]:
        return tuple(rank for rank, yes in zip(self.ranks, mask_R, strict=True) if yes)


def warm_up(durations: Float64) -> int:
    """Return how many leading steps are start-up: those far above the median of the rest.

    Never more than a fifth, so that a job that got faster is not hidden.
    """
    count = len(durations)
    if count < 5:
        return min(1, count - 1)
    limit = max(1, count // 5)
    typical = float(np.median(durations[limit:]))
    slow = np.flatnonzero(durations[:limit] > 2.0 * typical)
    return int(slow[-1]) + 1 if len(slow) else 1


def _is_hooked(row: Row) -> bool:
    """User code called from inside backward: its time is its own, not the engine's."""
    for frame in row.frames:
        if row.project and frame == row.project[0]:
            return True
        if frame_zone(frame) == "backward":
            return False
    return False


def _profiles(frames: Sequence[Place]) -> bool:
    """Whether a stack is inside a profiler's start or stop."""
    return any(
        "torch/profiler/" in (f.file or "") or "collect/hook" in (f.file or "") for f in frames
    )


def build_view(
    patterns: Sequence[RankPatterns],
    evidence: JobEvidence | None,
    parameters: Parameters,
    *,
    use_windows: bool = False,
) -> JobView:
    """Join what there is of every rank. Sampling profiles win where the job has no device.

    ``use_windows`` leaves them out where there are profiler windows.
    """
    project = Project.of(evidence) if evidence else Project(None)
    told, hosts = _set_up(patterns, evidence)
    settings, warnings = checked(told)
    table = _Table(project, parameters.stall_factor)
    source = _fill(table, patterns, evidence, use_windows=use_windows)
    ranks = tuple(sorted(set(table.ranks) | set(hosts)))
    share, busy, rows = table.arrays(ranks, "")
    others_share, others_busy, others = table.arrays(ranks, None)
    return JobView(
        ranks=ranks,
        rows=rows,
        share_FR=share,
        busy_FR=busy,
        others=others,
        others_share_FR=others_share,
        others_busy_FR=others_busy,
        world_size=_world_size(patterns, evidence, ranks),
        parameters=parameters,
        evidence=evidence,
        patterns=tuple(patterns),
        project=project,
        source=source,
        settings=settings,
        hosts=hosts,
        warnings=warnings,
    )


def _fill(
    table: "_Table",
    patterns: Sequence[RankPatterns],
    evidence: JobEvidence | None,
    *,
    use_windows: bool,
) -> str:
    """Put the stacks of all ranks into the table; return where they are from."""
    everyone = evidence.ranks if evidence else ()
    sampled = {
        r.rank: r.samples for r in everyone if r.samples is not None and r.samples.num_samples > 0
    }
    profiled = [p for p in patterns if not p.is_sampled]
    on_device = has_kernels(profiled)
    source = "none"
    if use_windows and profiled:
        sampled = {}
    if sampled and not on_device and len(sampled) * 2 > len({p.rank for p in profiled}):
        source = "samples"
        knows_busy = any(s.active_count for one in sampled.values() for s in one.stacks)
        for rank, samples in sorted(sampled.items()):
            table.add_samples(rank, samples.stacks, samples.num_samples, knows_busy)
    elif patterns:
        chosen = [p for p in patterns if p.is_sampled] if not on_device else []
        chosen = chosen or profiled
        source = "samples" if chosen[0].is_sampled else "profiler"
        for one in chosen:
            table.add_patterns(one)
    if source == "samples":
        return source
    for rank_evidence in everyone:
        table.add_stalls(rank_evidence)
    return "profiler" if source == "none" and table.rows else source


def has_kernels(patterns: Sequence[RankPatterns]) -> bool:
    """Whether the job computes on devices: any rank does, though not each has to."""
    return any(f.kind == "kernel" for p in patterns for f in p.functions)


def _world_size(
    patterns: Sequence[RankPatterns], evidence: JobEvidence | None, ranks: tuple[int, ...]
) -> int:
    """Return how many ranks the job has, by what is told or by the largest number seen."""
    groups = next((p.groups for p in patterns if p.groups), {})
    members = max((max(group, default=-1) for group in groups.values()), default=-1)
    told = evidence.world_size if evidence else 0
    return max(told, members + 1, (max(ranks) + 1) if ranks else 0)


def _set_up(
    patterns: Sequence[RankPatterns], evidence: JobEvidence | None
) -> tuple[dict[int, tuple[Setting, ...]], dict[int, str]]:
    """Return each rank's settings and host; what the evidence says counts before patterns."""
    settings: dict[int, tuple[Setting, ...]] = {}
    hosts: dict[int, str] = {}
    for one in patterns:
        settings[one.rank] = one.settings
        hosts[one.rank] = one.host
    for rank_evidence in evidence.ranks if evidence else ():
        rank = rank_evidence.rank
        settings[rank] = rank_evidence.settings or settings.get(rank, ())
        hosts[rank] = rank_evidence.host or hosts.get(rank, "")
    return settings, hosts


class _Table:
    """Collects stacks of many ranks under one row each."""

    def __init__(self, project: Project, stall_factor: float) -> None:
        self.project, self.stall_factor = project, stall_factor
        self.row_ids: dict[object, int] = {}
        self.rows: list[Row] = []
        self.cells: dict[int, dict[int, list[float]]] = {}
        self.weights: dict[int, float] = {}

    @property
    def ranks(self) -> list[int]:
        return list(self.cells)

    def _row(
        self, key: object, frames: tuple[Place, ...], kind: str, process: str, fid: str
    ) -> int:
        found = self.row_ids.get(key)
        if found is None:
            found = self.row_ids[key] = len(self.rows)
            zone = zone_of(frames, kind)
            mine = project_frames(frames, self.project.contains)
            if zone in ("user", "other") and mine and mine[0] == frames[0]:
                zone = self._zone_of_line(mine[0]) or zone
            self.rows.append(Row(frames, zone, mine, kind, fid, process))
        return found

    def _zone_of_line(self, place: Place) -> Zone | None:
        """Built-in calls leave no frame in a sampled stack; the line they stand on tells."""
        text = self.project.line_text(place.file, place.line)
        if "gc.collect(" in text:
            return "gc"
        return "checkpoint" if "torch.save(" in text else None

    def _add(self, rank: int, row: int, share: float, busy: float) -> None:
        cell = self.cells.setdefault(rank, {}).setdefault(row, [0.0, 0.0])
        cell[0] += share
        cell[1] += busy

    def add_samples(
        self, rank: int, stacks: Sequence[SampledStack], num_samples: int, knows_busy: bool
    ) -> None:
        main = training_thread(stacks)
        self.cells.setdefault(rank, {})
        outside = self._outside_training(stacks, main)
        num_samples = max(1, num_samples - sum(s.count for s in outside.values()))
        self.weights[rank] = self.weights.get(rank, 0.0) + 1.0
        for stack in stacks:
            if id(stack) in outside or not stack.frames:
                continue
            process = stack.process or ("" if stack.thread == main else f"thread {stack.thread}")
            row = self._row((stack.frames, process), stack.frames, "python", process, "")
            busy = stack.active_count / num_samples if knows_busy else np.nan
            self._add(rank, row, stack.count / num_samples, busy)

    def add_stalls(self, evidence: RankEvidence) -> None:
        """Stacks taken in steps far over the median, with the share of time such steps take.

        A window of a few steps misses what happens every hundredth; these samples stand for it.
        Start-up and the profiler's own windows are left out.
        """
        steps = evidence.steps
        if steps is None or not evidence.stalls or len(steps.duration_ns) < 10:
            return
        durations = np.asarray(steps.duration_ns, dtype=np.float64)
        begin = warm_up(durations)
        kept = durations[begin:]
        rare = kept > self.stall_factor * np.median(kept)
        share = float(kept[rare].sum() / kept.sum()) if kept.sum() else 0.0
        stacks = [
            thread.frames
            for stall in evidence.stalls
            if stall.step >= steps.first_step + begin
            for thread in stall.stacks.threads
            if thread.is_main and thread.frames and not _profiles(thread.frames)
        ]
        if not stacks or share <= 0:
            return
        cells = self.cells.setdefault(evidence.rank, {})
        for cell in cells.values():
            cell[0] *= 1 - share
            cell[1] *= 1 - share
        weight = self.weights.setdefault(evidence.rank, 1.0)
        for frames in stacks:
            row = self._row((frames, ""), frames, "python", "", "")
            self._add(evidence.rank, row, share * weight / len(stacks), np.nan)

    def _outside_training(
        self, stacks: Sequence[SampledStack], main: str
    ) -> dict[int, SampledStack]:
        """Samples of the training thread while it imported, or ended, or was caught half-way.

        They carry none of the project's functions; where no stack does, nothing is dropped.
        """
        mine = [s for s in stacks if not s.process and s.thread == main]
        bare = [
            s
            for s in mine
            if not project_frames(s.frames, self.project.contains)
            or zone_of(s.frames) in ("import",)
        ]
        return {id(s): s for s in bare} if len(bare) < len(mine) else {}

    def add_patterns(self, one: RankPatterns) -> None:
        self.cells.setdefault(one.rank, {})
        self.weights[one.rank] = self.weights.get(one.rank, 0.0) + 1.0
        is_cpu_time = one.is_sampled or "cpu" in one.proxy.lower()
        for position, function in enumerate(one.functions):
            beta = float(one.beta_F[position])
            frames = (
                Place(name=function.name, file=function.file, line=function.line),
                *function.stack,
            )
            row = self._row(function.id, frames, function.kind, "", function.id)
            knows = is_cpu_time and function.kind == "python"
            self._add(one.rank, row, beta, beta * float(one.mu_F[position]) if knows else np.nan)

    def arrays(
        self, ranks: tuple[int, ...], process: str | None
    ) -> tuple[Float64, Float64, tuple[Row, ...]]:
        """Return shares, busy shares and rows: of the training thread, or (None) of all others."""
        kept = [
            i for i, row in enumerate(self.rows) if (row.process == "") == (process is not None)
        ]
        place = {row: position for position, row in enumerate(kept)}
        share = np.zeros((len(kept), len(ranks)))
        busy = np.zeros((len(kept), len(ranks)))
        for column, rank in enumerate(ranks):
            weight = self.weights.get(rank, 1.0)
            for row, (value, active) in self.cells.get(rank, {}).items():
                position = place.get(row)
                if position is not None:
                    share[position, column] = value / weight
                    busy[position, column] = active / weight
        return share, busy, tuple(self.rows[i] for i in kept)
