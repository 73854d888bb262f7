"""Groups of ranks that wait alike, and reasons why one group passed the collective of another."""

from dataclasses import dataclass

from eroica.localize.source_depend import FILE, RANK, REGISTERED
from eroica.localize.waits import Wait
from eroica.records import Place

PROVEN, RANK_LIKELY, LIKELY, POSSIBLE, WEAK = 1.0, 0.8, 0.7, 0.5, 0.1


@dataclass(frozen=True)
class Group:
    """Ranks that wait at the same place."""

    ranks: tuple[int, ...]
    wait: Wait

    @property
    def path(self) -> tuple[Place, ...]:
        """User frames, outermost first."""
        return tuple(reversed(self.wait.user))


@dataclass(frozen=True)
class Reason:
    """Why ``skipper`` does not wait where ``waiter`` waits."""

    kind: str
    """``condition``, ``guard``, ``handler``, ``break``, ``loop``, ``while``, ``dispatch`` or
    ``forward``."""
    score: float
    waiter: Group
    skipper: Group
    place: Place
    """Of the deciding statement."""
    text: str
    """Its condition, as in the source."""
    tags: frozenset[str] = frozenset()
    jump: str = ""
    repeats: bool = False
    """The collective stands in a loop over items, once for each."""
    is_early: bool = False
    """Of the first place where histories came apart, not of where the ranks hang."""


def category_of(reason: Reason) -> str:
    """Name the category of a reason for a collective that was passed."""
    if reason.kind == "handler":
        return "exception_swallowed"
    if reason.kind == "dispatch" or (reason.kind == "loop" and REGISTERED in reason.tags):
        return "rank_conditional_collective"
    if reason.kind == "loop":
        return "collective_count_mismatch" if reason.repeats else "uneven_inputs"
    if reason.kind in ("condition", "guard", "break"):
        if RANK in reason.tags and reason.score >= RANK_LIKELY:
            return "rank_conditional_collective"
        if FILE in reason.tags and reason.kind == "condition":
            return "rank_conditional_collective"
        if reason.repeats:
            return "collective_count_mismatch"
    return "divergent_control_flow"
