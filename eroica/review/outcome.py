"""What the accepted hunks make: texts, their checks, patches to apply, lines of the journal."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from eroica.fix.diff import sha256, unified
from eroica.fix.gates import check
from eroica.incident import IncidentFolder, now
from eroica.records import Decision, FileEdit, Label, Patch
from eroica.review.hunks import Hunk, combine

_PER_PATCH = ("size", "evidence files", "inside the project")
"""Gates that a patch passed as a whole; hunks of several may pass them no more together."""


class Decided(Protocol):
    """A hunk and what was decided about it."""

    @property
    def hunk(self) -> Hunk: ...

    @property
    def state(self) -> str: ...

    @property
    def is_edited(self) -> bool: ...


class Applier(Protocol):
    """What ``eroica.fix.apply`` offers; passed in so that the session itself needs no disk."""

    def __call__(self, patches: list[Patch], root: Path, folder: IncidentFolder) -> list[Patch]: ...


def edits_of(patch: Patch, items: Sequence[Decided]) -> list[FileEdit]:
    """Return the patch's files with the hunks of these items made, whoever proposed them."""
    made = []
    for edit in patch.edits:
        here = [item for item in items if item.hunk.path == edit.path]
        changes = list({change: None for item in here for change in item.hunk.changes})
        if changes:
            made.append(msgspec.structs.replace(edit, after=combine(edit.before, changes)))
    return made


def refusal(edits: Sequence[FileEdit]) -> str:
    """Return why texts may not be written as they are, or an empty string."""
    failed = [gate for gate in check(edits) if not gate.passed and gate.name not in _PER_PATCH]
    return "; ".join(gate.reason for gate in failed)


def accepted_part(
    patch: Patch, label: Label, edits: list[FileEdit], items: Sequence[Decided]
) -> Patch:
    """Return the patch with what was accepted of it; ``items`` are all of its hunks."""
    taken = [item for item in items if item.state == "accepted"]
    is_whole = len(taken) == len(items) and not any(item.is_edited for item in items)
    numbers = () if is_whole else tuple(sorted({item.hunk.number for item in taken}))
    return msgspec.structs.replace(
        patch, label=label, edits=tuple(edits), diff=unified(edits), applied_hunks=numbers
    )


def decisions(
    items: Iterable[Decided],
    comments: dict[str, list[str]],
    edits: dict[str, FileEdit],
    by: str,
) -> list[Decision]:
    """The journal of a review: a line a decided hunk, with the hashes of what was written."""
    time = now()
    lines = []
    for item in items:
        if item.state == "open":
            continue
        line = Decision(
            time=time, patch=item.hunk.patch, action="reject", hunk=item.hunk.number, by=by
        )
        if item.state == "accepted":
            edit = edits[item.hunk.path]
            files = {edit.path: (sha256(edit.before), sha256(edit.after))}
            action = "edit" if item.is_edited else "accept"
            line = msgspec.structs.replace(line, action=action, files=files)
        lines.append(line)
    for patch, texts in comments.items():
        lines += [
            Decision(time=time, patch=patch, action="comment", comment=text, by=by)
            for text in texts
        ]
    return lines
