"""When a job is slow, stuck or stalling: pure functions of numbers and of the time given."""

import math
import operator
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
_LONG_PATIENCE = 60  # likewise, where they look like work
_FEW_LOOKS = 4
_MUCH_IO_BYTES_PER_S = 1 << 20
_MUCH_CPU = 0.5  # of a core, of children
_DAY_S = 86400.0
_SURE = 4.5  # standard errors; a job is judged a million times


class Progress(IntEnum):
    """How much speaks for a rank doing something."""

    NONE = 0
    WEAK = 1
    """It computes, reads or polls, but where it does so does not change."""
    LIKELY = 2
    """What a long evaluation, checkpoint or compilation looks like from outside: its
    stacks change, or bytes move. A loop without an end may look like that too."""
    STRONG = 3
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
    children_cpu_ns: int = 0
    is_in_storage: bool = False
    """Its training thread or a child waits for a disk or a network file system (state D)."""
    stack: int = 0
    """Stands for all frames and lines of the training thread; 0 where it was not taken."""
    places: tuple[str, ...] = ()
    """User functions on the training thread's stack; empty where it was not taken."""
    is_alive: bool = True
    is_stopped: bool = False
    is_leaving: bool = False
    """Its exit handlers run: no step will come, and its end may take some seconds."""
    is_profiled: bool = False
    """A window of ours is open or being closed: what looks like a stop may be its pause."""


def progress_between(before: Activity, after: Activity, *, is_varied: bool = False) -> Progress:
    """Say how much a rank did between two looks.

    ``is_varied``: its training thread's stack was another one at most looks so far.
    """
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
    io = (after.io_bytes - before.io_bytes) / seconds
    children = (after.children_cpu_ns - before.children_cpu_ns) / NS_PER_S / seconds
    if (
        (is_varied and training >= _BUSY_CPU)
        or io >= _MUCH_IO_BYTES_PER_S
        or children >= _MUCH_CPU
        or after.is_in_storage
    ):
        return Progress.LIKELY
    return Progress.WEAK if busy or io > _QUIET_IO_BYTES_PER_S else Progress.NONE


def is_varied(stacks: Sequence[int]) -> bool:
    """Whether a thread's stacks, one a look, are those of real work: mostly new ones.

    A loop that polls has a handful, however often one looks.
    """
    taken = [stack for stack in stacks if stack]
    return len(taken) >= _FEW_LOOKS and len(set(taken)) >= 0.75 * len(taken)


def silence_limit_s(mean_step_ns: float | None, parameters: Parameters) -> float:
    """Return how long ranks may be silent: max(5 x mean, 5 s) once an iteration is known."""
    if mean_step_ns is None:
        return parameters.stuck_unlearned_s
    return max(parameters.stuck_factor * mean_step_ns / NS_PER_S, parameters.stuck_min_s)


def is_stuck(
    silent_s: float, limit_s: float, progress: Sequence[Progress], *, is_patient: bool = False
) -> bool:
    """Whether a job is stuck: no rank did anything, or all only turn on the spot for long.

    ``is_patient``: what is likely to be work is given far longer; for a watch with time to wait.
    """
    if silent_s < limit_s or not progress:
        return False
    most = max(progress)
    if most is Progress.NONE:
        return True
    if most is Progress.STRONG:
        return False
    is_likely = is_patient and most is Progress.LIKELY
    return silent_s >= (_LONG_PATIENCE if is_likely else _PATIENCE) * limit_s


def mean_and_noise(values: Sequence[int]) -> tuple[float, float]:
    """Return the mean, and by how much it scatters: the standard error."""
    number, total = len(values), sum(values)
    squares = sum(map(operator.mul, values, values))
    # Whole numbers, so that nothing is lost by the difference.
    return total / number, math.sqrt((number * squares - total * total) / number) / number


def without_pauses(values: Sequence[int], factor: float) -> list[int]:
    """Return the steps that are no pause: evaluations, checkpoints and epoch ends are."""
    limit = factor * sorted(values)[len(values) // 2]
    return [value for value in values if value <= limit]


@dataclass
class _Scale:
    """The slow rule over one number of steps; means of whole blocks are what it compares with.

    Blocks do not overlap: the best of a thousand overlapping means is good by chance alone.
    """

    num_steps: int
    parameters: Parameters
    _all: list[tuple[float, float]] = field(default_factory=list)
    _regular: list[tuple[float, float]] = field(default_factory=list)

    @property
    def best_ns(self) -> float | None:
        return min(self._all)[0] if self._all else None

    def add(self, number: int, last: Sequence[int]) -> bool:
        """Judge the ``last`` steps; ``number`` counts all there were."""
        is_block_full = number % self.num_steps == 0
        is_due = is_block_full or number % max(1, self.num_steps // 20) == 0
        if len(last) < self.num_steps or not is_due:
            return False
        window = last[-self.num_steps :]
        is_slow = False
        regular = without_pauses(window, self.parameters.stall_factor)
        for blocks, values in ((self._all, window), (self._regular, regular)):
            now = mean_and_noise(values)
            is_slow = is_slow or (bool(blocks) and self._is_slower(now, min(blocks)))
            if is_block_full:
                blocks.append(now)
                del blocks[: -max(1, self.parameters.recent_steps // self.num_steps)]
        return is_slow

    def _is_slower(self, now: tuple[float, float], best: tuple[float, float]) -> bool:
        """Whether the mean is above the limit by more than both means scatter."""
        factor = self.parameters.slow_factor
        noise = math.hypot(now[1], factor * best[1])
        return now[0] - factor * best[0] > _SURE * noise


@dataclass
class SlowRule:
    """The paper's slow rule: mean of the last N steps more than 5 % above the recent best.

    Ours beside it: 4 N steps, for jobs whose steps scatter; the same without pauses, so that a
    long evaluation hides nothing; and a mean must be sure. The first ``num_settling`` steps
    (caches, compilation, a full prefetch queue) are not counted.
    """

    parameters: Parameters = field(default_factory=Parameters)
    num_settling: int = 20
    mean_ns: float | None = None
    _num_steps: int = 0
    _last: list[int] = field(default_factory=list)
    _scales: list[_Scale] = field(default_factory=list)

    def __post_init__(self) -> None:
        number = self.parameters.slow_mean_steps
        self._scales = [_Scale(n, self.parameters) for n in (number, 4 * number)]

    @property
    def best_ns(self) -> float | None:
        """The best recent mean of N steps; None before there were so many."""
        return self._scales[0].best_ns

    def add(self, duration_ns: int) -> bool:
        """Take one step's duration; True where the job is slow now."""
        self._num_steps += 1
        if self._num_steps <= self.num_settling:
            return False
        self._last.append(duration_ns)
        del self._last[: -self._scales[-1].num_steps]
        number = self.parameters.slow_mean_steps
        if len(self._last) >= number:
            self.mean_ns = sum(self._last[-number:]) / number
        count = self._num_steps - self.num_settling
        said = [scale.add(count, self._last) for scale in self._scales]
        return any(said)


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
