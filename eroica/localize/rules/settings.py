"""Causes that the job's settings tell: debug switches, thread counts, samplers, DDP's options.

A setting is decisive evidence that a switch is on, and none of what it costs. Stacks give the cost
where the switch works in Python (anomaly mode); else the cost is marked as not measured and the
order falls back to what the switch is known to do.
"""

import ast
import re

import numpy as np

from eroica.localize.rules.draft import (
    Draft,
    hottest,
    mean_over,
    pattern_finding,
    percent,
    where,
    with_setup,
)
from eroica.localize.rules.phase import find_spine
from eroica.localize.rules.told import is_number
from eroica.localize.rules.view import Bool, JobView
from eroica.records import Finding, Place, Setting

DEBUG_ENVIRONMENT: dict[str, tuple[str, float, str]] = {
    "TORCH_DISTRIBUTED_DEBUG": (r"detail", 0.25, "checks every collective with extra ones"),
    "CUDA_LAUNCH_BLOCKING": (r"1|true", 0.4, "waits for every kernel before the next one"),
    "HIP_LAUNCH_BLOCKING": (r"1|true", 0.4, "waits for every kernel before the next one"),
    "TORCH_NCCL_BLOCKING_WAIT": (r"1|true", 0.15, "blocks the host in every collective"),
    "TORCH_SHOW_DISPATCH_TRACE": (r"1|true", 0.4, "prints every dispatched operator"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (r"1|true", 0.4, "allocates device memory for every tensor"),
    "PYTHONTRACEMALLOC": (r"[1-9]\d*", 0.3, "records a traceback for every allocation"),
    "PYTHONDEVMODE": (r"1|true", 0.2, "adds checks to every Python object"),
    "PYTHONASYNCIODEBUG": (r"1|true", 0.15, "adds checks to every coroutine"),
    "PYTHONPROFILEIMPORTTIME": (r"1|true", 0.1, "times every import"),
    "CUDNN_LOGLEVEL_DBG": (r"[3-9]", 0.2, "logs every cuDNN call"),
    "NCCL_DEBUG": (r"trace", 0.2, "logs every call of NCCL"),
    "TORCH_LOGS": (r".*(\+dynamo|output_code|aot|all).*", 0.2, "logs what the compiler does"),
}


CONTENDED = 0.5  # of runnable time spent waiting for a core: then fewer threads a core are too many
FAR_RATIO, FAR_CONTENDED = 4.0, 0.2  # threads a core set in the code; less waiting shows it then
MEASURED = 0.03  # of the step: a smaller share is within the sampling's error


def debug_settings(view: JobView) -> list[Draft]:
    """Anomaly mode, tracemalloc, and environment switches that cost on every call."""
    drafts: list[Draft] = []
    for key, what, typical in (
        ("anomaly_mode", "autograd's anomaly detection is on", 0.4),
        ("tracemalloc", "tracemalloc records a traceback for every allocation", 0.4),
        ("profiler_active", "a profiler of the job's own runs all the time", 0.15),
        ("tracing", "a trace or profile function is called for every call", 0.3),
        ("deterministic_debug", "torch's deterministic debug mode is on", 0.1),
    ):
        found = [s for s in view.values(key) if s.value]
        if found:
            drafts.append(_switch(view, key, what, typical, found))
    drafts += _profilers(view)
    for name, (pattern, typical, does) in DEBUG_ENVIRONMENT.items():
        found = [
            s
            for s in view.values(f"env.{name}")
            if re.fullmatch(pattern, str(s.value).strip(), re.IGNORECASE)
        ]
        if found:
            text = f"{name}={found[0].value} {does}"
            drafts.append(_switch(view, f"env.{name}", text, typical, found))
    return [d for d in drafts if d.weight > 0]


def _profilers(view: JobView) -> list[Draft]:
    """A profiler that the job starts anew in most steps, or that is on for most of them."""
    found = [s for s in view.values("profiler.runs") if isinstance(s.value, dict)]
    steps = next(iter(view.steps.values()), None)
    if not found or steps is None or not view.step_ns or view.value("profiler_active"):
        return []
    num_steps = steps.first_step + len(steps.start_ns)
    span_ns = max(num_steps * view.step_ns, 1.0)
    value = found[0].value
    is_on = value["live_ns"] >= 0.5 * span_ns or value["count"] >= 0.5 * num_steps
    if num_steps < 10 or not is_on:
        return []
    text = f"the job starts a profiler of its own {value['count']} times in {num_steps} steps"
    share = min(value["exit_ns"] / span_ns, 0.9)
    return [_switch(view, "profiler.runs", text, 0.15, found, share if share >= MEASURED else None)]


def _switch(
    view: JobView,
    key: str,
    what: str,
    typical: float,
    found: list[Setting],
    share: float | None = None,
) -> Draft:
    mask = np.zeros(len(view.rows), dtype=bool)
    if key == "anomaly_mode":
        mask = np.array([r.zone == "anomaly" for r in view.rows], dtype=bool)
        measured = mean_over(view.sum_seen(mask))
        share = measured if measured >= MEASURED else None
    setup = next((s.places for s in found if s.places), ()) or _constant(view, key)
    weights = view.share_FR.mean(axis=1) if view.num_ranks else np.zeros(len(view.rows))
    hot = hottest(view, mask if mask.any() else _busiest(view), weights)
    places = (*setup[:1], *[p for p in hot[:1] if p not in setup[:1]])
    findings = [Finding(id="", kind="setting", text=what, details={"key": key})]
    if mask.any():
        text = f"formatting stacks for anomaly mode takes {percent(share)} of the step"
        findings.append(pattern_finding(view, mask, text=text))
    at = where(places[0] if places else None, view)
    return Draft(
        rule="debug_setting",
        category="debug_setting_left_on",
        ranks="all",
        places=places,
        share=share,
        rank_share=typical,
        confidence=0.95 if key in ("anomaly_mode", "tracemalloc") else 0.85,
        summary=f"{what}{f', set at {at}' if at and setup else ''}",
        why=[f"{what}; such a switch is for a bug hunt and slows every step."]
        + ([f"Its own work is {percent(share)} of the step."] if share else []),
        against=[] if share else ["What it costs here was not measured."],
        advice="Switch it off for training; keep it behind a command line flag.",
        findings=findings,
        action="patch" if setup else "configure",
        claims=share or typical,
    )


def _busiest(view: JobView) -> Bool:
    return np.array(
        [bool(r.project) and r.zone in ("backward", "forward", "user") for r in view.rows],
        dtype=bool,
    )


def _constant(view: JobView, key: str) -> tuple[Place, ...]:
    """The line of the project that names an environment variable, where it is set in code."""
    if not key.startswith("env."):
        return ()
    name = key.removeprefix("env.")
    for module in view.project.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and node.value == name:
                return (module.enclosing(node.lineno).place(node.lineno),)
    return ()


def oversubscription(view: JobView) -> list[Draft]:
    """More computing threads than cores: threads a rank x ranks a host against the CPUs."""
    found = view.values("num_threads")
    cpus = view.value("cpu_affinity") or view.value("cpu_count")
    if isinstance(cpus, list | tuple):
        cpus = len(cpus)
    if not found or not is_number(cpus) or cpus <= 0:
        return []
    threads = float(np.median([s.value for s in found if is_number(s.value)] or [0]))
    told = view.value("local_world_size")
    local = float(told if is_number(told) and told > 0 else view.world_size or 1)
    places = next((s.places for s in found if s.places), ())
    environment = view.value("env.OMP_NUM_THREADS")
    setup = places or _constant(view, "env.OMP_NUM_THREADS")
    ratio = threads * local / float(cpus)
    chosen = bool(setup) or environment is not None
    waiting = _contention(view)
    needed = 4.0 if not chosen else (1.5 if waiting >= CONTENDED else 2.5)
    # A library may use fewer threads than it was told to (MKL stops at the cores): what was asked
    # for counts as well, where ranks do wait for cores.
    asked = float(environment) if setup and str(environment).isdigit() else threads
    is_far = asked * local / float(cpus) >= FAR_RATIO and waiting >= FAR_CONTENDED
    if threads <= 1 or ratio < (1.5 if is_far else needed):
        return []
    lost = 1.0 - 1.0 / min(ratio, 10.0)
    hot = hottest(view, _busiest(view), view.share_FR.mean(axis=1)) if view.rows else ()
    text = f"{threads:.0f} computing threads a rank x {local:.0f} ranks on {cpus:.0f} CPUs"
    return [
        Draft(
            rule="oversubscription",
            category="cpu_oversubscription",
            ranks="all",
            places=(*setup[:1], *[p for p in hot[:1] if p not in setup[:1]]),
            share=None,
            rank_share=0.8 * lost,
            confidence=0.9 if chosen else 0.7,
            summary=f"{text}: they fight for the cores",
            why=[
                f"{text}: {ratio:.0f} runnable threads a core.",
                "Each parallel region waits for threads that are not scheduled.",
            ],
            against=["What it costs here was not measured."],
            advice=f"Set at most {max(1, int(cpus // local))} threads a rank "
            "(torch.set_num_threads or OMP_NUM_THREADS).",
            findings=[Finding(id="", kind="setting", text=text, details={"ratio": ratio})],
            action="patch" if setup else "configure",
            claims=0.8 * lost,
        )
    ]


def _contention(view: JobView) -> float:
    """Share of its runnable time that the median rank's training thread waits for a core."""
    told = [s.value for s in view.values("cpu.schedule") if isinstance(s.value, dict)]
    waits = [v["waiting_ns"] / max(v["waiting_ns"] + v["on_cpu_ns"], 1) for v in told]
    return float(np.median(waits)) if waits else 0.0


def unused_search(view: JobView) -> list[Draft]:
    """``find_unused_parameters=True`` where none is unused: DDP says so in the log."""
    found = [
        s
        for s in view.values("ddp")
        if isinstance(s.value, dict)
        and s.value.get("find_unused_parameters")
        and not s.value.get("static_graph")
    ]
    if not found or view.evidence is None:
        return []
    needle = "did not find any unused parameters"
    said = any(needle in r.log_tail for r in view.evidence.ranks)
    said |= any(needle in e.text for e in view.evidence.log_events)
    if not said:
        return []
    spine = find_spine(view)
    line = spine.forward_lines.get(spine.innermost) if spine.innermost else None
    setup = found[0].places
    extra = (
        (Place(name=spine.innermost[1], file=spine.innermost[0], line=int(line)),)
        if spine.innermost and line
        else ()
    )
    return [
        Draft(
            rule="unused_search",
            category="redundant_gradient_sync",
            ranks="all",
            places=with_setup((), setup) + extra,
            share=None,
            rank_share=0.15,
            confidence=0.75,
            summary="DDP searches the graph for unused parameters every step and finds none",
            why=["find_unused_parameters=True is set and DDP logs that none is unused."],
            against=["What the search costs here was not measured."],
            advice="Take find_unused_parameters=True away.",
            findings=[Finding(id="", kind="setting", text="find_unused_parameters=True")],
            claims=0.1,
        )
    ]
