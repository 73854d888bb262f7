"""The pane that shows a diff: only the rows on the screen are colored and wrapped.

A file of any length is shown whole so, and a key never waits for what nobody sees.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from eroica.review.hunks import Line
from eroica.text import visible

MARGIN = 8
"""Cells before the text of a line: its mark, its number, two spaces."""
MIN_WIDTH = 8
"""Cells a row of text has at least, also in a pane that is not laid out."""
CHUNK = 64
"""Lines colored in one go: a lexer takes as long to start as for 50 lines."""
LEAD = 3
"""Rows left above the first change when the pane turns to it."""

Highlight = Callable[[Sequence[Line]], list[Text]]


class DiffView(ScrollView, can_focus=True, inherit_bindings=False):
    """Lines of a diff, wrapped at the pane's width and never cut."""

    # The arrows go from hunk to hunk, here as everywhere.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "page_up", "page up"),
        Binding("pagedown,space", "page_down", "page down"),
        Binding("shift+up", "scroll_up", "line up"),
        Binding("shift+down", "scroll_down", "line down"),
        Binding("home", "scroll_home", "top"),
        Binding("end", "scroll_end", "bottom"),
    ]

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self.lines: Sequence[Line] = ()
        self._highlight: Highlight = lambda lines: [Text(visible(line.text)) for line in lines]
        self._backgrounds: dict[str, Style] = {}
        self._bodies: dict[int, list[Text]] = {}
        self._ends: list[int] = []
        self._width = 0
        self._is_laid_out = False

    def show(
        self, lines: Sequence[Line], highlight: Highlight, backgrounds: dict[str, str]
    ) -> None:
        """Show these lines; ``highlight`` colors some of them, ``backgrounds`` go by their mark."""
        self.lines, self._highlight = lines, highlight
        self._backgrounds = {mark: Style.parse(style) for mark, style in backgrounds.items()}
        self._bodies.clear()
        self._measure()
        self.refresh()

    def to_first_change(self) -> None:
        """Turn the pane to the first changed line, a few rows of context above it."""
        number = next((n for n, line in enumerate(self.lines) if line.mark != " "), 0)
        first = self._ends[number - 1] if number else 0
        self.scroll_to(y=max(0, first - LEAD), animate=False)

    @property
    def plain(self) -> str:
        """All that the pane shows, one row a line of text."""
        return "\n".join(
            f"{_margin(line)}{visible(line.text, tabs=True)}".rstrip() for line in self.lines
        )

    def on_resize(self, event: events.Resize) -> None:
        """Wrap anew; the line at the top stays there, at first the first change is turned to."""
        top = bisect_right(self._ends, round(self.scroll_y))
        was_laid_out, self._is_laid_out = self._is_laid_out, True
        self._measure()
        self.refresh()
        if was_laid_out:
            self.scroll_to(
                y=self._ends[top - 1] if 0 < top <= len(self._ends) else 0, animate=False
            )
        else:
            self.to_first_change()

    def _measure(self) -> None:
        """Count the rows of every line at the pane's width."""
        self._width = max(MIN_WIDTH, self.scrollable_content_region.width - MARGIN)
        self._ends = list(accumulate(rows_of(line.text, self._width) for line in self.lines))
        self.virtual_size = Size(0, self._ends[-1] if self._ends else 0)

    def render_line(self, y: int) -> Strip:
        row = y + round(self.scroll_y)
        width, base = self.scrollable_content_region.width, self.rich_style
        if not self._ends or row >= self._ends[-1]:
            return Strip.blank(width, base)
        number = bisect_right(self._ends, row)
        part = row - (self._ends[number - 1] if number else 0)
        line = self.lines[number]
        shown = _row(line, self._body(number), part, self._width)
        style = base + self._backgrounds.get(line.mark, Style())
        behind = Style(bgcolor=style.bgcolor)  # a lexer's colors bring a background of their own
        segments = [
            Segment(segment.text, style + (segment.style or Style()) + behind)
            for segment in shown.render(self.app.console)
        ]
        return Strip(segments).adjust_cell_length(width, style)

    def _body(self, number: int) -> Text:
        """A line's text in colors, colored with its neighbors."""
        chunk = number // CHUNK
        if chunk not in self._bodies:
            first = chunk * CHUNK
            self._bodies[chunk] = self._highlight(self.lines[first : first + CHUNK])
        return self._bodies[chunk][number % CHUNK]


def rows_of(text: str, width: int) -> int:
    """How many rows a line takes; one where it is empty."""
    if len(text) <= width and text.isascii() and text.isprintable():
        return 1
    shown = visible(text, tabs=True)
    if shown.isascii():
        return max(1, -(-len(shown) // width))
    return max(1, len(chop_cells(shown, width)))


def _row(line: Line, body: Text, part: int, width: int) -> Text:
    """One row of a wrapped line; the margin of the rows after the first is empty."""
    row = Text(_margin(line) if part == 0 else " " * MARGIN, end="")
    row.stylize("bold" if line.mark != " " else "dim")
    if cell_len(body.plain) > width:
        pieces = chop_cells(body.plain, width)
        start = sum(len(piece) for piece in pieces[:part])
        body = body[start : start + len(pieces[part])]
    row.append_text(body)
    return row


def _margin(line: Line) -> str:
    return f"{line.mark}{line.number:>5}  "
