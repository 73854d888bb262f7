"""The terminal app over the review session: keys to decisions, none taken by itself."""

from collections.abc import Callable
from typing import ClassVar

from textual import events, work
from textual.binding import BindingType
from textual.widgets import Input

from eroica.errors import EroicaError
from eroica.records import Diagnosis, Patch, Rehearsal
from eroica.review.editing import edited
from eroica.review.help import BINDINGS
from eroica.review.panes import ReviewScreen
from eroica.review.session import ConflictError, Session


class ReviewApp(ReviewScreen):
    """Returns ``written`` or ``left``.

    ``save`` is called when a rehearsal or a new proposal came, so that leaving loses neither.
    """

    BINDINGS: ClassVar[list[BindingType]] = BINDINGS

    def __init__(
        self,
        session: Session,
        *,
        diagnoses: list[Diagnosis] | None = None,
        write: Callable[[Session], int] | None = None,
        rehearse: Callable[[Patch], Rehearsal] | None = None,
        regenerate: Callable[[Patch, str], list[Patch]] | None = None,
        save: Callable[[Session], None] | None = None,
        prompt_cost: Callable[[], str] = lambda: "no model was asked",
        is_dark: bool = True,
    ) -> None:
        super().__init__(session, diagnoses or [], is_dark=is_dark)
        self._write, self._rehearse, self._regenerate = write, rehearse, regenerate
        self._save = save
        self._prompt_cost = prompt_cost
        self._entry_purpose = ""
        self._asked_to_leave = False

    # decisions
    def action_accept(self) -> None:
        if self.item is None:
            return
        try:
            self.session.accept(self.item)
        except ConflictError as error:
            self.show(f"not accepted: {error}")
            return
        self._advance()

    def action_reject(self) -> None:
        if self.item is not None:
            self.session.reject(self.item)
            self._advance()

    def action_accept_safe(self) -> None:
        count = self.session.accept_safe()
        self.show(f"{count} safe hunks accepted, one patch a cause; the others need a y each")

    def action_reject_file(self) -> None:
        if self.item is not None:
            self.session.reject_file(self.item)
            self._advance()

    def action_split(self) -> None:
        if self.item is not None:
            parts = len(self.session.split(self.item))
            self.show("this hunk cannot be split" if parts == 1 else f"split in {parts}")

    def action_undo(self) -> None:
        what = self.session.undo()
        self.show(f"undone: {what}" if what else "nothing to undo")

    def action_edit(self) -> None:
        if self.item is None:
            return
        with self.suspend():
            lines = edited(self.item.hunk, self.session.before(self.item))
        if lines is None:
            self.show("nothing changed: the editor failed or the text is as before")
            return
        try:
            self.session.edit(self.item, lines)
        except ConflictError as error:
            self.show(f"the edit is not taken: {error}")
            return
        self.show("edited; y accepts it")

    def _advance(self) -> None:
        after = [n for n, item in enumerate(self.session.items) if item.state == "open"]
        later = [n for n in after if n > self.index]
        if after:
            self.index = (later or after)[0]
        self.show("" if after else "all decided: w writes the accepted ones")

    def action_cost(self) -> None:
        self.show(self._prompt_cost())

    # text entry: comment and search
    def action_comment(self) -> None:
        if self.item is not None:
            self._ask("comment", "what should be different?")

    def action_search(self) -> None:
        self._ask("search", "text to find in the proposals")

    def _ask(self, purpose: str, placeholder: str) -> None:
        entry = self.query_one("#entry", Input)
        self._entry_purpose = purpose
        entry.placeholder, entry.value = placeholder, ""
        entry.add_class("shown")
        entry.focus()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape" and self.query_one("#entry").has_class("shown"):
            event.stop()
            self._close_entry()
            self.show()

    def _close_entry(self) -> None:
        self.query_one("#entry").remove_class("shown")
        self.query_one("#diff").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        self._close_entry()
        if not text:
            self.show()
        elif self._entry_purpose == "search":
            self._search(text)
        elif self.item is not None:
            patch = self.session.patch(self.item.hunk.patch)
            self.session.comment(self.item, text)
            if self._regenerate is None:
                self.show("comment kept; no model is configured to propose anew")
            else:
                self.show("asking for another patch ...")
                self._ask_again(patch, text)

    def _search(self, text: str) -> None:
        items = self.session.items
        order = [*range(self.index + 1, len(items)), *range(self.index + 1)]
        for number in order:
            lines = [line for change in items[number].hunk.changes for line in change.lines]
            if any(text.lower() in line.lower() for line in [*lines, items[number].hunk.path]):
                self.index = number
                self.show()
                return
        self.show(f"{text!r} is in no proposal")

    # work beside the screen
    @work(thread=True, exclusive=True)
    def _ask_again(self, patch: Patch, text: str) -> None:
        assert self._regenerate is not None
        try:
            patches = self._regenerate(patch, text)
            message = f"{len(patches)} new proposals" if patches else "no other proposal came"
        except Exception as error:  # a failed model call must not end the review
            patches, message = [], f"no other proposal: {error}"
        self.call_from_thread(self._add, patches, message)

    def _add(self, patches: list[Patch], message: str) -> None:
        self.session.add(patches)
        self._advance()
        self.show(self._saved(message) if patches else message)

    def _saved(self, message: str) -> str:
        """Keep what came meanwhile; says so where it cannot be kept."""
        try:
            if self._save is not None:
                self._save(self.session)
        except (EroicaError, OSError) as error:
            return f"{message}; not kept in the incident: {error}"
        return message

    def action_rehearse(self) -> None:
        if self.item is None:
            return
        if self._rehearse is None:
            self.show("no command to rehearse with: start with --verify CMD")
            return
        self.show("rehearsing ...")
        self._run_rehearsal(self.session.patch(self.item.hunk.patch))

    @work(thread=True, exclusive=True)
    def _run_rehearsal(self, patch: Patch) -> None:
        assert self._rehearse is not None
        try:
            result = self._rehearse(patch)
        except Exception as error:  # likewise
            self.call_from_thread(self.show, f"the rehearsal failed: {error}")
            return
        self.call_from_thread(self._keep_rehearsal, patch.id, result)

    def _keep_rehearsal(self, patch_id: str, result: Rehearsal) -> None:
        self.session.keep_rehearsal(patch_id, result)
        self.show(self._saved(f"rehearsal: {result.verdict}"))

    # the end
    def action_write(self) -> None:
        if self.session.counts()["accepted"] == 0:
            self.show("nothing is accepted, nothing was written")
            return
        if self._write is None:
            self.exit("written")
            return
        try:
            count = self._write(self.session)
        except Exception as error:  # shown to the person; nothing was written (atomic)
            self.show(f"not written: {error}")
            return
        self.show(f"{count} files written; eroica undo takes it back")
        self.exit("written")

    def action_leave(self) -> None:
        is_busy = any(worker.is_running for worker in self.workers)
        if (is_busy or self.session.counts()["accepted"]) and not self._asked_to_leave:
            self._asked_to_leave = True
            what = "work is under way" if is_busy else "accepted hunks are not written"
            self.show(f"{what}: q again leaves it" + ("" if is_busy else ", w writes"))
            return
        self.exit("left")
