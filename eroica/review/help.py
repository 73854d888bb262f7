"""The keys of the review, on a screen of their own."""

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = """\
y  accept this hunk            n  reject this hunk
a  accept all safe ones        d  reject the rest of this file
j k, arrows  next, previous    ] [  next, previous cause
s  split the hunk              e  edit it in $EDITOR
c  comment and ask again       r  rehearse the patch
tab  next pane                 v  evidence
p  the cost of the prompt      o  whole file or hunk
/  search                      u  undo the last decision
w  write the accepted ones     q  quit without writing
?  this help"""


class HelpScreen(ModalScreen[None]):
    """The keys; any key closes it."""

    def compose(self) -> ComposeResult:
        yield Static(KEYS, id="help", markup=False)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss()
