"""Learns what one iteration is from the order of events, and cuts a rank's time into steps.

Tokens are completed loader nexts and optimizer steps with their owners. The iteration is the
shortest sequence of tokens that repeats M times in a row (paper: M = 10) and holds an optimizer
step where there is any: gradient accumulation, several optimizers and an optimizer per parameter
all come out of the same rule. Until that is seen, every step of the first optimizer counts.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from eroica.collect.hook.layout import MARK, NEXT_IN, NEXT_OUT, STEP_IN, STEP_OUT
from eroica.collect.rings import Event

Token = tuple[int, int]
_MAX_PERIOD = 2048  # an optimizer a parameter, stepped in the backward pass
_MAX_TOKENS = 20480
_KEPT_TOKENS = 2048  # once learned: enough to learn anew from what comes when the loop changes
_MAX_STEPS = 20_000  # a watch lasts weeks, and each incident carries them: 1 MB a rank
_FEW_STEPS = 4
_LONG_NS = 6_000_000_000  # M equal iterations may take longer than a user waits


def find_period(tokens: Sequence[Token], repeats: int) -> int | None:
    """Return the length of the shortest sequence that ends ``tokens`` ``repeats`` times in a row.

    A sequence without a step or mark counts only where ``tokens`` has none at all: an
    evaluation's loader repeats as well.
    """
    if not tokens:
        return None
    has_steps = any(kind != NEXT_OUT for kind, _ in tokens)
    last = tokens[-1]
    for period in range(1, min(_MAX_PERIOD, len(tokens) // repeats) + 1):
        if repeats > 1 and tokens[-period - 1] != last:
            continue
        if has_steps and all(kind == NEXT_OUT for kind, _ in tokens[-period:]):
            continue
        start = len(tokens) - period * repeats
        if tokens[start:-period] == tokens[start + period :]:
            return period
    return None


@dataclass(slots=True)
class Step:
    """One iteration of one rank; times are CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int
    data_ns: int = 0
    optimizer_ns: int = 0

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass
class Iteration:
    """One rank's events turned into steps, as they come."""

    learn_repeats: int = 10
    lost_events: int = 200
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=_MAX_STEPS))
    num_steps: int = 0
    """Steps ever seen, also those no longer kept."""
    period: int | None = None
    _pattern: tuple[Token, ...] = ()
    _tokens: list[Token] = field(default_factory=list)
    _parts: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each token: when it came, and what it took in a loader and in an optimizer."""
    _first_end_ns: int | None = None
    _border: Token | None = None
    _has_step: bool = False
    _strays: int = 0
    _untried: int = 0
    _num_tries: int = 0
    _previous: Token | None = None
    _depth: int = 0
    _num_nested: int = 0
    _nested_per_step: int = 0
    _at: int = 0
    _previous_end_ns: int | None = None
    _data_ns: int = 0
    _optimizer_ns: int = 0
    _loader_since: int | None = None
    _optimizer_since: int | None = None

    @property
    def is_learned(self) -> bool:
        return self.period is not None

    @property
    def is_slow_enough(self) -> bool:
        """Whether steps are so long that waiting for M of them would be waiting too long."""
        if len(self.steps) < _FEW_STEPS:
            return False
        return self.steps[-1].end_ns - self.steps[0].start_ns > _LONG_NS

    @property
    def border(self) -> Token | None:
        """The token that ends an iteration."""
        return self._border

    @property
    def borders_per_step(self) -> int:
        """How many events of the border's kind one iteration has: the hook counts those."""
        if not self._pattern or self._border is None:
            return 1
        number = sum(kind == self._border[0] for kind, _ in self._pattern)
        return max(1, number) + self._nested_per_step

    def add(self, events: Iterable[Event]) -> None:
        """Take the next events of the ring."""
        for event in events:
            if event.kind == NEXT_IN:
                self._loader_since = event.time_ns
            elif event.kind == STEP_IN:
                # A subclass whose step calls its parent's, where torch wrapped both, counts once.
                self._depth = self._depth + 1 if self._previous == (STEP_IN, event.owner) else 1
                if self._depth == 1:
                    self._optimizer_since = event.time_ns
            elif event.kind == STEP_OUT and self._depth > 1:
                self._depth -= 1
                self._num_nested += 1
            else:
                self._depth = 0
                self._end_part(event)
            self._previous = (event.kind, event.owner)

    def _end_part(self, event: Event) -> None:
        data_ns = optimizer_ns = 0
        if event.kind == NEXT_OUT and self._loader_since is not None:
            data_ns = event.time_ns - self._loader_since
            self._loader_since = None
        if event.kind == STEP_OUT and self._optimizer_since is not None:
            optimizer_ns = event.time_ns - self._optimizer_since
            self._optimizer_since = None
        self._data_ns += data_ns
        self._optimizer_ns += optimizer_ns
        token = (event.kind, event.owner)
        self._tokens.append(token)
        self._parts.append((event.time_ns, data_ns, optimizer_ns))
        limit = _KEPT_TOKENS if self._pattern else _MAX_TOKENS
        if len(self._tokens) > 2 * limit:
            del self._tokens[:-limit], self._parts[:-limit]
        self._follow(token)
        if self._border is None and event.kind in (STEP_OUT, MARK):
            self._border = token
        if token == self._border and self._is_last_of_burst():
            self._end_step(event.time_ns)

    def _is_last_of_burst(self) -> bool:
        """Where the border's token comes several times an iteration, only the last one counts."""
        if not self._pattern or self._border is None:
            return True
        repeats = self._pattern.count(self._border)
        return repeats == 1 or self._at == 0

    def _follow(self, token: Token) -> None:
        """Keep step with the learned sequence; learn (anew) where there is none to keep to."""
        if self._pattern and token[0] != NEXT_OUT and not self._has_step:
            # What was learned was an evaluation before the training.
            self._pattern, self.period, self._border = (), None, None
            self._forget_steps(0)
        if self._pattern:
            if token == self._pattern[self._at]:
                self._at = (self._at + 1) % len(self._pattern)
                if self._at == 0:
                    self._strays = 0
                return
            self._strays += 1
            self._at = 1 % len(self._pattern) if token == self._pattern[0] else 0
            if self._strays < self.lost_events:
                return
            self._pattern, self.period, self._strays = (), None, 0
        # A loop without a fixed sequence is tried ever more rarely: a try costs up to 1 ms.
        self._untried += 1
        if self._untried <= self._num_tries // 20:
            return
        self._untried, self._num_tries = 0, self._num_tries + 1
        period = find_period(self._tokens[-_MAX_PERIOD * self.learn_repeats :], self.learn_repeats)
        if period is not None:
            self._learn(period)

    def _learn(self, period: int) -> None:
        sequence = list(self._tokens[-period:])
        ends = [i for i, (kind, _) in enumerate(sequence) if kind in (STEP_OUT, MARK)]
        last = ends[-1] if ends else len(sequence) - 1
        # The sequence is turned so that it ends with the step: an iteration ends there.
        self._pattern = tuple(sequence[last + 1 :] + sequence[: last + 1])
        self._border = self._pattern[-1]
        self._has_step = bool(ends)
        self._at = len(sequence) - last - 1
        self.period = period
        self._count_anew(period, len(self._tokens) - period + last)
        self._strays = self._num_tries = 0

    def _end_step(self, time_ns: int) -> None:
        if self._previous_end_ns is not None:
            self.steps.append(
                Step(self._previous_end_ns, time_ns, self._data_ns, self._optimizer_ns)
            )
        self._first_end_ns = self._first_end_ns or time_ns
        self.num_steps += 1
        self._nested_per_step, self._num_nested = self._num_nested, 0
        self._previous_end_ns = time_ns
        self._data_ns = self._optimizer_ns = 0

    def _count_anew(self, period: int, border_at: int) -> None:
        """Cut the steps of the repeated sequence again, now that its end is known.

        Until then any step of the first optimizer passed for an iteration. The newest token is
        left out: what it ends is still to be noted.
        """
        start = len(self._tokens) - period * self.learn_repeats
        while start > 0 and self._tokens[start - 1] == self._tokens[start - 1 + period]:
            start -= 1
        first = start + (border_at - start) % period
        ends = range(first, len(self._tokens) - 1, period)
        self._forget_steps(self._parts[start][0])
        at = start
        for end in ends:
            self._data_ns = sum(data for _, data, _ in self._parts[at : end + 1])
            self._optimizer_ns = sum(part for _, _, part in self._parts[at : end + 1])
            self._end_step(self._parts[end][0])
            at = end + 1
        self._data_ns = sum(data for _, data, _ in self._parts[at:])
        self._optimizer_ns = sum(part for _, _, part in self._parts[at:])

    def _forget_steps(self, since_ns: int) -> None:
        while self.steps and self.steps[-1].end_ns >= since_ns:
            self.steps.pop()
            self.num_steps -= 1
        self._previous_end_ns = self.steps[-1].end_ns if self.steps else self._first_end_ns
        if self._first_end_ns is not None and self._first_end_ns >= since_ns:
            self.num_steps -= 1
            self._previous_end_ns = self._first_end_ns = None
