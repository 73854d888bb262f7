"""Figures as inline SVG: one look, deterministic bytes, text as text, ids that cannot collide.

matplotlib loads only when a picture is drawn. Shape suffixes: R ranks, B blocks of ranks.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.text import one_line

Figure = Any  # matplotlib ships no types
Axes = Any

INK, SOFT, GRID = "#1c2430", "#55606e", "#e3e7ec"
GUILTY, CALM = "#c0392b", "#4c78a8"
PARTS = {
    "compute": "#4c78a8",
    "exposed_communication": "#d9822b",
    "memory": "#9467a8",
    "data": "#c0392b",
    "python": "#3f9a5f",
    "idle": "#c3c9d1",
}
MAX_COLUMNS = 120
"""More ranks than this are drawn in blocks; the odd ones keep a column of their own."""

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "eroica",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "text.color": INK,
    "axes.grid": False,
    "grid.color": GRID,
}


def svg(key: str, size: tuple[float, float], paint: Callable[[Figure], None]) -> str:
    """Return the SVG of a figure of ``size`` inches that ``paint`` fills."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        stream = io.StringIO()
        # See-through, so that a narrow page can hint at what lies beside.
        figure.patch.set_alpha(0.0)
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return _embedded(stream.getvalue(), key)


def _embedded(text: str, key: str) -> str:
    """Strip what belongs to a file and put the picture's name before every id."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = re.sub(r'((?:xlink:)?href=")#', rf"\1#{key}-", text)
    text = re.sub(r"url\(#", f"url(#{key}-", text)
    text = text.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def blocks(
    ranks_R: NDArray[np.int64], odd: Sequence[int], limit: int = MAX_COLUMNS
) -> list[tuple[str, NDArray[np.intp]]]:
    """Return labeled groups of rank indices: each rank alone, or blocks with the odd ranks apart.

    At most about ``limit`` groups come back and at most 12 odd ranks stand alone.
    """
    if len(ranks_R) <= limit:
        return [(str(rank), np.array([n])) for n, rank in enumerate(ranks_R.tolist())]
    alone = set(list(odd)[:12])
    width = int(np.ceil(len(ranks_R) / (limit - len(alone))))
    groups: list[tuple[str, NDArray[np.intp]]] = []
    for start in range(0, len(ranks_R), width):
        members = range(start, min(start + width, len(ranks_R)))
        calm = [n for n in members if int(ranks_R[n]) not in alone]
        if calm:
            label = f"{ranks_R[calm[0]]}-{ranks_R[calm[-1]]}"
            groups.append((label, np.array(calm)))
        groups += [(str(ranks_R[n]), np.array([n])) for n in members if n not in calm]
    return groups


def rank_ticks(axes: Axes, labels: Sequence[str], guilty: Sequence[int]) -> None:
    """Label few columns, always the guilty ones, those in bold and red; neighbors share one."""
    wanted = {str(rank) for rank in guilty}
    every = max(1, len(labels) // 12)
    marked = [n for n, label in enumerate(labels) if label in wanted]
    named = folded([int(labels[n]) for n in marked], marked)
    red = {n: label for label, n in named[:: max(1, len(named) // 12)]}
    calm = {
        n: labels[n]
        for n in range(0, len(labels), every)
        if all(abs(n - m) >= 0.8 * every for m in marked)
    }
    shown = dict(sorted({**calm, **red}.items()))
    axes.set_xticks(list(shown), list(shown.values()))
    turn = max((len(label) for label in shown.values()), default=0) * len(shown) > 90
    for position, text in zip(shown, axes.get_xticklabels(), strict=True):
        if turn:
            text.set_rotation(60)
            text.set_ha("right")
            text.set_rotation_mode("anchor")
        if position in red:
            text.set_color(GUILTY)
            text.set_fontweight("bold")


def folded(ranks: Sequence[int], positions: Sequence[int]) -> list[tuple[str, int]]:
    """Return one label and its position for each run of neighboring ranks."""
    runs: list[list[int]] = []
    for n, rank in enumerate(ranks):
        if runs and rank == ranks[runs[-1][-1]] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return [(units.ranks([ranks[n] for n in run]), positions[run[len(run) // 2]]) for run in runs]


def short(text: str, limit: int = 44) -> str:
    """Shorten a name in the middle and show control characters, which XML does not allow."""
    shown = one_line(text)
    if len(shown) <= limit:
        return shown
    head = limit // 2 - 1
    return f"{shown[:head]}...{shown[-(limit - head - 3) :]}"
