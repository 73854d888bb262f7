"""Bulk data as columns: the events of one rank, the patterns of many.

Shape suffixes: E events of a rank, F functions, R ranks, S steps.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eroica.records import Function, Setting, Warning

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int16 = NDArray[np.int16]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Track:
    """A thread or a device stream of one rank."""

    pid: str
    tid: str
    name: str = ""
    is_device: bool = False
    device: int | None = None
    stream: int | None = None


@dataclass(frozen=True)
class CollectiveColumns:
    """Collective calls of one rank's trace in the order they ran. Rows index into the events."""

    event_C: Int64
    """Index into the timeline's event columns."""
    op_id_C: Int32
    """Index into ``ops``: ``all_reduce``, ``send_recv`` ..."""
    group_id_C: Int32
    """Index into ``groups``; 0 is the unknown group where the trace carries no metadata."""
    sequence_C: Int64
    """``Seq`` where the trace has it, else -1."""
    num_bytes_C: Int64
    """Payload, -1 where unknown."""
    ops: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Timeline:
    """One rank's profiler trace. Event columns are in file order and equally long.

    Times are exact int64 nanoseconds since ``base_ns`` (Unix epoch); ``base_ns + start_ns_E`` is
    the absolute time. Only complete events are kept (ph ``X``).
    """

    path: str
    rank: int | None
    world_size: int | None
    start_ns_E: Int64
    duration_ns_E: Int64
    name_id_E: Int32
    category_id_E: Int16
    track_id_E: Int32
    python_id_E: Int64
    """Kineto's ``Python id``; -1 where none."""
    python_parent_E: Int64
    """Kineto's ``Python parent id``; -1 at a root or where none."""
    correlation_E: Int64
    """Links a launch to its kernel; -1 where none."""
    names: tuple[str, ...]
    categories: tuple[str, ...]
    """Lower case, as torch >= 1.13 writes them."""
    tracks: tuple[Track, ...]
    collectives: CollectiveColumns
    base_ns: int = 0
    host: str = ""
    backend: str = ""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Process group name to global ranks, from distributedInfo."""
    window: tuple[int, int] | None = None
    """(start, end) the profiler recorded, relative to base; None: take first and last event."""
    metadata: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[Warning, ...] = ()
    num_bytes: int = 0
    """Uncompressed size read."""

    @property
    def num_events(self) -> int:
        return len(self.start_ns_E)

    @property
    def end_ns_E(self) -> Int64:
        return self.start_ns_E + self.duration_ns_E

    def self_check(self) -> None:
        """Assert what every reader owes: equal lengths, valid ids, no negative time."""
        columns = (self.duration_ns_E, self.name_id_E, self.category_id_E, self.track_id_E)
        assert all(len(column) == self.num_events for column in columns)
        if self.num_events:
            assert self.duration_ns_E.min() >= 0
            assert 0 <= self.name_id_E.min() and self.name_id_E.max() < len(self.names)
            assert 0 <= self.category_id_E.min() and self.category_id_E.max() < len(self.categories)
            assert 0 <= self.track_id_E.min() and self.track_id_E.max() < len(self.tracks)
        if len(self.collectives.event_C):
            assert self.collectives.event_C.max() < self.num_events


@dataclass(frozen=True)
class HardwareSamples:
    """Counters of one host or rank over time, 0..1 of the peak where ``is_fraction``."""

    time_ns_N: Int64
    """Unix time."""
    values_N: dict[str, NDArray[np.float64]]
    """Counter name (``gpu0.sm_activity``, ``nic.mlx5_0.tx_bytes_per_s`` ...) to samples."""
    rank: int | None = None
    host: str = ""


@dataclass(frozen=True)
class RankPatterns:
    """One rank's patterns: what a rank's window is squeezed to (30 KB packed)."""

    rank: int
    functions: tuple[Function, ...]
    beta_F: Float32
    """Share of the window in which the function is on the critical path; sums to <= 1."""
    mu_F: Float32
    sigma_F: Float32
    count_F: Int32
    """Executions seen."""
    total_ns_F: Int64
    """Summed duration of all executions, on the critical path or not."""
    window_ns: int
    num_steps: int | None = None
    host: str = ""
    proxy: str = ""
    """What mu and sigma were computed from, where no hardware counter was there."""
    is_sampled: bool = False
    """Made from sampled stacks: Python only."""
    breakdown: dict[str, float] = field(default_factory=dict)
    """compute, exposed_communication, memory, data, python, idle: fractions adding up to 1."""
    arrivals: "Arrivals | None" = None
    settings: tuple[Setting, ...] = ()
    warnings: tuple[Warning, ...] = ()
    reference_F: Float32 | None = None
    """The rate that mu = 1 stands for, where mu is relative to the best seen on this rank
    (executions or bytes a second); 0 where mu is absolute. ``merge`` uses it to make mu relative
    to the best of all ranks."""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Process groups of the rank, by name, where the trace says."""
    source: str = ""
    """File or process it was made from."""
    num_events: int = 0
    """Events it was made from, and their uncompressed bytes; 0 where that is not known."""
    num_bytes: int = 0


@dataclass(frozen=True)
class Arrivals:
    """When one rank entered and left each collective of the window, in its own order."""

    key_C: tuple[str, ...]
    """``group|op|k``: the k-th (or Seq-th) such collective of the group; equal over ranks."""
    start_ns_C: Int64
    end_ns_C: Int64
    """Relative to the trace's base; compare ranks by ends (collectives end together)."""
    num_bytes_C: Int64
    culprit_C: tuple[str, ...] = ()
    """Function id the rank spent most of the time in since its previous collective."""


@dataclass(frozen=True)
class PatternTable:
    """All ranks' patterns, function-major: the unit localization streams over."""

    functions: tuple[Function, ...]
    ranks_R: Int64
    beta_FR: Float32
    mu_FR: Float32
    sigma_FR: Float32
    """A function absent on a rank is (0, 0, 0)."""
    total_ns_FR: Int64 | None = None
    count_FR: Int32 | None = None
    window_ns_R: Int64 | None = None
    num_steps_R: Int32 | None = None
    hosts_R: tuple[str, ...] = ()
    roles_R: tuple[str, ...] = ()
    """Ranks of equal role are peers."""
