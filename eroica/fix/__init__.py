"""Causes -> patches, checked and rehearsed."""

from eroica.fix.answer import Refusal, from_answer
from eroica.fix.apply import apply, compatible, undo
from eroica.fix.propose import best_patches, propose
from eroica.fix.rehearse import rehearse

__all__ = [
    "Refusal",
    "apply",
    "best_patches",
    "compatible",
    "from_answer",
    "propose",
    "rehearse",
    "undo",
]
