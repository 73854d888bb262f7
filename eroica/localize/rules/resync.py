"""Gradients that go over the wire more than once for one optimizer step.

Evidence is the Flight Recorder: numbers and sizes of the exchange in backward, a step, against the
parameters of the job's models. Counter-evidence: an optimizer step after each backward pass in
the source (two models trained in turn), and sharded models, which gather parameters there.
"""

import ast

import numpy as np

from eroica.localize.rules.communication import rate_finding
from eroica.localize.rules.draft import Draft, mean_over, percent, step_text, where
from eroica.localize.rules.flights import Site, merged_sites
from eroica.localize.rules.view import JobView
from eroica.localize.source_calls import calls
from eroica.localize.source_flow import blocks, loops
from eroica.records import Place

MIN_TIMES = 1.8  # exchanges of the gradients a step; once is what it needs


def repeated_sync(view: JobView) -> list[Draft]:
    """Return the cause where backward exchanges all gradients several times a step."""
    draft = _repeated_sync(view, [s for s, _ in merged_sites(view)])
    return [draft] if draft is not None else []


def _repeated_sync(view: JobView, sites: list[Site]) -> Draft | None:
    engine = [s for s in sites if s.zone in ("backward", "ddp") and s.per_step]
    # A sharded model gathers its parameters there: each unit's, in every pass.
    engine = [s for s in engine if not any("gather" in op for op in s.ops)]
    if not engine:
        return None
    site = max(engine, key=lambda s: sum(s.num_bytes))
    times = _exchanges(view, site)
    if times < MIN_TIMES or (site.chain and _steps_each_time(view, site.chain[0])):
        return None
    waiting = mean_over(
        view.sum_seen(view.zones.get("backward", np.zeros(len(view.rows), bool)), view.wait_FR)
    )
    if not view.rows:
        waiting = site.share
    elif np.isnan(view.busy_FR).all():
        waiting = _engine_share(view) * 0.5
    gain = waiting * (1 - 1 / times)
    if gain < view.parameters.common_share:
        return None
    place = where(site.chain[0] if site.chain else None, view)
    rounded = round(times)
    return Draft(
        rule="repeated_sync",
        category="redundant_gradient_sync",
        ranks="all",
        places=site.chain[:2],
        share=gain,
        confidence=0.9,
        summary=f"the gradients are exchanged {rounded} times for one optimizer step at {place}",
        why=[
            f"Backward at {place} exchanges all gradients {times:.1f} times between two "
            "optimizer steps; only the last exchange is needed.",
            f"That is worth about {percent(gain)} of the step{step_text(view, gain)}.",
        ],
        advice="Run all but the last micro-batch under model.no_sync().",
        findings=[rate_finding(site, f"gradients exchanged {times:.1f} times a step")],
        claims=gain,
    )


def _engine_share(view: JobView) -> float:
    rows = [row.zone in ("backward", "collective") for row in view.rows]
    return mean_over(view.sum_seen(np.array(rows, dtype=bool)))


def _parameters(view: JobView) -> float:
    """Of all DDP models of one rank: a job may train several, each with its own exchange."""
    for rank in view.ranks:
        values = [s.value for s in view.values("ddp", rank) if isinstance(s.value, dict)]
        counts = [v.get("num_parameters") for v in values]
        if counts and all(isinstance(n, int | float) for n in counts):
            return float(sum(n for n in counts if n is not None))
    return 0.0


def _steps_each_time(view: JobView, place: Place) -> bool:
    """Whether the source has an optimizer step after each of these backward passes.

    Two models trained in turn, or one trained five times as often, exchange more than once a step
    of the loop, and need to.
    """
    info = view.project.enclosing(place.file, place.line)
    if info is None or not place.line:
        return False
    around = loops(info, place.line)
    first = around[0].line if around else info.line
    last = getattr(around[0].node if around else info.node, "end_lineno", None) or place.line
    inner = blocks(info, place.line)
    for call in calls(info):
        if first <= call.lineno <= last and call.lineno > place.line and _is_optimizer_step(call):
            other = blocks(info, call.lineno)
            same_loop = [b.line for b in loops(info, call.lineno)] == [b.line for b in around]
            if same_loop and {b.line for b in other} <= {b.line for b in inner}:
                return True
    return False


def _is_optimizer_step(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return False
    owner = ast.unparse(call.func.value).lower()
    if any(word in owner for word in ("sched", "prof", "env", "bar", "eroica")):
        return False
    return not call.args or "opt" in ast.unparse(call.args[0]).lower() or "scaler" in owner


def _exchanges(view: JobView, site: Site) -> float:
    """How often all gradients are exchanged a step: by numbers against the parameters (in whatever
    type they travel), and by how often each size comes, the smaller of both."""
    parameters = _parameters(view)
    per_size = list(site.sizes.values())
    steps = site.count / site.per_step if site.per_step else 0.0
    by_size = min(per_size) / steps if steps and per_size else 0.0
    if not parameters or not steps:
        return by_size
    by_number = site.num_elements / steps / parameters
    return min(by_number, max(by_size, by_number / 1.5))
