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
from eroica.localize.rules.view import JobView
from eroica.localize.source import FunctionInfo
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
UNSHARDED = frozenset({"RandomSampler", "SequentialSampler"})
RANK_WORDS = re.compile(r"\b(get_rank|RANK|LOCAL_RANK|process_index|local_rank|global_rank)\b")


def debug_settings(view: JobView) -> list[Draft]:
    """Anomaly mode, tracemalloc, and environment switches that cost on every call."""
    drafts: list[Draft] = []
    for key, what, typical in (
        ("anomaly_mode", "autograd's anomaly detection is on", 0.4),
        ("tracemalloc", "tracemalloc records a traceback for every allocation", 0.4),
        ("profiler_active", "a profiler of the job's own runs all the time", 0.15),
        ("deterministic_debug", "torch's deterministic debug mode is on", 0.1),
    ):
        found = [s for s in view.values(key) if s.value]
        if found:
            drafts.append(_switch(view, key, what, typical, found))
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


def _switch(view: JobView, key: str, what: str, typical: float, found: list[Setting]) -> Draft:
    share: float | None = None
    mask = np.zeros(len(view.rows), dtype=bool)
    if key == "anomaly_mode":
        mask = np.array([r.zone == "anomaly" for r in view.rows], dtype=bool)
        measured = mean_over(view.sum(mask))
        share = measured if measured >= 0.03 else None
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


def _busiest(view: JobView) -> "np.ndarray":  # type: ignore[type-arg]
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
    if not found or not isinstance(cpus, int | float) or not cpus:
        return []
    threads = float(np.median([s.value for s in found if isinstance(s.value, int | float)] or [0]))
    local = float(view.value("local_world_size") or view.world_size or 1)
    places = next((s.places for s in found if s.places), ())
    environment = view.value("env.OMP_NUM_THREADS")
    setup = places or _constant(view, "env.OMP_NUM_THREADS")
    ratio = threads * local / float(cpus)
    chosen = bool(setup) or environment is not None
    if threads <= 1 or ratio < (2.5 if chosen else 4.0):
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
            why=[f"{text}: {ratio:.0f} runnable threads a core.",
                 "Each parallel region waits for threads that are not scheduled."],
            against=["What it costs here was not measured."],
            advice=f"Set at most {max(1, int(cpus // local))} threads a rank "
            "(torch.set_num_threads or OMP_NUM_THREADS).",
            findings=[Finding(id="", kind="setting", text=text, details={"ratio": ratio})],
            action="patch" if setup else "configure",
            claims=0.8 * lost,
        )
    ]


def sampler(view: JobView) -> list[Draft]:
    """Every rank walks the whole data set: no distributed sampler, and nothing in the loader's
    arguments depends on the rank. Needs the source: without it nobody can tell."""
    if view.world_size < 2:
        return []
    drafts: list[Draft] = []
    for place, found in _by_place(view).items():
        values = [s.value for s in found if isinstance(s.value, dict)]
        lengths = {v.get("dataset_len") for v in values}
        ranks = len({id(s) for s in found})
        if ranks < min(2, view.num_ranks) or len(lengths) != 1 or None in lengths:
            continue
        if any(str(v.get("sampler")) not in UNSHARDED for v in values):
            draft = _wrong_replicas(view, place, values)
            if draft is not None:
                drafts.append(draft)
            continue
        info = view.project.enclosing(place.file, place.line)
        if info is None or not _trains_from(info, place) or depends_on_rank(info, place.line):
            continue
        drafts.append(_unsharded(view, place, values[0]))
    return drafts


def _by_place(view: JobView) -> dict[Place, list[Setting]]:
    found: dict[Place, list[Setting]] = {}
    for setting in view.values("dataloader"):
        if setting.places:
            found.setdefault(setting.places[0], []).append(setting)
    return found


def _wrong_replicas(view: JobView, place: Place, values: list[dict[str, object]]) -> Draft | None:
    replicas = {v.get("num_replicas") for v in values} - {None}
    positions = [v.get("sampler_rank") for v in values if v.get("sampler_rank") is not None]
    expected = view.world_size
    if len(replicas) == 1 and next(iter(replicas)) not in (expected, None):
        what = f"the sampler splits the data for {next(iter(replicas))} ranks, not {expected}"
    elif len(positions) > 1 and len(set(positions)) < len(positions):
        what = "several ranks ask the sampler for the same part of the data"
    else:
        return None
    draft = _unsharded(view, place, values[0])
    draft.summary = f"{what}, at {where(place, view)}"
    draft.why = [what[0].upper() + what[1:] + "."]
    return draft


