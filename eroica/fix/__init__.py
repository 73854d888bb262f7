"""Causes -> patches, checked and rehearsed."""

from eroica.fix.answer import Refusal, from_answer
from eroica.fix.apply import apply, compatible, undo
from eroica.fix.propose import propose
from eroica.fix.rehearse import rehearse

__all__ = [
    "Refusal",
    "apply",
    "compatible",
    "from_answer",
    "propose",
    "rehearse",
    "undo",
]
