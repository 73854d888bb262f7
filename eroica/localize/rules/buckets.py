"""DDP's buckets set so small that a step exchanges dozens of little messages.

Evidence is DDP's own ``bucket_cap_mb`` beside the Flight Recorder's count of reductions a step and
the time that ranks wait in the backward pass. Counter-evidence: few reductions, or large ones.
"""

import numpy as np

from eroica import units
from eroica.localize.rules.communication import SMALL_BYTES
from eroica.localize.rules.draft import Draft, mean_over, percent, step_text, where
from eroica.localize.rules.flights import merged_sites
from eroica.localize.rules.phase import training_line
from eroica.localize.rules.view import Bool, JobView
from eroica.records import Finding, Place, Setting

USUAL_CAP_MB = 25.0  # torch's own
SMALL_CAP_MB = 1.0  # torch's own first bucket; a whole model of such buckets waits on latency
MANY = 8.0  # reductions a step
MIB = 2**20


def small_buckets(view: JobView) -> list[Draft]:
    """Return the cause where a bucket cap far under torch's own cuts gradients to pieces."""
    found = [s for s in view.values("ddp") if _cap(s) is not None]
    caps = [cap for s in found if (cap := _cap(s)) is not None]
    if not caps or min(caps) >= SMALL_CAP_MB:
        return []
    sites = [s for s, _ in merged_sites(view) if s.zone in ("backward", "ddp")]
    rate = sum(s.per_step for s in sites)
    sizes = [n for s in sites for n in s.num_bytes]
    if rate < MANY or (sizes and float(np.median(sizes)) > SMALL_BYTES):
        return []
    needed = max(1.0, float(np.median(sizes)) * rate / (USUAL_CAP_MB * MIB)) if sizes else 1.0
    waiting = mean_over(view.sum(_backward(view), view.wait_FR)) if view.rows else 0.0
    gain = waiting * (1 - needed / rate)
    if gain < view.parameters.common_share:
        return []
    place = next((s.places for s in found if _cap(s) == min(caps) and s.places), ())[:1]
    return [_draft(view, rate, min(caps), gain, (*place, *training_line(view)))]


def _cap(setting: Setting) -> float | None:
    value = setting.value.get("bucket_cap_mb") if isinstance(setting.value, dict) else None
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _backward(view: JobView) -> Bool:
    return np.array([row.zone in ("backward", "ddp") for row in view.rows], dtype=bool)


def _draft(view: JobView, rate: float, cap: float, gain: float, places: tuple[Place, ...]) -> Draft:
    at = where(places[0] if places else None, view)
    text = f"DDP's buckets hold {units.size(cap * MIB)}: {rate:.0f} reductions a step"
    return Draft(
        rule="small_buckets",
        category="excessive_small_collectives",
        ranks="all",
        places=places,
        share=gain,
        confidence=0.85,
        summary=f"{text}{f', set at {at}' if at else ''}, cost {percent(gain)} of it",
        why=[
            f"bucket_cap_mb is {cap:.3g} (torch's own is {USUAL_CAP_MB:.0f}), and the Flight "
            f"Recorder counts {rate:.0f} reductions a step.",
            f"Ranks wait in them for {percent(gain)} of the step{step_text(view, gain)}.",
        ],
        against=["Small buckets are sometimes meant to overlap more of the backward pass."],
        advice="Leave bucket_cap_mb at its default, or raise it until a step needs a few buckets.",
        findings=[
            Finding(
                id="",
                kind="collective_rate",
                text=text,
                details={"per_step": round(rate, 2), "bucket_cap_mb": cap},
            )
        ],
        claims=gain,
    )
