"""A patch as hunks that can be decided one by one, and the text that the accepted ones make.

The unit of decision is a change: one run of lines replaced by another. A hunk is one or more
changes close to each other, shown with their context; splitting it gives one hunk a change. All
changes of a file refer to the same text before, so accepted changes of several patches combine as
long as they do not overlap.
"""

import difflib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from eroica.fix.diff import lines_of
from eroica.records import Patch

CONTEXT = 3


@dataclass(frozen=True)
class Change:
    """Lines ``[start, end)`` of the text before become ``lines``."""

    start: int
    end: int
    lines: tuple[str, ...]

    def overlaps(self, other: "Change") -> bool:
        """True where both touch the same lines; two insertions at one place also do."""
        if self.start == self.end and other.start == other.end:
            return self.start == other.start
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Hunk:
    """Changes of one file that are decided together."""

    patch: str
    path: str
    number: int
    changes: tuple[Change, ...]

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.patch, self.path, self.changes[0].start)


class Line(NamedTuple):
    """One line as shown: ``mark`` is ``-``, ``+`` or a space; the number is the old or new line."""

    mark: str
    number: int
    text: str


def hunks_of(patch: str, path: str, before: str, after: str) -> list[Hunk]:
    """Return the hunks that turn ``before`` into ``after``, in file order."""
    old, new = lines_of(before), lines_of(after)
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    groups = []
    for group in matcher.get_grouped_opcodes(CONTEXT):
        changes = tuple(
            Change(i1, i2, tuple(new[j1:j2])) for tag, i1, i2, j1, j2 in group if tag != "equal"
        )
        if changes:
            groups.append(changes)
    return [Hunk(patch, path, number, changes) for number, changes in enumerate(groups, start=1)]


def hunks_of_patch(patch: Patch) -> list[Hunk]:
    """All hunks of a patch, numbered through over its files."""
    found: list[Hunk] = []
    for edit in patch.edits:
        hunks = hunks_of(patch.id, edit.path, edit.before, edit.after)
        found += [replace(hunk, number=len(found) + n) for n, hunk in enumerate(hunks, start=1)]
    return found


def split(hunk: Hunk) -> list[Hunk]:
    """One hunk a change; a hunk of one change comes back alone."""
    return [replace(hunk, changes=(change,)) for change in hunk.changes]


def combine(before: str, changes: list[Change]) -> str:
    """Return the text with the changes made; they must not overlap (ValueError)."""
    lines = lines_of(before)
    ordered = sorted(changes, key=lambda change: (change.start, change.end))
    for first, second in pairwise(ordered):
        if first.overlaps(second):
            raise ValueError(f"changes overlap at line {second.start + 1}")
    for change in reversed(ordered):
        lines[change.start : change.end] = change.lines
    return "".join(lines)


def shown_lines(hunk: Hunk, before: str, context: int | None = CONTEXT) -> list[Line]:
    """Return the hunk as lines of a diff, ``context`` lines around it; None: the whole file."""
    old = [without_end(line) for line in lines_of(before)]
    context = len(old) if context is None else context
    first = max(0, hunk.changes[0].start - context)
    last = min(len(old), hunk.changes[-1].end + context)
    shown: list[Line] = []
    position, shift = first, 0
    for change in hunk.changes:
        shown += [Line(" ", n + 1, old[n]) for n in range(position, change.start)]
        shown += [Line("-", n + 1, old[n]) for n in range(change.start, change.end)]
        start = change.start + shift
        shown += [
            Line("+", start + n + 1, without_end(text)) for n, text in enumerate(change.lines)
        ]
        shift += len(change.lines) - (change.end - change.start)
        position = change.end
    shown += [Line(" ", n + 1, old[n]) for n in range(position, last)]
    return shown


def without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")
