"""What the review app shows and how one moves in it; nothing here decides anything."""

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Static

from eroica.records import Cause, Diagnosis
from eroica.review import views
from eroica.review.help import HelpScreen
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
        self._followed = ("", 0)

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
        marked = self._marked()
        self._put(
            "#evidence-text", views.evidence(session.incident, cause, findings, marked=marked)
        )
        whole, dark = self.is_whole_file, self.theme == DARK
        shown = views.diff(session, item, whole_file=whole, is_dark=dark) if item else ""
        self._put("#diff-text", shown)
        diagnosis = self.diagnoses.get(cause.id) if cause else None
        self._put("#about-text", views.about(patch, diagnosis))
        self.query_one("#diff").border_title = views.title(session, item).replace("[", r"\[")
        keys = "y n a d s e c r v w u ? q"
        self._put("#status", f"{one_line(message) or keys}    {views.status(session)}")

    def _put(self, where: str, content: object) -> None:
        self.query_one(where, Static).update(content)  # type: ignore[arg-type]

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

    # panes
    def action_evidence(self) -> None:
        self.screen.toggle_class("show-evidence")
        self.query_one("#evidence").focus()

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
        self.screen.add_class("show-evidence")
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
