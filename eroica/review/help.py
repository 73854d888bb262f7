"""The keys of the review, and the screen that shows them."""

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

BINDINGS: list[BindingType] = [
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
    Binding("f", "follow", "citations"),
    Binding("o", "whole_file", "whole file"),
    Binding("t", "switch_theme", "light or dark"),
    Binding("p", "cost", "prompt cost"),
    Binding("slash", "search", "search"),
    Binding("w", "write", "write"),
    Binding("question_mark", "help", "keys"),
    Binding("q", "leave", "quit"),
    Binding("ctrl+q", "leave", "quit", priority=True),  # asks too
    Binding("ctrl+c", "leave", "quit"),
]

KEYS = """\
y  accept this hunk            n  reject this hunk
a  accept all safe ones        d  reject the rest of this file
j k, arrows  next, previous    ] [  next, previous cause
s  split the hunk              e  edit it in $EDITOR
c  comment and ask again       r  rehearse the patch
tab  next pane                 v  evidence
f  what the explanation cites  o  whole file or hunk
p  the cost of the prompt      t  light or dark
/  search                      u  undo the last decision
w  write the accepted ones     q  quit without writing
space, page up and down        shift and arrows  scroll the diff
?  this help                   esc  leave a comment or a search"""


class HelpScreen(ModalScreen[None]):
    """The keys; any key closes it."""

    def compose(self) -> ComposeResult:
        yield Static(KEYS, id="help", markup=False)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss()
