"""The review itself, with no terminal in it: what is proposed, what was decided, what results.

The Textual app, the plain prompt, ``--accept`` and ``--json`` all drive this one object.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from eroica.incident import IncidentFolder
from eroica.records import Cause, Finding, Incident, Label, Patch, Rehearsal
from eroica.review import outcome
from eroica.review.hunks import Change, Hunk, hunks_of_patch, split

State = Literal["open", "accepted", "rejected"]
NOT_WORTH_IT = ("worse", "failed", "no change")
"""Verdicts of a rehearsal after which nothing accepts a patch but a person, hunk by hunk."""


class ConflictError(ValueError):
    """Why a decision cannot be taken: the lines are taken, or the text would fail a check."""


@dataclass
class Item:
    """One hunk and what was decided about it."""

    hunk: Hunk
    state: State = "open"
    is_edited: bool = False
    """The person changed its text; it is theirs to answer for, and never ``safe``."""


@dataclass(frozen=True)
class _Moment:
    """All that a decision changes, as it was before it."""

    what: str
    items: list[Item]
    comments: dict[str, list[str]]
    relabelled: dict[str, Label]


@dataclass
class Session:
    """A review of one incident's patches."""

    incident: Incident
    patches: list[Patch]
    items: list[Item] = field(default_factory=list)
    comments: dict[str, list[str]] = field(default_factory=dict)
    relabelled: dict[str, Label] = field(default_factory=dict)
    """Patches whose edits gave them another label than the one they came with."""
    _undo: list[_Moment] = field(default_factory=list)

    @classmethod
    def load(cls, folder: IncidentFolder) -> "Session":
        return cls.of(folder.read_incident(), folder.read_patches())

    @classmethod
    def of(cls, incident: Incident, patches: list[Patch]) -> "Session":
        session = cls(incident, list(patches))
        for patch in patches:
            session.items += [Item(hunk) for hunk in hunks_of_patch(patch)]
        return session

    def add(self, patches: list[Patch]) -> None:
        """Take in further proposals; undo goes back past them without losing them."""
        known = {patch.id for patch in self.patches}
        fresh = [patch for patch in patches if patch.id not in known]
        hunks = [hunk for patch in fresh for hunk in hunks_of_patch(patch)]
        self.patches += fresh
        for items in (self.items, *(moment.items for moment in self._undo)):
            items += [Item(hunk) for hunk in hunks]

    def keep_rehearsal(self, patch_id: str, rehearsal: Rehearsal) -> None:
        self.patches = [
            msgspec.structs.replace(one, rehearsal=rehearsal) if one.id == patch_id else one
            for one in self.patches
        ]

    # what there is
    def patch(self, patch_id: str) -> Patch:
        return next(patch for patch in self.patches if patch.id == patch_id)

    def label_of(self, item: Item) -> Label:
        """The label of the item's patch, as edits left it."""
        return self.relabelled.get(item.hunk.patch) or self.patch(item.hunk.patch).label

    def cause_of(self, item: Item) -> Cause | None:
        name = self.patch(item.hunk.patch).cause
        return next((cause for cause in self.incident.causes if cause.id == name), None)

    def findings_of(self, cause: Cause) -> list[Finding]:
        wanted = set(cause.findings)
        return [finding for finding in self.incident.findings if finding.id in wanted]

    def items_of(self, cause: Cause) -> list[Item]:
        own = {patch.id for patch in self.patches if patch.cause == cause.id}
        return [item for item in self.items if item.hunk.patch in own]

    def before(self, item: Item) -> str:
        edits = self.patch(item.hunk.patch).edits
        return next(edit.before for edit in edits if edit.path == item.hunk.path)

    def counts(self) -> dict[State, int]:
        found: dict[State, int] = {"open": 0, "accepted": 0, "rejected": 0}
        for item in self.items:
            found[item.state] += 1
        return found

    def is_decidable(self, item: Item) -> bool:
        """Display-only patches can be read, not accepted."""
        return self.label_of(item) != "display-only"

    # decisions
    def accept(self, item: Item) -> None:
        """Accept one hunk; ConflictError where an accepted one of another patch overlaps."""
        if not self.is_decidable(item):
            raise ConflictError("this proposal is for reading only: it failed a check")
        if self.patch(item.hunk.patch).applied:
            raise ConflictError("it is applied already; eroica undo takes it back")
        other = self._conflict(item)
        if other is not None:
            raise ConflictError(f"overlaps with an accepted hunk of {other.hunk.patch}")
        self._remember(f"accept {item.hunk.patch}")
        item.state = "accepted"

    def reject(self, item: Item) -> None:
        self._remember(f"reject {item.hunk.patch}")
        item.state = "rejected"

    def accept_safe(self) -> int:
        """``accept_labels`` for what may be written without a look."""
        return self.accept_labels(("safe",))

    def accept_labels(self, labels: tuple[str, ...]) -> int:
        """Accept one patch for each cause, whole, and return how many hunks that are.

        It is the first of an allowed label that a rehearsal does not speak against and that
        clashes with nothing accepted. What was decided by hand stands: a cause that is answered
        gets no second patch, and a patch with a rejected hunk is not taken.
        """
        self._remember("accept " + ", ".join(labels))
        count = 0
        for cause in dict.fromkeys(patch.cause for patch in self.patches):
            for item in self._choose([one for one in self.patches if one.cause == cause], labels):
                item.state = "accepted"
                count += 1
        if count == 0:
            self._undo.pop()
        return count

    def _choose(self, patches: list[Patch], labels: tuple[str, ...]) -> list[Item]:
        """The open hunks of the one patch to take of these alternatives."""
        if any(patch.applied for patch in patches):
            return []
        own = {patch.id: [i for i in self.items if i.hunk.patch == patch.id] for patch in patches}
        begun = [p for p in patches if any(item.state == "accepted" for item in own[p.id])]
        for patch in begun or patches:
            items = own[patch.id]
            is_bad = patch.rehearsal is not None and patch.rehearsal.verdict in NOT_WORTH_IT
            if is_bad or not items or self.label_of(items[0]) not in labels:
                continue
            is_free = all(item.state != "rejected" and not self._conflict(item) for item in items)
            if is_free:
                return [item for item in items if item.state == "open"]
        return []

    def reject_file(self, item: Item) -> None:
        """Reject what is still open of the item's patch and file."""
        self._remember("reject file")
        for other in self.items:
            same = (other.hunk.patch, other.hunk.path) == (item.hunk.patch, item.hunk.path)
            if same and other.state == "open":
                other.state = "rejected"

    def split(self, item: Item) -> list[Item]:
        """Put one item for each change of the hunk in its place."""
        parts = [Item(hunk, is_edited=item.is_edited) for hunk in split(item.hunk)]
        if len(parts) > 1:
            self._remember("split")
            at = self.items.index(item)
            self.items[at : at + 1] = parts
        return parts

    def edit(self, item: Item, lines: list[str]) -> Item:
        """Replace a hunk by an edited one: ``lines`` stand for all lines the hunk spans.

        The patch is checked anew with it: ConflictError, and the hunk as before, where it fails.
        A safe patch becomes one to review.
        """
        first, last = item.hunk.changes[0].start, item.hunk.changes[-1].end
        change = Change(first, last, tuple(lines))
        edited = Item(replace(item.hunk, changes=(change,)), is_edited=True)
        items = [edited if one is item else one for one in self.items]
        patch = self.patch(item.hunk.patch)
        wanted = [one for one in items if one.hunk.patch == patch.id and one.state != "rejected"]
        reason = outcome.refusal(outcome.edits_of(patch, wanted))
        if reason:
            raise ConflictError(reason)
        self._remember("edit")
        self.items[self.items.index(item)] = edited
        if patch.label == "safe":
            self.relabelled[patch.id] = "review"
        return edited

    def comment(self, item: Item, text: str) -> None:
        """Keep a reviewer's comment: it rejects the hunk and goes to the next proposal."""
        self.reject(item)
        self.comments.setdefault(item.hunk.patch, []).append(text)

    def undo(self) -> str | None:
        """Take the last decision back; returns what it was, None if there is none."""
        if not self._undo:
            return None
        before = self._undo.pop()
        self.items, self.comments = before.items, before.comments
        self.relabelled = before.relabelled
        return before.what

    # what results
    def result(self) -> list[Patch]:
        """Return the patches to apply: the accepted hunks only, whole files before and after.

        Patches that share a file each carry it with all that is accepted there.
        """
        accepted = self._accepted()
        patches = []
        for patch in self.patches:
            own = {item.hunk.path for item in accepted if item.hunk.patch == patch.id}
            edits = [edit for edit in outcome.edits_of(patch, accepted) if edit.path in own]
            if edits:
                items = [item for item in self.items if item.hunk.patch == patch.id]
                label = self.relabelled.get(patch.id, patch.label)
                patches.append(outcome.accepted_part(patch, label, edits, items))
        return patches

    def write(
        self, root: Path, folder: IncidentFolder, apply: outcome.Applier, by: str = ""
    ) -> int:
        """Apply the accepted hunks with ``apply`` and keep the journal; returns files changed.

        ConflictError where what the accepted hunks make together fails a check. Whatever stops
        it, nothing was written then, neither file nor journal.
        """
        patches = self.result()
        proposed = {(edit.path, edit.after) for one in self.patches for edit in one.edits}
        edits = {edit.path: edit for patch in patches for edit in patch.edits}
        mixed = [one for one in edits.values() if (one.path, one.after) not in proposed]
        reason = outcome.refusal(mixed)
        if reason:
            raise ConflictError(f"what is accepted does not work together: {reason}")
        if patches:
            done = {patch.id: patch for patch in apply(patches, root, folder)}
            for number, one in enumerate(self.patches):
                if made := done.get(one.id):
                    self.patches[number] = msgspec.structs.replace(
                        one, applied=made.applied, applied_hunks=made.applied_hunks
                    )
            self.save(folder)
        for decision in outcome.decisions(self.items, self.comments, edits, by):
            folder.append_decision(decision)
        return len(edits)

    def save(self, folder: IncidentFolder) -> None:
        """Keep proposals and rehearsals in the incident; those of others that came since stay."""
        own = {patch.id: patch for patch in self.patches}
        kept = {patch.id: patch for patch in folder.read_patches()}
        folder.write_patches(list({**kept, **own}.values()))

    # helpers
    def _accepted(self) -> list[Item]:
        return [item for item in self.items if item.state == "accepted"]

    def _conflict(self, item: Item) -> Item | None:
        for other in self._accepted():
            if other is item or other.hunk.path != item.hunk.path:
                continue
            pairs = [(a, b) for a in item.hunk.changes for b in other.hunk.changes]
            clashes = any(a.overlaps(b) and a != b for a, b in pairs)
            # Line numbers of two versions of a file do not go together.
            if clashes or self.before(other) != self.before(item):
                return other
        return None

    def _remember(self, what: str) -> None:
        comments = {patch: list(texts) for patch, texts in self.comments.items()}
        items = [replace(item) for item in self.items]
        self._undo.append(_Moment(what, items, comments, dict(self.relabelled)))
