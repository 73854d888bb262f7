"""What the review app shows and how one moves in it; nothing here decides anything."""

import gc
import time
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Static

from eroica.records import Cause, Diagnosis
from eroica.review import views
from eroica.review.diff_view import DiffView
from eroica.review.help import HelpScreen
from eroica.review.hunks import CONTEXT, shown_lines
from eroica.review.session import Item, Session
from eroica.text import one_line

NARROW = 100
DARK, LIGHT = "textual-dark", "textual-light"


class ReviewScreen(App[str]):
    """The panes over a session."""

    CSS_PATH: ClassVar[str] = "review.tcss"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, session: Session, diagnoses: list[Diagnosis], *, is_dark: bool) -> None:
        super().__init__()
        self.theme = DARK if is_dark else LIGHT
        self.session = session
        self.diagnoses = {one.cause: one for one in diagnoses}
        self.index = 0
        self.is_whole_file = False
        self._message = ""
        self._columns = NARROW
        self.doing: dict[str, tuple[str, float]] = {}
        """Work beside the screen, and since when (monotonic seconds)."""
        self._followed = ("", 0)
        self._drawn: object = None
        """What the diff pane was last drawn from."""
        self._bare: Cause | None = None
        """The cause that is looked at although nothing is proposed for it."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield Static(id="causes", classes="pane")
                with VerticalScroll(id="evidence", classes="pane"):
                    yield Static(id="evidence-text")
            with Vertical(id="right"):
                yield DiffView(id="diff", classes="pane")
                with VerticalScroll(id="about", classes="pane"):
                    yield Static(id="about-text")
        yield Static(id="status")

    def on_mount(self) -> None:
        gc.collect()
        gc.freeze()  # what was loaded stays: looking through it again would cost a key 40 ms
        self.query_one("#causes").border_title = "causes"
        self.query_one("#evidence").border_title = "evidence (v)"
        self.query_one("#about").border_title = "rehearsal and explanation"
        self.query_one("#diff").focus()
        self.set_interval(1.0, self._tick)
        self.show()

    def _tick(self) -> None:
        if self.doing:
            self.show_status()

    def set_doing(self, name: str, what: str) -> None:
        """Show what goes on beside the screen, with its seconds; nothing ends it."""
        if what:
            self.doing[name] = (what, time.monotonic())
        else:
            self.doing.pop(name, None)
        self.show_status()

    def on_resize(self, event: events.Resize) -> None:
        self._columns = event.size.width
        self.default_screen.set_class(self._columns < NARROW, "narrow")
        self.show_status()

    @property
    def item(self) -> Item | None:
        """The hunk that is looked at; None where there is none."""
        items = self.session.items
        if self._bare is not None or not items:
            return None
        return items[min(self.index, len(items) - 1)]

    @property
    def cause(self) -> Cause | None:
        if self._bare is not None:
            return self._bare
        if self.item is not None:
            return self.session.cause_of(self.item)
        causes = self.session.incident.causes
        return causes[0] if causes else None

    @property
    def is_diff_hidden(self) -> bool:
        """On a small screen the evidence covers the hunk."""
        return all(self.default_screen.has_class(name) for name in ("narrow", "show-evidence"))

    def show(self, message: str = "") -> None:
        """Redraw everything that depends on the current hunk."""
        session, item, cause = self.session, self.item, self.cause
        patch = session.patch(item.hunk.patch) if item else None
        findings = session.findings_of(cause) if cause else []
        self._put("#causes", views.causes(session, cause))
        marked = self._marked()
        self._put(
            "#evidence-text", views.evidence(session.incident, cause, findings, marked=marked)
        )
        self._show_diff(item)
        diagnosis = self.diagnoses.get(cause.id) if cause else None
        self._put("#about-text", views.about(patch, diagnosis))
        self.query_one("#diff").border_title = views.title(session, item).replace("[", r"\[")
        self._message = message
        self.show_status()

    def _show_diff(self, item: Item | None) -> None:
        """Draw the hunk anew where it, the file around it or the colors changed."""
        pane, whole, dark = self.query_one(DiffView), self.is_whole_file, self.theme == DARK
        wanted = (item.hunk if item else None, whole, dark)
        if wanted == self._drawn:
            return
        is_same = isinstance(self._drawn, tuple) and wanted[:2] == self._drawn[:2]
        self._drawn = wanted
        if item is None:
            pane.show((), lambda lines: [], {})
            return
        lines = shown_lines(item.hunk, self.session.before(item), None if whole else CONTEXT)
        color = partial(views.highlighted, path=item.hunk.path, is_dark=dark)
        pane.show(lines, color, views.BACKGROUND[dark])
        if not is_same:
            pane.to_first_change()

    def show_status(self) -> None:
        """Redraw the line at the bottom: the message, or the keys."""
        width = self._columns - 2
        now = time.monotonic()
        doing = [f"{what} ({now - since:.0f} s)" for what, since in self.doing.values()]
        message = "   ".join(part for part in (self._message, *doing) if part)
        self._put("#status", views.status(self.session, message, width))

    def _put(self, where: str, content: object) -> None:
        self.query_one(where, Static).update(content)  # type: ignore[arg-type]

    # moving
    def action_move(self, by: int) -> None:
        if self.session.items:
            by = 0 if self._bare is not None else by
            self.turn_to(max(0, min(self.index + by, len(self.session.items) - 1)))
            self.show()

    def turn_to(self, index: int) -> None:
        """Make a hunk the one that is looked at."""
        self.index, self._bare = index, None

    def action_move_cause(self, by: int) -> None:
        causes = list(self.session.incident.causes)
        if self.cause is None or not causes:
            return
        at = next((n for n, one in enumerate(causes) if one.id == self.cause.id), -1)
        self._choose(causes[(at + by) % len(causes)])

    def action_choose_cause(self, cause_id: str) -> None:
        """A cause was clicked."""
        for cause in self.session.incident.causes:
            if cause.id == cause_id:
                self._choose(cause)

    def _choose(self, cause: Cause) -> None:
        items = self.session.items_of(cause)
        if items:
            self.turn_to(self.session.items.index(items[0]))
        else:
            self._bare = cause
        self.show("" if items else f"{cause.id} {cause.category} has no proposal")

    # panes
    def action_evidence(self) -> None:
        self.default_screen.toggle_class("show-evidence")
        self.query_one("#evidence" if self.is_evidence_seen else "#diff").focus()

    @property
    def is_evidence_seen(self) -> bool:
        return self.is_diff_hidden or not self.default_screen.has_class("narrow")

    def action_follow(self) -> None:
        """Go to what the explanation cites, one citation a press."""
        cause = self.cause
        cited = views.citations(self.diagnoses.get(cause.id)) if cause else []
        if cause is None or not cited:
            self.show("the explanation cites nothing")
            return
        of, number = self._followed
        number = number % len(cited) + 1 if of == cause.id else 1
        self._followed = (cause.id, number)
        citation, claim = cited[number - 1]
        self.default_screen.add_class("show-evidence")
        self.show(f"{citation} ({number} of {len(cited)}): {one_line(claim)}")
        self._scroll_to(citation)

    def _marked(self) -> str:
        """The citation followed last, as long as its cause is shown."""
        of, number = self._followed
        if self.cause is None or of != self.cause.id:
            return ""
        cited = views.citations(self.diagnoses.get(of))
        return cited[number - 1][0] if number <= len(cited) else ""

    def _scroll_to(self, finding: str) -> None:
        pane, shown = self.query_one("#evidence", VerticalScroll), self.query_one("#evidence-text")
        content = shown.content if isinstance(shown, Static) else ""
        lines = list(content.split("\n")) if isinstance(content, Text) else []
        before = next((n for n, x in enumerate(lines) if x.plain.startswith(f"{finding} ")), None)
        if before is not None:
            width = max(10, shown.size.width)
            rows = sum(max(1, len(line.wrap(self.console, width))) for line in lines[:before])
            pane.scroll_to(y=rows, animate=False)

    def action_switch_theme(self) -> None:
        self.theme = LIGHT if self.theme == DARK else DARK
        self.show()

    def action_whole_file(self) -> None:
        self.is_whole_file = not self.is_whole_file
        self.show()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())