def _unsharded(view: JobView, place: Place, value: dict[str, object]) -> Draft:
    wasted = 1.0 - 1.0 / view.world_size
    loop = _iteration_of(view, place)
    text = (
        f"the loader at {where(place, view)} has a {value.get('sampler')}: each of "
        f"{view.world_size} ranks reads all {value.get('dataset_len')} samples"
    )
    return Draft(
        rule="sampler",
        category="sampler_misconfiguration",
        ranks="all",
        places=(place, *([loop] if loop else [])),
        share=None,
        rank_share=0.9 * wasted,
        confidence=0.85,
        summary=text,
        why=[text + ".",
             f"An epoch takes {view.world_size} times the steps it needs; step time is normal.",
             "Nothing in the loader's arguments depends on the rank."],
        advice="Give the loader a DistributedSampler and call its set_epoch each epoch.",
        findings=[Finding(id="", kind="setting", text=text, details=dict(value))],
        claims=0.0,
    )


def _iteration_of(view: JobView, place: Place) -> Place | None:
    info = view.project.enclosing(place.file, place.line)
    name = _bound_name(info, place.line) if info else None
    for node in info.own_nodes if info and name else ():
        if isinstance(node, ast.For) and name in {
            n.id for n in ast.walk(node.iter) if isinstance(n, ast.Name)
        }:
            return info.place(node.lineno) if info else None
    return None


def _bound_name(info: FunctionInfo, line: int | None) -> str | None:
    for node in info.own_nodes:
        if isinstance(node, ast.Assign) and line is not None:
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                target = node.targets[0]
                if isinstance(target, ast.Name):
                    return target.id
                return target.attr if isinstance(target, ast.Attribute) else None
    return None


def _trains_from(info: FunctionInfo, place: Place) -> bool:
    """Whether the loader built here is the one a training loop runs over.

    Where the loader is returned or handed on, its name decides: loaders for evaluation are often
    meant to be whole.
    """
    name = _bound_name(info, place.line)
    lowered = (name or info.name).lower()
    if any(word in lowered for word in ("val", "test", "eval", "dev", "infer")):
        return False
    loops = [
        n
        for n in info.own_nodes
        if isinstance(n, ast.For)
        and name in {m.id for m in ast.walk(n.iter) if isinstance(m, ast.Name)}
    ]
    if not loops:
        return True
    return any(
        isinstance(m, ast.Attribute) and m.attr in ("backward", "step")
        for loop in loops
        for m in ast.walk(loop)
    )


def depends_on_rank(info: FunctionInfo, line: int | None) -> bool:
    """Whether anything that reaches the statement at ``line`` was computed from the rank.

    A name is tainted when its assignment mentions the rank or a tainted name; parameters of the
    function that carry rank in their name are, and so is everything built from ``self`` there.
    """
    tainted = {p for p in info.parameters if "rank" in p.lower() or p in ("shard", "part")}
    assigns = [n for n in info.own_nodes if isinstance(n, ast.Assign | ast.AnnAssign | ast.For)]
    for _ in range(4):
        for node in assigns:
            value = node.iter if isinstance(node, ast.For) else node.value
            if value is None or not _mentions(value, tainted):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                tainted |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    for node in info.own_nodes:
        if isinstance(node, ast.stmt) and line is not None:
            if node.lineno <= line <= (node.end_lineno or node.lineno) and not isinstance(
                node, ast.If | ast.For | ast.With | ast.While | ast.Try
            ):
                return _mentions(node, tainted)
    return False


def _mentions(node: ast.AST, tainted: set[str]) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in tainted:
            return True
        if isinstance(part, ast.Attribute) and "rank" in part.attr.lower():
            return True
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            if RANK_WORDS.search(part.value):
                return True
        if isinstance(part, ast.Name) and RANK_WORDS.search(part.id):
            return True
    return False


def unused_search(view: JobView) -> list[Draft]:
    """``find_unused_parameters=True`` where no parameter is unused: DDP itself says so in the log."""
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
