"""What find_inputs hands on: files by kind, each with the rank it is of."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from eroica.records import Warning


@dataclass(frozen=True)
class TraceInput:
    """A profiler trace that will be read later."""

    path: Path
    rank: int | None
    world_size: int | None = None
    num_bytes: int = 0
    """On disk."""
    host: str = ""
    is_rank_guessed: bool = False
    """The trace tells no rank: it was numbered in the order of the names."""
    backend: str = ""


@dataclass(frozen=True)
class FileInput:
    """A small file of one rank, or of the job where ``rank`` is None."""

    path: Path
    rank: int | None = None
    host: str = ""
    others: tuple[Path, ...] = ()
    """Further files of the same kind and rank, for where this one is damaged."""


@dataclass(frozen=True)
class Inputs:
    """Everything found below the paths a user named, by kind."""

    traces: tuple[TraceInput, ...] = ()
    flights: tuple[FileInput, ...] = ()
    stacks: tuple[FileInput, ...] = ()
    logs: tuple[FileInput, ...] = ()
    nsys: tuple[TraceInput, ...] = ()
    """One entry a rank: an export can hold several processes."""
    timelines: tuple[FileInput, ...] = ()
    hardware: tuple[FileInput, ...] = ()
    patterns: tuple[Path, ...] = ()
    incidents: tuple[Path, ...] = ()
    pids: tuple[FileInput, ...] = ()
    tasks: tuple[FileInput, ...] = ()
    """Lists of threads with state and wait channel, as ``eroica collect`` writes them."""
    evidence: tuple[Path, ...] = ()
    """What ``eroica collect`` wrote: evidence.json files."""
    unknown: tuple[Path, ...] = ()
    warnings: tuple[Warning, ...] = ()

    @property
    def world_size(self) -> int | None:
        """As the traces tell it."""
        return max((trace.world_size or 0 for trace in self.traces), default=0) or None


T = TypeVar("T")
U = TypeVar("U")


class Run(Protocol):
    """``map``, or something like it that uses more than one core."""

    def __call__(self, function: Callable[[T], U], items: Iterable[T], /) -> Iterable[U]: ...
