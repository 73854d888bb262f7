"""The terminal app over the review session: compose, keys, and nothing that decides by itself."""

from collections.abc import Callable
from typing import ClassVar

import msgspec
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Static

from eroica.records import Cause, Diagnosis, Patch, Rehearsal
from eroica.review import views
from eroica.review.editing import edited
from eroica.review.help import HelpScreen
from eroica.review.session import ConflictError, Item, Session

NARROW = 100


class ReviewApp(App[str]):
    """Returns ``written`` or ``left``."""

    CSS_PATH = "review.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "accept", "accept"),
        Binding("n", "reject", "reject"),
        Binding("a", "accept_safe", "all safe"),
        Binding("d", "reject_file", "reject file"),
        Binding("s", "split", "split"),
        Binding("e", "edit", "edit"),
        Binding("c", "comment", "comment"),
        Binding("r", "rehearse", "rehearse"),
        Binding("u", "undo", "undo"),
        Binding("j,down", "move(1)", "next"),
        Binding("k,up", "move(-1)", "previous"),
        Binding("right_square_bracket", "move_cause(1)", "next cause"),
        Binding("left_square_bracket", "move_cause(-1)", "previous cause"),
        Binding("v", "evidence", "evidence"),
        Binding("o", "whole_file", "whole file"),
        Binding("p", "cost", "prompt cost"),
        Binding("slash", "search", "search"),
        Binding("w", "write", "write"),
        Binding("question_mark", "help", "keys"),
        Binding("q", "leave", "quit"),
    ]

    def __init__(
        self,
        session: Session,
        *,
        diagnoses: list[Diagnosis] | None = None,
        write: Callable[[Session], int] | None = None,
        rehearse: Callable[[Patch], Rehearsal] | None = None,
        regenerate: Callable[[Patch, str], list[Patch]] | None = None,
        prompt_cost: str = "no model was asked",
    ) -> None:
        super().__init__()
        self.session = session
        self.diagnoses = {one.cause: one for one in diagnoses or []}
        self._write, self._rehearse, self._regenerate = write, rehearse, regenerate
        self._prompt_cost = prompt_cost
        self.index = 0
        self.is_whole_file = False
        self._entry_purpose = ""
        self._asked_to_leave = False

    # what is shown
    def compose(self) -> ComposeResult:
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield Static(id="causes", classes="pane")
                with VerticalScroll(id="evidence", classes="pane"):
                    yield Static(id="evidence-text")
            with Vertical(id="right"):
                with VerticalScroll(id="diff", classes="pane"):
                    yield Static(id="diff-text")
                with VerticalScroll(id="about", classes="pane"):
                    yield Static(id="about-text")
        yield Input(id="entry")
        yield Static(id="status", markup=False)

    def on_mount(self) -> None:
        self.query_one("#causes").border_title = "causes"
        self.query_one("#evidence").border_title = "evidence (v)"
        self.query_one("#about").border_title = "rehearsal and explanation"
        self.query_one("#diff").focus()
        self.show()

    def on_resize(self, event: events.Resize) -> None:
        self.screen.set_class(event.size.width < NARROW, "narrow")

    @property
    def item(self) -> Item | None:
        items = self.session.items
        return items[min(self.index, len(items) - 1)] if items else None

    @property
    def cause(self) -> Cause | None:
        if self.item is not None:
            return self.session.cause_of(self.item)
        causes = self.session.incident.causes
        return causes[0] if causes else None

    def show(self, message: str = "") -> None:
        """Redraw everything that depends on the current hunk."""
        session, item, cause = self.session, self.item, self.cause
        patch = session.patch(item.hunk.patch) if item else None
        findings = session.findings_of(cause) if cause else []
        self._put("#causes", views.causes(session, cause))
        self._put("#evidence-text", views.evidence(session.incident, cause, findings))
        shown = views.diff(session, item, whole_file=self.is_whole_file) if item else ""
        self._put("#diff-text", shown)
        diagnosis = self.diagnoses.get(cause.id) if cause else None
        self._put("#about-text", views.about(patch, diagnosis))
        self.query_one("#diff").border_title = views.title(session, item).replace("[", r"\[")
        keys = "y n a d s e c r v w u ? q"
        self._put("#status", f"{message or keys}    {views.status(session)}")

    def _put(self, where: str, content: object) -> None:
        self.query_one(where, Static).update(content)  # type: ignore[arg-type]

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
        self.show(f"{count} safe hunks accepted; the others need a y each")

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
        self.session.edit(self.item, lines)
        self.show("edited; y accepts it")

    # moving
    def action_move(self, by: int) -> None:
        if self.session.items:
            self.index = max(0, min(self.index + by, len(self.session.items) - 1))
            self.query_one("#diff", VerticalScroll).scroll_home(animate=False)
            self.show()

    def action_move_cause(self, by: int) -> None:
        causes = list(self.session.incident.causes)
        if self.cause is None or not causes:
            return
        wanted = causes[(causes.index(self.cause) + by) % len(causes)]
        items = self.session.items_of(wanted)
        if items:
            self.index = self.session.items.index(items[0])
        self.show("" if items else f"{wanted.id} {wanted.category} has no proposal")

    def _advance(self) -> None:
        after = [n for n, item in enumerate(self.session.items) if item.state == "open"]
        later = [n for n in after if n > self.index]
        if after:
            self.index = (later or after)[0]
        self.show("" if after else "all decided: w writes the accepted ones")

    # panes
    def action_evidence(self) -> None:
        self.screen.toggle_class("show-evidence")
        self.query_one("#evidence").focus()

    def action_whole_file(self) -> None:
        self.is_whole_file = not self.is_whole_file
        self.show()

    def action_cost(self) -> None:
        self.show(self._prompt_cost)

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

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
        fresh = Session.of(self.session.incident, patches)
        self.session.patches += fresh.patches
        self.session.items += fresh.items
        self._advance()
        self.show(message)

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
        self.session.patches = [
            msgspec.structs.replace(one, rehearsal=result) if one.id == patch_id else one
            for one in self.session.patches
        ]
        self.show(f"rehearsal: {result.verdict}")

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
        if self.session.counts()["accepted"] and not self._asked_to_leave:
            self._asked_to_leave = True
            self.show("accepted hunks are not written: q again leaves them, w writes")
            return
        self.exit("left")
