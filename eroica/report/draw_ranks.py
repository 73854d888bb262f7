"""Pictures over ranks: what held each, how far each function is off, one function's pattern.

Shape suffixes: F functions, R ranks, B columns of the picture.
"""

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.columns import RankPatterns
from eroica.explain.rules import rank_phrase
from eroica.records import Function
from eroica.report import canvas
from eroica.report.blocks import Picture
from eroica.report.material import Material

_MAX_FUNCTIONS = 14
_NO_FUNCTION = ("rest", "idle")
_SMALL_BETA, _SMALL_MU, _SMALL_SIGMA = 0.1, 0.1, 0.25
"""Ours: what lies below is noise, and is not blown up to a full distance."""
_NAMES = {"exposed_communication": "exposed communication"}
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def guilty_ranks(material: Material) -> tuple[int, ...]:
    """Ranks of the first cause; empty where it is all of them or there is none."""
    causes = material.incident.causes
    return () if not causes or causes[0].ranks == "all" else causes[0].ranks


def draw_breakdown(material: Material) -> Picture | None:
    """Per rank: compute, exposed communication, memory, data, Python, idle."""
    rows = sorted(material.incident.breakdown, key=lambda row: row.rank)
    if not rows:
        return None
    guilty = guilty_ranks(material)
    groups = canvas.blocks(np.array([row.rank for row in rows], dtype=np.int64), guilty)
    values = {part: np.array([getattr(row, part) for row in rows]) for part in canvas.PARTS}
    bars = {part: np.array([v[ix].mean() for _, ix in groups]) for part, v in values.items()}

    def paint(figure: canvas.Figure) -> None:
        axes = figure.subplots()
        base = np.zeros(len(groups))
        for part, heights in bars.items():
            if heights.max(initial=0) > 0:
                label, color = _NAMES.get(part, part), canvas.PARTS[part]
                places = np.arange(len(groups))
                axes.bar(places, heights, 0.86, bottom=base, label=label, color=color)
                base = base + heights
        axes.set_ylabel("share of the window")
        axes.set_xlabel(_rank_label(groups))
        axes.set_ylim(0, 1)
        axes.margins(x=0.01)
        canvas.rank_ticks(axes, [label for label, _ in groups], guilty)
        figure.legend(loc="outside upper left", ncols=6, frameon=False, fontsize=8.5)

    alt = _breakdown_words(values, [row.rank for row in rows], guilty)
    picture = canvas.svg("breakdown", (8.6, 2.9), paint)
    return Picture("breakdown", "What held each rank", alt, picture)


def _breakdown_words(values: dict[str, Floats], ranks: list[int], guilty: tuple[int, ...]) -> str:
    chosen = np.isin(ranks, guilty)
    if not chosen.any() or chosen.all():
        return "On average: " + _parts({part: float(v.mean()) for part, v in values.items()}) + "."
    own = _parts({part: float(v[chosen].mean()) for part, v in values.items()})
    rest = _parts({part: float(v[~chosen].mean()) for part, v in values.items()})
    return f"{rank_phrase(guilty)}: {own}. The others: {rest}."


def _parts(values: dict[str, float]) -> str:
    named = [f"{_NAMES.get(p, p)} {units.share(v)}" for p, v in values.items() if v >= 0.005]
    return ", ".join(named) or "nothing measured"


def _rank_label(groups: list[tuple[str, NDArray[np.intp]]]) -> str:
    size = max(len(members) for _, members in groups)
    return "rank" if size == 1 else f"rank (blocks of up to {size}; the odd ones alone)"


def draw_heatmap(material: Material) -> Picture | None:
    """Rank x function: how far a rank's pattern is from the median of all ranks."""
    table = pattern_rows(material.patterns)
    if table is None or len(table[1]) < 2:
        return None
    functions, ranks_R, beta_FR, mu_FR, sigma_FR = table
    distance_FR = (
        _off_median(beta_FR, _SMALL_BETA)
        + _off_median(mu_FR, _SMALL_MU)
        + _off_median(sigma_FR, _SMALL_SIGMA)
    )
    distance_FR[beta_FR.max(axis=1) < 0.01] = 0.0
    cited = _cited(material)
    score_F = distance_FR.max(axis=1) + np.array([10.0 * (f.id in cited) for f in functions])
    chosen = [int(n) for n in np.argsort(-score_F, kind="stable")[:_MAX_FUNCTIONS]]
    chosen = [n for n in chosen if score_F[n] > 0]
    if not chosen:
        return None
    guilty = guilty_ranks(material)
    groups = canvas.blocks(ranks_R, guilty)
    # The odd ranks stand alone; of a block of the others what is usual there is shown.
    shown_FB = np.stack([distance_FR[chosen][:, ix].mean(axis=1) for _, ix in groups], axis=1)
    names = [canvas.short(functions[n].name, 38) for n in chosen]

    def paint(figure: canvas.Figure) -> None:
        axes = figure.subplots()
        top = max(float(shown_FB.max()), 1e-9)
        image = axes.imshow(
            shown_FB, aspect="auto", cmap="YlOrRd", vmin=0, vmax=top, interpolation="nearest"
        )
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0)
        axes.set_xlabel(_rank_label(groups))
        canvas.rank_ticks(axes, [label for label, _ in groups], guilty)
        bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=18)
        bar.set_label("distance")
        bar.outline.set_visible(False)

    rows = [n for n, f in enumerate(chosen) if functions[f].id in cited] or [*range(len(chosen))]
    told_FR = np.full((len(chosen), len(ranks_R)), -1.0)
    told_FR[rows] = distance_FR[chosen][rows]
    odd_R = np.isin(ranks_R, guilty)
    if odd_R.any():
        told_FR[:, ~odd_R] = -1.0
    row, column = np.unravel_index(int(told_FR.argmax()), told_FR.shape)
    usual = float(np.median(distance_FR[chosen[int(row)]]))
    alt = (
        f"{canvas.short(functions[chosen[int(row)]].name, 80)} on rank {ranks_R[column]} is "
        f"{told_FR[row, column]:.2f} from its peers, the median rank {usual:.2f}; "
        f"{len(chosen)} functions over {len(ranks_R)} ranks."
    )
    picture = canvas.svg("heatmap", (8.6, 1.2 + 0.24 * len(chosen)), paint)
    return Picture("heatmap", "How far each function is from its peers, rank by rank", alt, picture)


