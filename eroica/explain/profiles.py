"""Where the window went on a guilty and on a healthy rank, function by function.

Times are of the whole window; a step's are added where the number of steps is known.
"""

from collections.abc import Sequence

import numpy as np

from eroica import units
from eroica.columns import PatternTable, RankPatterns
from eroica.explain.parts import inert
from eroica.explain.privacy import is_library
from eroica.explain.rules import place_text
from eroica.records import Cause, Function, Incident, Place

_MAX_FUNCTIONS = 14
_MAX_CALLERS = 4


def profiles(incident: Incident, cause: Cause | None, patterns: Sequence[RankPatterns]) -> str:
    """Return the functions that differ most between a guilty rank and the median of the others.

    Where all ranks are guilty there is nothing to differ: the largest functions are listed.
    """
    if not patterns:
        return ""
    from eroica.summarize import merge

    table = merge(patterns)
    odd = () if cause is None or cause.ranks == "all" else cause.ranks
    guilty_R = np.isin(table.ranks_R, odd)
    rows = [_breakdowns(incident, odd)] if incident.breakdown else []
    if guilty_R.any() and not guilty_R.all():
        rows += _side_by_side(table, guilty_R)
    else:
        rows += _largest(table)
    return "\n".join(row for row in rows if row)


def _side_by_side(table: PatternTable, guilty_R: np.ndarray) -> list[str]:
    guilty = int(np.flatnonzero(guilty_R)[0])
    peers_F = np.median(table.beta_FR[:, ~guilty_R], axis=1)
    order = np.argsort(-np.abs(table.beta_FR[:, guilty] - peers_F), kind="stable")
    rows = [f"rank {table.ranks_R[guilty]} (guilty) against the median of the other ranks:"]
    for n in order[:_MAX_FUNCTIONS].tolist():
        own, other = float(table.beta_FR[n, guilty]), float(peers_F[n])
        if max(own, other) < 0.005 or table.functions[n].kind == "rest":
            continue
        mu = float(np.median(table.mu_FR[n, ~guilty_R]))
        sigma = float(np.median(table.sigma_FR[n, ~guilty_R]))
        vector = (
            f"beta={own:.3f} mu={table.mu_FR[n, guilty]:.2f} sigma={table.sigma_FR[n, guilty]:.2f}"
        )
        rows.append(f"{_name(table.functions[n])}")
        rows.append(f"  guilty:  {vector}{_time(table, n, guilty)}")
        rows.append(f"  healthy: beta={other:.3f} mu={mu:.2f} sigma={sigma:.2f}")
        rows += _callers(table.functions[n])
    return rows


def _largest(table: PatternTable) -> list[str]:
    mean_F = table.beta_FR.mean(axis=1)
    rows = ["mean over all ranks, largest first:"]
    for n in np.argsort(-mean_F, kind="stable")[:_MAX_FUNCTIONS].tolist():
        if mean_F[n] >= 0.005 and table.functions[n].kind != "rest":
            low, high = float(table.beta_FR[n].min()), float(table.beta_FR[n].max())
            span = f"beta={mean_F[n]:.3f} (lowest {low:.3f}, highest {high:.3f})"
            most = int(table.beta_FR[n].argmax())
            time = _time(table, n, most)
            where = f" on rank {table.ranks_R[most]}" if time else ""
            rows.append(f"{_name(table.functions[n])}: {span}{time}{where}")
            rows += _callers(table.functions[n])
    return rows


def _name(function: Function) -> str:
    place = Place(name=function.name, file=function.file, line=function.line)
    group = f" of group {function.group}" if function.group else ""
    return f"[{function.kind}] {inert(place_text(place) + group, 160)}"


def _time(table: PatternTable, row: int, column: int) -> str:
    """Total time and calls of one rank, and per step where steps were counted."""
    if table.total_ns_FR is None or table.count_FR is None:
        return ""
    total, count = int(table.total_ns_FR[row, column]), int(table.count_FR[row, column])
    text = f", {units.duration(total)} in {count} calls"
    steps = int(table.num_steps_R[column]) if table.num_steps_R is not None else -1
    return f"{text}, {units.duration(total / steps)} a step" if steps > 0 else text


def _callers(function: Function) -> list[str]:
    own = [place for place in function.stack if place.file and not is_library(place.file)]
    chosen = own[:_MAX_CALLERS] or function.stack[:2]
    places = [inert(place_text(place), 120) for place in chosen]
    return [f"  called from {' < '.join(places)}"] if places else []


def _breakdowns(incident: Incident, odd: Sequence[int]) -> str:
    """Compute, communication, data ... of the odd ranks and of the others, as means."""
    names = ("compute", "exposed_communication", "memory", "data", "python", "idle")
    groups = {
        "guilty": [row for row in incident.breakdown if row.rank in odd],
        "healthy" if odd else "all": [row for row in incident.breakdown if row.rank not in odd],
    }
    lines = []
    for name, members in groups.items():
        if members:
            means = {part: float(np.mean([getattr(m, part) for m in members])) for part in names}
            told = ", ".join(f"{part} {units.share(v)}" for part, v in means.items() if v >= 0.005)
            lines.append(f"window of the {name} ranks: {told}")
    return "\n".join(lines)
