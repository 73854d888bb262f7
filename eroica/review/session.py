"""The review itself, with no terminal in it: what is proposed, what was decided, what results.

The Textual app, the plain prompt, ``--accept`` and ``--json`` all drive this one object.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from eroica import incident as incidents
from eroica.incident import IncidentFolder
from eroica.records import Cause, Decision, FileEdit, Finding, Incident, Patch
from eroica.review.hunks import Change, Hunk, combine, hunks_of, split

State = Literal["open", "accepted", "rejected"]


class ConflictError(ValueError):
    """The hunk touches lines that another accepted hunk already changes."""


@dataclass
class Item:
    """One hunk and what was decided about it."""

    hunk: Hunk
    state: State = "open"


@dataclass
class Session:
    """A review of one incident's patches."""

    incident: Incident
    patches: list[Patch]
    items: list[Item] = field(default_factory=list)
    comments: dict[str, list[str]] = field(default_factory=dict)
    _undo: list[tuple[list[Item], str]] = field(default_factory=list)

    @classmethod
    def load(cls, folder: IncidentFolder) -> "Session":
        return cls.of(folder.read_incident(), folder.read_patches())

    @classmethod
    def of(cls, incident: Incident, patches: list[Patch]) -> "Session":
        session = cls(incident, list(patches))
        for patch in patches:
            session.items += [Item(hunk) for hunk in _hunks(patch)]
        return session

    # what there is
    def patch(self, patch_id: str) -> Patch:
        return next(patch for patch in self.patches if patch.id == patch_id)

    def cause_of(self, item: Item) -> Cause | None:
        name = self.patch(item.hunk.patch).cause
        return next((cause for cause in self.incident.causes if cause.id == name), None)

    def findings_of(self, cause: Cause) -> list[Finding]:
        wanted = set(cause.findings)
        return [finding for finding in self.incident.findings if finding.id in wanted]

    def items_of(self, cause: Cause) -> list[Item]:
        return [item for item in self.items if self.patch(item.hunk.patch).cause == cause.id]

    def before(self, item: Item) -> str:
        return self._edit(item).before

    def counts(self) -> dict[State, int]:
        found: dict[State, int] = {"open": 0, "accepted": 0, "rejected": 0}
        for item in self.items:
            found[item.state] += 1
        return found

    def is_decidable(self, item: Item) -> bool:
        """Display-only patches can be read, not accepted."""
        return self.patch(item.hunk.patch).label != "display-only"

    # decisions
    def accept(self, item: Item) -> None:
        """Accept one hunk; ConflictError where an accepted one of another patch overlaps."""
        if not self.is_decidable(item):
            raise ConflictError("this proposal is for reading only: it failed a check")
        other = self._conflict(item)
        if other is not None:
            raise ConflictError(f"overlaps with an accepted hunk of {other.hunk.patch}")
        self._remember(f"accept {item.hunk.patch}")
        item.state = "accepted"

    def reject(self, item: Item) -> None:
        self._remember(f"reject {item.hunk.patch}")
        item.state = "rejected"

    def reopen(self, item: Item) -> None:
        self._remember("reopen")
        item.state = "open"

    def accept_safe(self) -> int:
        """Accept every open hunk of a safe patch that does not conflict; returns how many."""
        self._remember("accept all safe")
        count = 0
        for item in self.items:
            is_safe = self.patch(item.hunk.patch).label == "safe"
            if item.state == "open" and is_safe and self._conflict(item) is None:
                item.state = "accepted"
                count += 1
        return count

    def accept_labels(self, labels: tuple[str, ...]) -> int:
        """Accept for each cause the first patch of these labels, whole; returns how many hunks."""
        self._remember("accept " + ", ".join(labels))
        count, answered = 0, set()
        for patch in self.patches:
            is_bad = patch.rehearsal is not None and patch.rehearsal.verdict in ("worse", "failed")
            if patch.label not in labels or patch.cause in answered or is_bad:
                continue
            items = [item for item in self.items if item.hunk.patch == patch.id]
            if any(self._conflict(item) for item in items):
                continue
            for item in items:
                item.state = "accepted"
            count += len(items)
            answered.add(patch.cause)
        return count

    def reject_file(self, item: Item) -> None:
        """Reject what is still open of the item's patch and file."""
        self._remember("reject file")
        for other in self.items:
            same = (other.hunk.patch, other.hunk.path) == (item.hunk.patch, item.hunk.path)
            if same and other.state == "open":
                other.state = "rejected"

    def split(self, item: Item) -> list[Item]:
        """Put one item for each change of the hunk in its place."""
        parts = [Item(hunk) for hunk in split(item.hunk)]
        if len(parts) > 1:
            self._remember("split")
            at = self.items.index(item)
            self.items[at : at + 1] = parts
        return parts

    def edit(self, item: Item, lines: list[str]) -> Item:
        """Replace a hunk by an edited one: ``lines`` stand for all lines the hunk spans."""
        first, last = item.hunk.changes[0].start, item.hunk.changes[-1].end
        change = Change(first, last, tuple(lines))
        hunk = Hunk(item.hunk.patch, item.hunk.path, item.hunk.number, (change,))
        self._remember("edit")
        edited = Item(hunk)
        self.items[self.items.index(item)] = edited
        return edited

    def comment(self, item: Item, text: str) -> None:
        """Keep a reviewer's comment: it rejects the hunk and goes to the next proposal."""
        self.comments.setdefault(item.hunk.patch, []).append(text)
        self.reject(item)

    def undo(self) -> str | None:
        """Take the last decision back; returns what it was, None if there is none."""
        if not self._undo:
            return None
        self.items, what = self._undo.pop()
        return what

    # what results
    def result(self) -> list[Patch]:
        """Return the patches to apply: the accepted hunks only, whole files before and after."""
        patches: list[Patch] = []
        done: set[str] = set()
        for patch in self.patches:
            edits = [edit for edit in patch.edits if edit.path not in done]
            kept = [made for edit in edits if (made := self._combined(edit)) is not None]
            own = {item.hunk.path for item in self._accepted() if item.hunk.patch == patch.id}
            kept = [edit for edit in kept if edit.path in own]
            if kept:
                done |= {edit.path for edit in kept}
                patches.append(msgspec.structs.replace(patch, edits=tuple(kept)))
        return patches

    def decisions(self, by: str = "") -> list[Decision]:
        """The journal lines of the decided hunks and the comments."""
        lines = [
            Decision(
                time=incidents.now(),
                patch=item.hunk.patch,
                action="accept" if item.state == "accepted" else "reject",
                hunk=item.hunk.number,
                by=by,
            )
            for item in self.items
            if item.state != "open"
        ]
        for patch, texts in self.comments.items():
            lines += [
                Decision(time=incidents.now(), patch=patch, action="comment", comment=text, by=by)
                for text in texts
            ]
        return lines

    def write(self, root: Path, folder: IncidentFolder, apply: "Applier", by: str = "") -> int:
        """Apply the accepted hunks with ``apply`` and keep the journal; returns files changed."""
        for decision in self.decisions(by):
            folder.append_decision(decision)
        patches = self.result()
        if not patches:
            return 0
        applied = {patch.id: patch.applied for patch in apply(patches, root, folder)}
        self.patches = [
            msgspec.structs.replace(patch, applied=applied.get(patch.id, patch.applied))
            for patch in self.patches
        ]
        folder.write_patches(self.patches)
        return len({edit.path for patch in patches for edit in patch.edits})

    # helpers
    def _accepted(self) -> list[Item]:
        return [item for item in self.items if item.state == "accepted"]

    def _combined(self, edit: FileEdit) -> FileEdit | None:
        accepted = [item for item in self._accepted() if item.hunk.path == edit.path]
        if not accepted:
            return None
        changes = list({change: None for item in accepted for change in item.hunk.changes})
        return msgspec.structs.replace(edit, after=combine(edit.before, changes))

    def _conflict(self, item: Item) -> Item | None:
        for other in self._accepted():
            if other is item or other.hunk.path != item.hunk.path:
                continue
            pairs = [(a, b) for a in item.hunk.changes for b in other.hunk.changes]
            if any(a.overlaps(b) and a != b for a, b in pairs):
                return other
        return None

    def _edit(self, item: Item) -> FileEdit:
        edits = self.patch(item.hunk.patch).edits
        return next(edit for edit in edits if edit.path == item.hunk.path)

    def _remember(self, what: str) -> None:
        self._undo.append(([Item(item.hunk, item.state) for item in self.items], what))


class Applier(Protocol):
    """What ``eroica.fix.apply`` offers; passed in so that the session itself needs no disk."""

    def __call__(self, patches: list[Patch], root: Path, folder: IncidentFolder) -> list[Patch]: ...


def _hunks(patch: Patch) -> list[Hunk]:
    found: list[Hunk] = []
    for edit in patch.edits:
        found += hunks_of(patch.id, edit.path, edit.before, edit.after)
    return found