def _off_median(values_FR: Floats, small: float) -> Floats:
    """Distance to the median over ranks, in units of the function's largest value (paper: D)."""
    scale_F = np.maximum(np.abs(values_FR).max(axis=1), small)
    off = np.abs(values_FR - np.median(values_FR, axis=1, keepdims=True))
    return np.asarray(off / scale_F[:, None], dtype=np.float64)


def _cited(material: Material) -> set[str]:
    keys = {key for cause in material.incident.causes for key in cause.findings}
    found = (f.function for f in material.incident.findings if f.id in keys)
    return {function.id for function in found if function is not None}


def draw_pattern(material: Material) -> Picture | None:
    """The first cause's function: beta, mu and sigma over the ranks."""
    table = pattern_rows(material.patterns)
    cited = _cited(material)
    if table is None or not cited or len(table[1]) < 2:
        return None
    functions, ranks_R, *values = table
    rows = [n for n, function in enumerate(functions) if function.id in cited]
    if not rows:
        return None
    row = max(rows, key=lambda n: float(values[0][n].max()))
    guilty = guilty_ranks(material)
    chosen_R = np.isin(ranks_R, guilty)

    def paint(figure: canvas.Figure) -> None:
        panels = figure.subplots(1, 3)
        names = ("beta: share of the window", "mu: mean use", "sigma: its deviation")
        for axes, title, matrix in zip(panels, names, values, strict=True):
            _spread(axes, ranks_R, matrix[row], chosen_R)
            axes.set_title(title)
            axes.set_xlabel("rank")
            axes.set_ylim(0, 1.18 * float(matrix[row].max()) or 1.0)

    name = canvas.short(functions[row].name, 80)
    peers = float(np.median(values[0][row][~chosen_R])) if (~chosen_R).any() else 0.0
    alt = f"{name}: the median rank spends {units.share(peers)} of the window in it"
    if chosen_R.any():
        own = float(values[0][row][chosen_R].mean())
        alt += f", {rank_phrase(guilty)} {units.share(own)}"
    picture = canvas.svg("pattern", (8.6, 2.3), paint)
    return Picture("pattern", f"Pattern of {name} over the ranks", f"{alt}.", picture)


def _spread(
    axes: canvas.Axes, ranks_R: NDArray[np.int64], values_R: Floats, chosen_R: Bools
) -> None:
    """Points for up to 400 ranks; beyond, the range of each block and the odd ranks as points."""
    calm_R = ~chosen_R
    if calm_R.sum() <= 400:
        axes.plot(ranks_R[calm_R], values_R[calm_R], ".", color=canvas.CALM, markersize=4)
    else:
        parts = np.array_split(np.flatnonzero(calm_R), 200)
        middle = [float(ranks_R[part].mean()) for part in parts]
        low = [float(values_R[part].min()) for part in parts]
        high = [float(values_R[part].max()) for part in parts]
        axes.fill_between(middle, low, high, color=canvas.CALM, alpha=0.35, linewidth=0)
        axes.plot(middle, [float(np.median(values_R[p])) for p in parts], color=canvas.CALM)
    odd = np.flatnonzero(chosen_R)[:400]
    axes.plot(ranks_R[odd], values_R[odd], "D", color=canvas.GUILTY, markersize=4)
    for label, n in canvas.folded([int(ranks_R[n]) for n in odd.tolist()], odd.tolist())[:4]:
        axes.annotate(
            label,
            (ranks_R[n], values_R[n]),
            xytext=(4, 3),
            textcoords="offset points",
            color=canvas.GUILTY,
            fontsize=8,
        )


Rows = tuple[list[Function], NDArray[np.int64], Floats, Floats, Floats]


def pattern_rows(patterns: tuple[RankPatterns, ...]) -> Rows | None:
    """Return functions, ranks and their (beta, mu, sigma) as function x rank; absent means 0."""
    if not patterns:
        return None
    from eroica.summarize import merge

    table = merge(patterns)
    kept = [n for n, function in enumerate(table.functions) if function.kind not in _NO_FUNCTION]
    if not kept:
        return None
    beta, mu, sigma = (
        np.asarray(values[kept], dtype=np.float64)
        for values in (table.beta_FR, table.mu_FR, table.sigma_FR)
    )
    return [table.functions[n] for n in kept], table.ranks_R, beta, mu, sigma
