"""DDP's broadcast of buffers in each forward, where they are large.

With ``broadcast_buffers=True``, its default, DistributedDataParallel sends all registered buffers
of the module from rank 0 before each forward. Batch norm's are small; a memory bank, a mask or a
table that is registered as a buffer is not. Evidence is the time in DDP's own function on the rank
that is longest there least: what it takes beyond that is waiting for rank 0, and no cost of bytes.
"""

import numpy as np

from eroica import units
from eroica.localize.rules.draft import Draft, pattern_finding, percent, step_text, where
from eroica.localize.rules.flights import merged_sites
from eroica.localize.rules.phase import training_line
from eroica.localize.rules.view import Bool, JobView
from eroica.localize.rules.zones import has, short
from eroica.records import Place

SYNC = frozenset({"_sync_buffers", "_sync_module_buffers"})


def buffer_broadcast(view: JobView) -> list[Draft]:
    """Return the cause where sending the buffers takes a part of the step."""
    mask = _mask(view)
    if not mask.any():
        return []
    gain = float(view.sum(mask).min())
    if gain < view.parameters.common_share:
        return []
    sizes = [
        n
        for site, _ in merged_sites(view)
        if site.via_framework and site.zone in ("forward", "ddp") and "broadcast" in site.ops
        for n in site.num_bytes
    ]
    setup = next((s.places for s in view.values("ddp") if s.places), ())[:1]
    places = (*setup, *(p for p in training_line(view, is_forward=True) if p not in setup))
    return [_draft(view, mask, gain, max(sizes, default=0), places)] if places else []


def _mask(view: JobView) -> Bool:
    return np.array(
        [
            any(
                short(f.name) in SYNC and has(f.file, "torch/nn/parallel/distributed.py")
                for f in row.frames
            )
            for row in view.rows
        ],
        dtype=bool,
    )


def _draft(
    view: JobView, mask: Bool, gain: float, largest: int, places: tuple[Place, ...]
) -> Draft:
    what = f" ({units.size(largest)} at once)" if largest else ""
    text = f"DDP broadcasts the module's buffers{what} before each forward: {percent(gain)} of it"
    return Draft(
        rule="buffer_broadcast",
        category="redundant_gradient_sync",
        ranks="all",
        places=places,
        share=gain,
        confidence=0.85,
        summary=text.removesuffix(" of it") + " of the step",
        why=[
            f"Every rank spends {percent(gain)} of the step or more in DDP's `_sync_buffers`"
            f"{step_text(view, gain)}; {where(places[0], view)} leaves broadcast_buffers on.",
            "Rank 0 sends all registered buffers each time, whether or not they changed.",
        ],
        against=["Buffers that only rank 0 has right need it; batch norm's statistics are small."],
        advice="Build the model with broadcast_buffers=False where each rank has the same buffers, "
        "or keep large tables outside the module's buffers.",
        findings=[pattern_finding(view, mask, text=text)],
        claims=gain,
    )
