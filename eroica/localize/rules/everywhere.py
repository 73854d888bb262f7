"""Python that all ranks show beyond what is expected: collection at different steps, loading."""

import numpy as np

from eroica.localize.distance import FunctionDistances
from eroica.localize.rules.draft import Draft, percent
from eroica.localize.rules.tables import Fleet
from eroica.localize.scan import activity_of
from eroica.records import Finding, Place


def common_python(fleet: Fleet) -> list[Draft]:
    """Python that all ranks show beyond what is expected: collection, loading."""
    drafts: list[Draft] = []
    wait = float(np.median(fleet.scan.wait_R))
    for found in fleet.scan.found:
        if found.function.kind != "python" or found.num_unexpected < 0.5 * fleet.num_ranks:
            continue
        level = float(np.median([m[0] for m in found.peers.values()]))
        group = activity_of(found.function)
        if group == "gc":
            drafts.append(_pauses(fleet, found, level, wait))
        elif group in ("loader", "loader_wait") and level >= fleet.parameters.common_data_share:
            drafts.append(
                _common_draft(
                    found, "dataloader_bottleneck", level, "all ranks wait for their data"
                )
            )
    return drafts


def _pauses(fleet: Fleet, found: FunctionDistances, level: float, wait: float) -> Draft:
    """Pauses at different steps hold all others: a pause is as long as its share times the steps
    between two, and a step is held when any rank pauses in it."""
    rate = fleet.pauses_per_step or 1.0 / fleet.parameters.gc_pause_every
    length = level / rate
    share = min(length * (1 - float(np.exp(-fleet.num_ranks * rate))), level + wait)
    draft = _common_draft(
        found, "gc_pause", max(share, level), "garbage collection stops ranks at different steps"
    )
    draft.why.append(
        f"Each rank collects for {percent(level)} of its time; the pauses of "
        f"{fleet.num_ranks} ranks fall on different steps and add up."
    )
    draft.rule = "gc"
    return draft


def _common_draft(found: FunctionDistances, category: str, share: float, what: str) -> Draft:
    function = found.function
    place = Place(name=function.name, file=function.file, line=function.line)
    level = float(np.median([m[0] for m in found.peers.values()]))
    return Draft(
        rule="common",
        category=category,
        ranks="all",
        places=(place, *function.stack[:1]),
        share=share,
        confidence=0.8,
        summary=f"{what}: {percent(share)} of the step",
        why=[
            f"{function.name} holds {percent(level)} of the time on the median rank, where "
            "1 % is expected."
        ],
        advice="Freeze long-lived objects and collect at the same step on all ranks."
        if category == "gc_pause"
        else "Give the loader workers, or make the data cheaper.",
        findings=[
            Finding(
                id="",
                kind="pattern",
                function=function,
                beta=round(level, 4),
                expected_distance=round(found.max_expected_distance, 4),
                text=what,
            )
        ],
        claims=share,
    )
