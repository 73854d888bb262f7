"""The pictures of a report: which ones an incident can support, and their words."""

from collections.abc import Callable

from eroica.report.blocks import Picture
from eroica.report.draw_ranks import draw_breakdown, draw_heatmap, draw_pattern
from eroica.report.draw_time import draw_arrivals, draw_steps
from eroica.report.draw_waiting import draw_waiting
from eroica.report.material import Material

_DRAWINGS: tuple[Callable[[Material], Picture | None], ...] = (
    draw_steps,
    draw_heatmap,
    draw_breakdown,
    draw_waiting,
    draw_arrivals,
    draw_pattern,
)


def draw(material: Material) -> list[Picture]:
    """Return the pictures this incident has data for, possibly none."""
    return [picture for drawing in _DRAWINGS if (picture := drawing(material)) is not None]
