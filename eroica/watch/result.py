"""What a watch of a job gives."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eroica.columns import HardwareSamples, RankPatterns
from eroica.records import JobEvidence

if TYPE_CHECKING:
    from eroica.watch.team import Team
    from eroica.watch.wire import VerdictPlace


@dataclass
class WatchResult:
    """What one watch of a job gave, or one incident of a job that is watched on."""

    evidence: JobEvidence
    patterns: list[RankPatterns] = field(default_factory=list)
    """One a rank, of the last window; empty where no window was had."""
    hint: str | None = None
    """``failed``, ``stuck``, ``slow``, ``healthy``; None: nothing was learned."""
    exit_code: int | None = None
    """Of the command where it ended by itself; None where the watch ended it."""
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    baseline: list[RankPatterns] = field(default_factory=list)
    """Patterns of the job's own healthy time, where a window was had then."""
    hardware: list[HardwareSamples] = field(default_factory=list)
    """Counters of the last minute, of each rank and of the host."""
    window: int | None = None
    """Number of the window that the patterns are from."""
    team: "Team | None" = None
    """Of the host of rank 0 of a job on several: the others wait to hear where the verdict is."""
    elsewhere: "VerdictPlace | None" = None
    """Where the verdict is, if another host of the job has it."""
