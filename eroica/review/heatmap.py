"""A heatmap of text blocks: functions down, ranks across, the darker the larger beta."""

from rich.text import Text

from eroica.records import Finding
from eroica.text import one_line

BLOCKS = " ░▒▓█"
UNKNOWN = "·"
MAX_RANKS, MAX_FUNCTIONS, NAME = 16, 8, 14


def heatmap(findings: list[Finding]) -> Text:
    """Return beta by function and rank; empty where fewer than two ranks were measured.

    Of more than 16 ranks and 8 functions those with the largest values are shown.
    """
    values: dict[str, dict[int, float]] = {}
    for finding in findings:
        if finding.beta is None or finding.function is None:
            continue
        for rank in finding.ranks or (() if finding.rank is None else (finding.rank,)):
            row = values.setdefault(finding.function.name, {})
            row[rank] = max(row.get(rank, 0.0), finding.beta)
    largest: dict[int, float] = {}
    for row in values.values():
        for rank, beta in row.items():
            largest[rank] = max(largest.get(rank, 0.0), beta)
    if len(largest) < 2:
        return Text()
    ranks = sorted(sorted(largest, key=lambda rank: -largest[rank])[:MAX_RANKS])
    names = sorted(values, key=lambda name: -max(values[name].values()))[:MAX_FUNCTIONS]
    return _drawn(values, names, ranks, left_out=len(largest) - len(ranks))


def _drawn(
    values: dict[str, dict[int, float]], names: list[str], ranks: list[int], left_out: int
) -> Text:
    width = len(str(max(ranks)))
    text = Text("beta by function and rank", style="cyan")
    text.append(f" ({left_out} ranks left out)\n" if left_out else "\n", style="dim")
    head = " ".join(f"{rank:>{width}}" for rank in ranks)
    text.append(f"{'':<{NAME}} {head}\n", style="dim")
    for name in names:
        row = values[name]
        cells = " ".join(block(row.get(rank)) * width for rank in ranks)
        shown = one_line(name)
        shown = shown if len(shown) <= NAME else "…" + shown[1 - NAME :]
        text.append(f"{shown:<{NAME}} {cells} {max(row.values()):.2f}\n")
    return text


def block(beta: float | None) -> str:
    """The block for a share of time 0..1; a value never shows as nothing."""
    if beta is None:
        return UNKNOWN
    level = min(len(BLOCKS) - 1, round(beta * (len(BLOCKS) - 1)))
    return BLOCKS[max(1, level)] if beta > 0 else BLOCKS[0]
