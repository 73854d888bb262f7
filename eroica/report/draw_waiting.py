"""The picture of a stuck job: which ranks stand where, and who waits for whom."""

from dataclasses import dataclass

from eroica.explain.rules import rank_phrase
from eroica.records import FAMILY, Incident, RankRow
from eroica.report import canvas
from eroica.report.blocks import Picture
from eroica.report.material import Material
from eroica.report.tables import short_ranks

_MAX_NODES = 6


@dataclass(frozen=True)
class Node:
    ranks: tuple[int, ...]
    lines: tuple[str, ...]
    is_guilty: bool


def draw_waiting(material: Material) -> Picture | None:
    incident = material.incident
    if incident.symptom not in ("stuck", "failed"):
        return None
    nodes = waiting_nodes(incident)
    if len(nodes) < 2 or not any(node.is_guilty for node in nodes):
        return None
    edges = waiting_edges(incident, nodes)
    guilty = [n for n, node in enumerate(nodes) if node.is_guilty]
    others = [n for n, node in enumerate(nodes) if not node.is_guilty]
    height = 0.5 + 0.95 * max(len(guilty), len(others))

    def paint(figure: canvas.Figure) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set_xlim(0, 10)
        axes.set_ylim(0, 1)
        places = {n: (2.1, y) for n, y in zip(others, _levels(len(others)), strict=True)}
        places |= {n: (7.9, y) for n, y in zip(guilty, _levels(len(guilty)), strict=True)}
        for n, node in enumerate(nodes):
            _box(axes, places[n], node)
        for start, end in edges:
            _arrow(axes, places[start], places[end], is_mutual=(end, start) in edges)

    words = [
        f"{rank_phrase(nodes[start].ranks)} wait{_s(nodes[start])} for "
        f"{rank_phrase(nodes[end].ranks)}"
        for start, end in edges
    ]
    picture = canvas.svg("waiting", (8.6, max(1.6, height)), paint)
    return Picture("waiting", "Who waits for whom", "; ".join(words) + ".", picture)


def _s(node: Node) -> str:
    return "s" if len(node.ranks) == 1 else ""


def waiting_nodes(incident: Incident) -> list[Node]:
    """Groups of ranks that wait alike; the odd one out first, small groups folded at the end."""
    cause = incident.causes[0] if incident.causes else None
    guilty = set() if cause is None or cause.ranks == "all" else set(cause.ranks)
    rows = list(incident.ranks_table)
    named = {rank for row in rows for rank in row.ranks}
    missing = tuple(sorted(guilty - named))
    if missing:
        note = "ended" if cause and cause.category == "rank_exited" else "nothing known"
        rows.append(RankRow(ranks=missing, note=note))
    nodes = [_node(row, bool(row.ranks) and set(row.ranks) <= guilty) for row in rows if row.ranks]
    nodes.sort(key=lambda node: (not node.is_guilty, -len(node.ranks)))
    if len(nodes) > _MAX_NODES:
        rest = nodes[_MAX_NODES - 1 :]
        ranks = tuple(rank for node in rest for rank in node.ranks)
        folded = Node(ranks, (f"{len(rest)} other places",), all(n.is_guilty for n in rest))
        nodes = [*nodes[: _MAX_NODES - 1], folded]
    return nodes


def _node(row: RankRow, is_guilty: bool) -> Node:
    lines = [canvas.short(text, 40) for text in (row.last_collective, row.place) if text]
    return Node(row.ranks, tuple(lines) or (canvas.short(row.note, 40),), is_guilty)


def waiting_edges(incident: Incident, nodes: list[Node]) -> list[tuple[int, int]]:
    """Everyone waits for the odd ones; where those stand in a collective, they wait back."""
    guilty = [n for n, node in enumerate(nodes) if node.is_guilty]
    others = [n for n, node in enumerate(nodes) if not node.is_guilty]
    edges = [(other, one) for other in others for one in guilty]
    collective = incident.causes and FAMILY.get(incident.causes[0].category) == "collective"
    rows = {row.ranks: row for row in incident.ranks_table}
    for one in guilty:
        row = rows.get(nodes[one].ranks)
        if collective and row is not None and row.last_collective:
            edges += [(one, other) for other in others]
    return edges


def _levels(count: int) -> list[float]:
    return [1 - (n + 0.5) / count for n in range(count)]


def _box(axes: canvas.Axes, place: tuple[float, float], node: Node) -> None:
    color = canvas.GUILTY if node.is_guilty else canvas.CALM
    title = ("rank " if len(node.ranks) == 1 else "ranks ") + short_ranks(node.ranks, 4)
    axes.text(
        *place,
        "\n".join((title, *node.lines)),
        ha="center",
        va="center",
        fontsize=9,
        linespacing=1.45,
        bbox={"boxstyle": "round,pad=0.55", "facecolor": "white", "edgecolor": color, "lw": 1.6},
    )


def _arrow(
    axes: canvas.Axes, start: tuple[float, float], end: tuple[float, float], *, is_mutual: bool
) -> None:
    sign = 1 if end[0] > start[0] else -1
    lift = 0.05 * sign if is_mutual else 0.0
    tail, head = (start[0] + 1.95 * sign, start[1] + lift), (end[0] - 1.95 * sign, end[1] + lift)
    axes.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": canvas.SOFT, "lw": 1.3})
    axes.text(
        (tail[0] + head[0]) / 2,
        (tail[1] + head[1]) / 2 + 0.06 * sign,
        "waits for",
        ha="center",
        va="center",
        color=canvas.SOFT,
        fontsize=8,
    )
