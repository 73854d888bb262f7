"""Pictures over time: step times with the onset, lateness at each collective.

Shape suffixes: R ranks, S steps, C collectives.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.records import StepTimes
from eroica.report import canvas
from eroica.report.blocks import Picture
from eroica.report.draw_ranks import guilty_ranks
from eroica.report.material import Material, iso_ns

_MAX_POINTS = 400
_MAX_LINES = 6
Floats = NDArray[np.float64]


def draw_steps(material: Material) -> Picture | None:
    """Step time over time: the median and the slowest rank of each step, onset marked."""
    if material.evidence is None:
        return None
    steps = [rank.steps for rank in material.evidence.ranks if rank.steps is not None]
    steps = [one for one in steps if min(len(one.duration_ns), len(one.start_ns)) >= 3]
    steps = [one for one in steps if abs(one.first_step) < 1 << 62]
    if not steps:
        return None
    times_RS, starts_RS = _by_step(steps)
    when_S = np.nanmin(starts_RS, axis=0)
    onset = iso_ns(material.incident.onset)
    zero = float(onset) if onset is not None else float(when_S[0])
    x, middle, top = _thinned(
        (when_S - zero) / units.NS_PER_S,
        np.nanmedian(times_RS, axis=0) / units.NS_PER_MS,
        np.nanmax(times_RS, axis=0) / units.NS_PER_MS,
    )

    def paint(figure: canvas.Figure) -> None:
        axes = figure.subplots()
        axes.fill_between(x, middle, top, color=canvas.CALM, alpha=0.25, linewidth=0)
        axes.plot(x, middle, color=canvas.CALM, linewidth=1.2, label="median rank")
        axes.plot(x, top, color=canvas.CALM, linewidth=0.6, alpha=0.7, label="slowest rank")
        if onset is not None:
            axes.axvline(0, color=canvas.GUILTY, linewidth=1.2)
            is_late = x[0] < 0 and -x[0] > max(0.0, float(x[-1]))  # beside it stands the legend
            axes.annotate(
                "onset",
                (0, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-4 if is_late else 4, -10),
                textcoords="offset points",
                ha="right" if is_late else "left",
                color=canvas.GUILTY,
            )
        axes.set_xlabel("seconds from the onset" if onset is not None else "seconds")
        axes.set_ylabel("step, ms")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)

    median = float(np.nanmedian(times_RS)) / units.NS_PER_MS
    worst = float(np.nanmax(times_RS)) / units.NS_PER_MS
    alt = (
        f"{times_RS.shape[1]} steps of {len(steps)} ranks: median {median:.4g} ms, "
        f"longest {worst:.4g} ms."
    )
    return Picture("steps", "Step time", alt, canvas.svg("steps", (8.6, 2.3), paint))


def _by_step(steps: Sequence[StepTimes]) -> tuple[Floats, Floats]:
    """Durations and starts of ranks by step, NaN where a rank has none; steps of no rank left out.

    Ranks may be far apart in their numbers (one that came back counts anew).
    """
    sizes = [min(len(one.duration_ns), len(one.start_ns)) for one in steps]
    numbers = [one.first_step + np.arange(n) for one, n in zip(steps, sizes, strict=True)]
    known_S = np.unique(np.concatenate(numbers))
    times_RS = np.full((len(steps), len(known_S)), np.nan)
    starts_RS = np.full_like(times_RS, np.nan)
    for row, (one, size, own) in enumerate(zip(steps, sizes, numbers, strict=True)):
        columns = np.searchsorted(known_S, own)
        times_RS[row, columns] = one.duration_ns[:size]
        starts_RS[row, columns] = one.start_ns[:size]
    return times_RS, starts_RS


def _thinned(x: Floats, middle: Floats, top: Floats) -> tuple[Floats, Floats, Floats]:
    """At most ``_MAX_POINTS`` points; of each bin the longest step stays visible."""
    if len(x) <= _MAX_POINTS:
        return x, middle, top
    bins = np.array_split(np.arange(len(x)), _MAX_POINTS)
    return (
        np.array([x[ix[0]] for ix in bins]),
        np.array([np.median(middle[ix]) for ix in bins]),
        np.array([top[ix].max() for ix in bins]),
    )


def draw_arrivals(material: Material) -> Picture | None:
    """How late each rank came to each collective; the others wait that long."""
    late = lateness(material)
    if late is None:
        return None
    ranks_R, late_RC = late
    sums_R = late_RC.mean(axis=1)
    guilty = [rank for rank in guilty_ranks(material) if rank in set(ranks_R.tolist())]
    by_lateness = ranks_R[np.argsort(-sums_R, kind="stable")].tolist()
    named = (guilty or by_lateness)[:_MAX_LINES]
    others_R = ~np.isin(ranks_R, named)
    bins = np.array_split(np.arange(late_RC.shape[1]), min(_MAX_POINTS, late_RC.shape[1]))
    x = np.array([ix[0] for ix in bins])
    shown_RC = np.stack([late_RC[:, ix].max(axis=1) for ix in bins], axis=1)

    def paint(figure: canvas.Figure) -> None:
        axes = figure.subplots()
        if others_R.any():
            low, mid, high = np.percentile(shown_RC[others_R], (0, 50, 100), axis=0)
            axes.fill_between(x, low, high, color=canvas.CALM, alpha=0.25, linewidth=0)
            axes.plot(x, mid, color=canvas.CALM, linewidth=1, label="median of the others")
        for n, rank in enumerate(named):
            row = int(np.flatnonzero(ranks_R == rank)[0])
            color = canvas.GUILTY if rank in guilty else canvas.SOFT
            style = ("-", "--", ":", "-.")[n % 4]
            axes.plot(x, shown_RC[row], style, color=color, linewidth=1, label=f"rank {rank}")
        axes.set_xlabel("collective, in order")
        axes.set_ylabel("late by, ms")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)

    worst = int(sums_R.argmax())
    alt = (
        f"Over {late_RC.shape[1]} collectives rank {ranks_R[worst]} comes latest, on average by "
        f"{sums_R[worst]:.3g} ms; the median rank by {float(np.median(sums_R)):.3g} ms."
    )
    picture = canvas.svg("arrivals", (8.6, 2.4), paint)
    return Picture("arrivals", "Lateness at each collective", alt, picture)


def lateness(material: Material) -> tuple[NDArray[np.int64], Floats] | None:
    """Return ranks and their lateness in ms at the collectives that all of them took part in.

    Collectives end together, so the shorter a rank's stay, the later it came: no common clock
    is needed.
    """
    arrivals = [(one.rank, one.arrivals) for one in material.patterns if one.arrivals is not None]
    arrivals = [(rank, one) for rank, one in arrivals if len(one.key_C)]
    if len(arrivals) < 2:
        return None
    stays = [
        dict(zip(one.key_C, (one.end_ns_C - one.start_ns_C).tolist(), strict=True))
        for _, one in arrivals
        if one is not None
    ]
    shared = set(stays[0]).intersection(*stays[1:])
    order = [key for key in stays[0] if key in shared]
    if len(order) < 2:
        return None
    stay_RC = np.array([[stay[key] for key in order] for stay in stays], dtype=np.float64)
    late_RC = (stay_RC.max(axis=0) - stay_RC) / units.NS_PER_MS
    return np.array([rank for rank, _ in arrivals], dtype=np.int64), late_RC
