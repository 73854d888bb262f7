"""Sharding in units too small: a framework gathers and scatters many little parameters a step.

Evidence is the Flight Recorder's count of collectives that a sharding framework issues, with
their bytes, beside the time that ranks wait in them. Counter-evidence: few or large units, whose
time is that of the bytes.
"""

import numpy as np

from eroica import units
from eroica.localize.rules.communication import SMALL_BYTES
from eroica.localize.rules.draft import Draft, mean_over, percent, step_text, where
from eroica.localize.rules.flights import Site, merged_sites
from eroica.localize.rules.view import JobView
from eroica.localize.source_calls import calls, dotted
from eroica.localize.source_flow import loops
from eroica.records import Finding, Place

WRAPPERS = ("fully_shard", "FullyShardedDataParallel", "FSDP")
TINY_BYTES = SMALL_BYTES // 4  # of a unit: a quarter of what is latency-bound already
MANY_UNITS = 20.0  # collectives a step; a model of six units needs 18 with its backward
ENOUGH_UNITS = 6.0  # so many collectives would be left if the model were cut sensibly


def small_shards(view: JobView) -> list[Draft]:
    """Return the cause where sharded units are many and tiny."""
    sites = [s for s, _ in merged_sites(view) if s.via_framework and s.zone != "ddp"]
    if not any("all_gather" in op or "allgather" in op for s in sites for op in s.ops):
        return []
    rate = sum(s.per_step for s in sites)
    sizes = [n for s in sites for n in s.num_bytes]
    median = float(np.median(sizes)) if sizes else 0.0
    if rate < MANY_UNITS or median > TINY_BYTES:
        return []
    gain = _waiting(view, sites) * (1 - ENOUGH_UNITS / rate)
    places = _wrap_site(view) or max(sites, key=lambda s: s.per_step).chain[:2]
    if gain < view.parameters.common_share or not places:
        return []
    return [_draft(view, rate, median, gain, places)]


def _waiting(view: JobView, sites: list[Site]) -> float:
    """Share of time that ranks wait in these collectives."""
    if not view.rows or np.isnan(view.busy_FR).all():
        return min(sum(s.share for s in sites), 1.0) * 0.5
    zones = {s.zone for s in sites}
    none = np.zeros(len(view.rows), dtype=bool)
    return sum(mean_over(view.sum_seen(view.zones.get(zone, none), view.wait_FR)) for zone in zones)


def _wrap_site(view: JobView) -> tuple[Place, ...]:
    """The project's call that makes the units, the one in a loop first, and who calls it."""
    found: list[tuple[bool, Place]] = []
    for function in view.project.functions:
        found += [
            (not loops(function, call.lineno), function.place(call.lineno))
            for call in calls(function)
            if dotted(call.func, function.module).rsplit(".", 1)[-1] in WRAPPERS
        ]
    found.sort(key=lambda pair: pair[0])
    return tuple(place for _, place in found[:2])


def _draft(
    view: JobView, rate: float, median: float, gain: float, places: tuple[Place, ...]
) -> Draft:
    text = f"{rate:.0f} collectives a step of {units.size(median)} each, issued for sharded units"
    return Draft(
        rule="small_shards",
        category="excessive_small_collectives",
        ranks="all",
        places=places,
        share=gain,
        confidence=0.8,
        summary=f"{text} made at {where(places[0], view)}, cost {percent(gain)} of the step",
        why=[
            f"The Flight Recorder counts {text}.",
            f"Ranks wait in them for {percent(gain)} of the step; a few units of whole blocks "
            f"would carry the same bytes{step_text(view, gain)}.",
        ],
        against=["Larger units hold more gathered parameters in memory at a time."],
        advice="Shard whole blocks and the root module, not each small layer by itself.",
        findings=[
            Finding(
                id="",
                kind="collective_rate",
                text=text,
                details={"per_step": round(rate, 2), "median_bytes": median},
            )
        ],
        claims=gain,
    )
