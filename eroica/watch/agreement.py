"""When hosts of one job agree that its watch is over, and with what: pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """What one host's own rules say: "" (nothing yet), stuck, failed, healthy, unknown."""

    hint: str
    is_ended: bool = False
    """Its command has ended."""


def decide(own: Said, others: Sequence[Said]) -> str | None:
    """Return the job's hint, decided at the host of rank 0; None: watch on.

    A failure counts at once. A host that is silent while another one works only waits for it: a
    job is stuck when every host that has not ended is. A watch whose time is up ends the others'.
    """
    if "failed" in (own.hint, *(one.hint for one in others)):
        return "failed"
    if not own.hint:
        return None
    is_time_up = own.hint != "stuck" and not own.is_ended
    if not others or is_time_up:
        return own.hint
    everyone = (own, *others)
    if not all(one.hint for one in everyone):
        return None
    running = [one for one in everyone if not one.is_ended]
    if running and all(one.hint == "stuck" for one in running):
        return "stuck"
    return "healthy"


def is_stuck_everywhere(others: Sequence[Said]) -> bool:
    """Whether the other hosts are as stuck as this one is."""
    return all(one.hint == "stuck" or one.is_ended for one in others)


def joined_hint(own: str | None, others: Sequence[str]) -> str | None:
    """The hint for all reports: one host may see others wait on for a rank that failed."""
    said = (own or "", *others)
    for hint in ("stuck", "failed"):
        if hint in said:
            return hint
    return own
