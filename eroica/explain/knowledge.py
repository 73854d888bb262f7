"""What is known of each category of cause: how it comes about, what to do, what would disprove it.

The texts are templates over the facts of one cause: ``{place}``, ``{ranks}`` ("rank 2"),
``{hosts}``, and ``{s}``, ``{es}``, ``{is}``, ``{has}``, ``{its}``, ``{it}`` for words that agree
with the ranks. They hold for the kind of fault; everything particular comes from findings.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Knowledge:
    """One category, for people."""

    title: str
    mechanism: str
    steps: tuple[str, ...]
    disproved_by: tuple[str, ...]


def lookup(category: str) -> Knowledge:
    """Return what is known of a category; an unknown one gets a neutral text."""
    from eroica.explain.knowledge_slow import SLOW
    from eroica.explain.knowledge_stuck import STUCK

    return STUCK.get(category) or SLOW.get(category) or _UNKNOWN


_UNKNOWN = Knowledge(
    "unclassified cause",
    "The measurements set {ranks} apart; the kind of fault is not one of the known ones.",
    ("Look at {place} on {ranks} first, then collect what the report lists as not seen.",),
    ("The same measurement on a second window shows no difference between the ranks.",),
)
