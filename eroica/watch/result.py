"""What a watch of a job gives."""

from dataclasses import dataclass, field

from eroica.columns import HardwareSamples, RankPatterns
from eroica.records import JobEvidence


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
