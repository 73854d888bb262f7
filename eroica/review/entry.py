"""One line of text asked of the person, over everything else: no key typed there decides."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Input


class EntryScreen(ModalScreen[str | None]):
    """Returns the text, stripped; None where the person escaped."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "leave")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        entry = Input(placeholder=f"{self._question}   (enter sends, esc leaves)", id="entry")
        entry.border_title = self._question
        yield entry

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())
