"""What a rule says: one possible cause of a stuck or failed job with its reasons."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from eroica.localize.source import Project
from eroica.records import Action, Cause, Place
from eroica.text import function_name

Ranks = tuple[int, ...] | Literal["all"]


@dataclass(frozen=True)
class Suspect:
    """A cause before it is ranked against the others."""

    category: str
    ranks: Ranks
    places: tuple[Place, ...]
    """[0] holds the fault, [1] its caller or where it was set up."""
    confidence: float
    summary: str
    why: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    advice: str = ""
    action: Action = "patch"
    victims: tuple[int, ...] = ()

    def cause(self, number: int, findings: tuple[str, ...], hosts: dict[int, str]) -> Cause:
        ranks: Iterable[int] = hosts if self.ranks == "all" else self.ranks
        named = {hosts[r] for r in ranks if hosts.get(r)}
        return Cause(
            id=f"C{number}",
            category=self.category,
            ranks=self.ranks,
            functions=distinct(self.places),
            share=None,
            confidence=round(min(max(self.confidence, 0.05), 0.99), 2),
            summary=self.summary,
            action=self.action,
            hosts=tuple(sorted(named)),
            findings=findings,
            victims=self.victims,
            why=self.why,
            against=self.against,
            advice=self.advice,
        )


def distinct(places: Iterable[Place]) -> tuple[Place, ...]:
    """Return the places without repetitions, at most four."""
    seen: dict[tuple[str | None, int | None, str], Place] = {}
    for place in places:
        seen.setdefault((place.file, place.line, place.name), place)
    return tuple(seen.values())[:4]


def at(place: Place | None, project: Project) -> str:
    """``save (train.py:28)`` for prose."""
    if place is None:
        return "an unknown place"
    return f"{function_name(place.name)} ({project.name_in_root(place.file)}:{place.line})"
