"""When a job is slow, stuck or stalling: pure functions of numbers and of the time given."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from eroica.config import Parameters
from eroica.units import NS_PER_S

_QUIET_CPU = 0.03  # of a core: what a thread uses that only wakes up to look
_BUSY_CPU = 0.10
_STARVED = 0.6  # of a core, on it or waiting for it
_QUIET_IO_BYTES_PER_S = 64 * 1024
_PATIENCE = 4  # times the limit, where there are weak signs of life
_DAY_S = 86400.0


class Progress(IntEnum):
    """How much speaks for a rank doing something."""

    NONE = 0
    WEAK = 1
    """It computes, reads or polls, but where it does so does not change."""
    STRONG = 2
    """Collectives finish, or its training thread computes at changing places."""


@dataclass(frozen=True)
class Activity:
    """One look at one rank; differences of two tell what it did between them."""

    time_ns: int
    position: int = 0
    """Events the hook has written."""
    training_cpu_ns: int = 0
    total_cpu_ns: int = 0
    """All threads of the rank and of its children."""
    waiting_ns: int = 0
    """Time they were ready to run and waited for a core."""
    io_bytes: int = 0
    retired: int = 0
    """Collectives completed, over all groups; 0 where it cannot be known."""
    places: tuple[str, ...] = ()
    """User functions on the training thread's stack; empty where it was not taken."""
    is_alive: bool = True
    is_stopped: bool = False
    is_leaving: bool = False
    """Its exit handlers run: no step will come, and its end may take some seconds."""
    is_profiled: bool = False
    """A window of ours is open or being closed: what looks like a stop may be its pause."""


def progress_between(before: Activity, after: Activity) -> Progress:
    """Say how much a rank did between two looks."""
    seconds = max(1e-3, (after.time_ns - before.time_ns) / NS_PER_S)
    if after.position != before.position:
        return Progress.STRONG
    training = (after.training_cpu_ns - before.training_cpu_ns) / NS_PER_S / seconds
    total = (after.total_cpu_ns - before.total_cpu_ns) / NS_PER_S / seconds
    moved = bool(before.places and after.places) and before.places != after.places
    retired = after.retired != before.retired
    # A heartbeat's collectives finish also while the training thread waits for ever.
    if (moved and training >= _BUSY_CPU) or (retired and (moved or training >= _QUIET_CPU)):
        return Progress.STRONG
    # On an overloaded host a working rank gets little CPU: then it waits for a core.
    starved = total + (after.waiting_ns - before.waiting_ns) / NS_PER_S / seconds >= _STARVED
    busy = retired or training >= _QUIET_CPU or total >= _BUSY_CPU or starved
    busy = busy or after.is_profiled or after.is_leaving
    io = (after.io_bytes - before.io_bytes) / seconds > _QUIET_IO_BYTES_PER_S
    return Progress.WEAK if busy or io else Progress.NONE


def silence_limit_s(mean_step_ns: float | None, parameters: Parameters) -> float:
    """Return how long ranks may be silent: max(5 x mean, 5 s) once an iteration is known."""
    if mean_step_ns is None:
        return parameters.stuck_unlearned_s
    return max(parameters.stuck_factor * mean_step_ns / NS_PER_S, parameters.stuck_min_s)


def is_stuck(silent_s: float, limit_s: float, progress: Sequence[Progress]) -> bool:
    """Whether a job is stuck: no rank did anything, or all only turn on the spot for long."""
    if silent_s < limit_s or not progress:
        return False
    most = max(progress)
    if most is Progress.NONE:
        return True
    return most is Progress.WEAK and silent_s >= _PATIENCE * limit_s


@dataclass
class SlowRule:
    """The paper's slow rule: mean of the last N steps more than 5 % above the recent best."""

    parameters: Parameters = field(default_factory=Parameters)
    best_ns: float | None = None
    mean_ns: float | None = None
    _last: list[int] = field(default_factory=list)
    _means: list[float] = field(default_factory=list)

    def add(self, duration_ns: int) -> bool:
        """Take one step's duration; True where the job is slow now."""
        number = self.parameters.slow_mean_steps
        self._last.append(duration_ns)
        if len(self._last) < number:
            return False
        del self._last[:-number]
        self.mean_ns = sum(self._last) / number
        self._means.append(self.mean_ns)
        del self._means[: -self.parameters.recent_steps]
        self.best_ns = min(self._means)
        limit_ns = self.parameters.slow_factor * self.best_ns
        if self.mean_ns <= limit_ns:
            return False
        # Noise of the mean: without this, a job whose steps scatter would be slow by chance.
        noise = statistics.pstdev(self._last) / number**0.5
        return bool(self.mean_ns - 3 * noise > limit_ns)


@dataclass
class WindowPolicy:
    """Whether a slow job may be looked at again; times are of a monotonic clock."""

    parameters: Parameters
    taken_at: list[float] = field(default_factory=list)
    mean_ns: float = 0.0
    """Mean step when the last window was taken."""

    def allows(self, now: float, mean_ns: float) -> bool:
        """Within a day's number, and ten minutes or a further 5 % after the last."""
        today = [taken for taken in self.taken_at if now - taken < _DAY_S]
        if len(today) >= self.parameters.windows_per_day:
            return False
        if not today or now - today[-1] >= self.parameters.window_interval_s:
            return True
        return mean_ns > self.parameters.slow_factor * self.mean_ns

    def note(self, now: float, mean_ns: float) -> None:
        self.taken_at.append(now)
        self.mean_ns = mean_ns


def is_stalling(elapsed_ns: int, durations_ns: Sequence[int], parameters: Parameters) -> bool:
    """Whether the current step is far beyond the median of the last ones."""
    if len(durations_ns) < 5:
        return False
    return elapsed_ns > parameters.stall_factor * statistics.median(durations_ns)


def best_and_last_ms(durations_ns: Sequence[int], number: int = 20) -> tuple[float, float]:
    """Return the best and the last mean of ``number`` steps, in ms; fewer steps, fewer a mean."""
    number = max(1, min(number, len(durations_ns) // 2))
    means = [
        sum(durations_ns[i : i + number]) / number / 1e6
        for i in range(0, len(durations_ns) - number + 1, number)
    ]
    last = sum(durations_ns[-number:]) / number / 1e6
    return min([*means, last]), last
