"""The terminal app over the review session: keys to decisions, none taken by itself."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual import work
from textual.app import SuspendNotSupported
from textual.binding import BindingType
from textual.worker import WorkerState

from eroica.errors import EroicaError
from eroica.records import Diagnosis, Patch, Rehearsal
from eroica.review.beside import in_thread
from eroica.review.editing import edited
from eroica.review.entry import EntryScreen
from eroica.review.help import BINDINGS
from eroica.review.panes import ReviewScreen
from eroica.review.session import ConflictError, Item, Session

REHEARSAL, ASKING = "eroica-rehearsal", "eroica-asking"
"""The names of the threads beside the screen."""


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
        rehearse: Callable[[Patch, Callable[[str], None]], Rehearsal] | None = None,
        regenerate: Callable[[Patch, str], list[Patch]] | None = None,
        save: Callable[[Session], None] | None = None,
        prompt_cost: Callable[[], str] = lambda: "no model was asked",
        is_dark: bool = True,
    ) -> None:
        super().__init__(session, diagnoses or [], is_dark=is_dark)
        self._write, self._rehearse, self._regenerate = write, rehearse, regenerate
        self._save = save
        self._prompt_cost = prompt_cost
        self._asked_to_leave = False

    def show(self, message: str = "") -> None:
        self._asked_to_leave = False
        super().show(message)

    # decisions
    def _decided(self) -> Item | None:
        """The hunk that a key decides on; None, and the person is told, where none is seen."""
        if self.is_diff_hidden and self.item is not None:
            self.action_evidence()
            self.show("this is the hunk: the key once more decides on it")
            return None
        if self.item is None:
            self.show("there is no proposal here to decide on")
        return self.item

    def action_accept(self) -> None:
        if (item := self._decided()) is None:
            return
        try:
            self.session.accept(item)
        except ConflictError as error:
            self.show(f"not accepted: {error}")
            return
        self._advance()

    def action_reject(self) -> None:
        if (item := self._decided()) is not None:
            self.session.reject(item)
            self._advance()

    def action_accept_safe(self) -> None:
        count = self.session.accept_safe()
        self.show(f"{count} safe hunks accepted, one patch a cause; the others need a y each")

    def action_reject_file(self) -> None:
        if (item := self._decided()) is not None:
            self.session.reject_file(item)
            self._advance()

    def action_split(self) -> None:
        if (item := self._decided()) is not None:
            parts = len(self.session.split(item))
            self.show("this hunk cannot be split" if parts == 1 else f"split in {parts}")

    def action_undo(self) -> None:
        before = {_fingerprint(item) for item in self.session.items}
        what = self.session.undo()
        changed = (n for n, x in enumerate(self.session.items) if _fingerprint(x) not in before)
        self.turn_to(next(changed, self.index))
        self.show(f"undone: {what}" if what else "nothing to undo")

    def action_edit(self) -> None:
        if (item := self._decided()) is None:
            return
        try:
            with self.suspend():
                lines = edited(item.hunk, self.session.before(item))
        except SuspendNotSupported:
            self.show("this terminal cannot be lent to an editor")
            return
        if lines is None:
            self.show("nothing changed: the editor failed or the text is as before")
            return
        try:
            self.session.edit(item, lines)
        except ConflictError as error:
            self.show(f"the edit is not taken: {error}")
            return
        self.show("edited; y accepts it")

    def _advance(self) -> None:
        after = [n for n, item in enumerate(self.session.items) if item.state == "open"]
        later = [n for n in after if n > self.index]
        if after:
            self.turn_to((later or after)[0])
        self.show("" if after else "all decided: w writes the accepted ones")

    def action_cost(self) -> None:
        self.show(self._prompt_cost())

    # text entry: comment and search
    def action_comment(self) -> None:
        if (item := self._decided()) is not None:
            question = f"comment on {item.hunk.path}: what should be different?"
            self.push_screen(EntryScreen(question), partial(self._comment, item))

    def _comment(self, item: Item, text: str | None) -> None:
        if not text:
            self.show()
            return
        patch = self.session.patch(item.hunk.patch)
        self.session.comment(item, text)
        self._advance()
        if self._regenerate is None:
            self.show("comment kept; no model is configured to propose anew")
        elif self._is_busy("ask"):
            self.show("comment kept; another patch is on its way already")
        else:
            self._ask_again(patch, text)

    def action_search(self) -> None:
        self.push_screen(EntryScreen("text to find in the proposals"), self._search)

    def _search(self, text: str | None) -> None:
        if not text:
            self.show()
            return
        items = self.session.items
        order = [*range(self.index + 1, len(items)), *range(min(self.index + 1, len(items)))]
        for number in order:
            lines = [line for change in items[number].hunk.changes for line in change.lines]
            if any(text.lower() in line.lower() for line in [*lines, items[number].hunk.path]):
                self.turn_to(number)
                self.show()
                return
        self.show(f"{text!r} is in no proposal")

    # work beside the screen
    def _is_busy(self, group: str) -> bool:
        running = (WorkerState.PENDING, WorkerState.RUNNING)
        return any(one.group == group and one.state in running for one in self.workers)

    @work(group="ask")
    async def _ask_again(self, patch: Patch, text: str) -> None:
        assert self._regenerate is not None
        self.set_doing("ask", "asking for another patch")
        try:
            patches = await in_thread(partial(self._regenerate, patch, text), ASKING)
            message = f"{len(patches)} new at the end" if patches else "no other proposal came"
        except Exception as error:  # a failed model call must not end the review
            patches, message = [], f"no other proposal: {error}"
        self.set_doing("ask", "")
        is_through = self.session.counts()["open"] == 0
        self.session.add(patches)
        if is_through and patches:  # nobody is reading a hunk that would slip away
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
            self.show("there is no proposal here to rehearse")
        elif self._rehearse is None:
            self.show("no command to rehearse with: start with --verify CMD")
        elif self._is_busy("rehearse"):
            self.show("a rehearsal is under way; one at a time")
        else:
            self._run_rehearsal(self.session.patch(self.item.hunk.patch))

    @work(group="rehearse")
    async def _run_rehearsal(self, patch: Patch) -> None:
        assert self._rehearse is not None
        self.set_doing("rehearse", f"rehearsing {patch.id}")
        tell = partial(self._told, f"rehearsing {patch.id}: ")
        try:
            result = await in_thread(partial(self._rehearse, patch, tell), REHEARSAL)
        except Exception as error:  # likewise
            self.set_doing("rehearse", "")
            self.show(f"the rehearsal failed: {error}")
            return
        self.set_doing("rehearse", "")
        self.session.keep_rehearsal(patch.id, result)
        self.show(self._saved(f"rehearsal: {result.verdict}"))

    def _told(self, head: str, what: str) -> None:
        """A line of progress, told by the thread that rehearses."""
        if self._is_busy("rehearse"):
            self.doing["rehearse"] = (head + what, self.doing["rehearse"][1])

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
        is_busy = self._is_busy("ask") or self._is_busy("rehearse")
        if (is_busy or self.session.counts()["accepted"]) and not self._asked_to_leave:
            what = "work is under way" if is_busy else "accepted hunks are not written"
            self.show(f"{what}: q again leaves it" + ("" if is_busy else ", w writes"))
            self._asked_to_leave = True
            return
        self.exit("left")


def _fingerprint(item: Item) -> tuple[object, ...]:
    return (*item.hunk.key, item.hunk.changes, item.state)
