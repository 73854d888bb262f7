"""Every rank reads what only some should: loaders without a distributed sampler."""

import ast
import re

from eroica.localize.rules.draft import (
    Draft,
    where,
)
from eroica.localize.rules.view import JobView
from eroica.localize.source import FunctionInfo
from eroica.records import Finding, Place, Setting

UNSHARDED = frozenset({"RandomSampler", "SequentialSampler"})
LIBRARY_SAMPLERS = frozenset({"WeightedRandomSampler", "SubsetRandomSampler"})
PLAIN_BATCHES = frozenset({None, "BatchSampler", "NoneType"})

RANK_WORDS = re.compile(r"\b(get_rank|RANK|LOCAL_RANK|process_index|local_rank|global_rank)\b")
SPLIT_WORDS = re.compile(RANK_WORDS.pattern + r"|world|replica|shard|\brank\b", re.IGNORECASE)
"""A class or function that says one of these may well split the data itself."""


BLOCKS = (ast.If, ast.For, ast.With, ast.While, ast.Try)


def sampler(view: JobView) -> list[Draft]:
    """Every rank walks the whole data set: no distributed sampler, and nothing in the loader's
    arguments depends on the rank. Needs the source: without it nobody can tell."""
    if view.world_size < 2:
        return []
    drafts: list[Draft] = []
    for place, found in _by_place(view).items():
        values = [s.value for s in found if isinstance(s.value, dict)]
        if values and (repeating := _repeating_stream(view, values[0])) is not None:
            drafts.append(_repeated(view, place, values[0], repeating))
            continue
        lengths = {v.get("dataset_len") for v in values}
        if len(found) < min(2, view.num_ranks) or len(lengths) != 1 or None in lengths:
            continue
        if not all(_is_whole(view, v) for v in values):
            draft = _wrong_replicas(view, place, values)
            if draft is not None:
                drafts.append(draft)
            continue
        info = view.project.enclosing(place.file, place.line)
        if info is None or not _trains_from(info, place) or depends_on_rank(info, place.line):
            continue
        if any(_splits(view, name) for name in _makers(info, place.line)):
            continue
        drafts.append(_unsharded(view, place, values[0]))
    return drafts


def _repeating_stream(view: JobView, value: dict[str, object]) -> Place | None:
    """Where a streamed data set goes over finite data in each of several workers, split by none.

    A stream without end, or of random numbers, has nothing to repeat.
    """
    workers = value.get("num_workers")
    if not isinstance(workers, int) or workers < 2 or value.get("worker_init_fn"):
        return None
    for function in view.project.functions:
        if function.name != "__iter__" or function.class_name != value.get("dataset"):
            continue
        node = function.module.classes.get(function.class_name or "")
        if node is None or not any("Iterable" in ast.unparse(base) for base in node.bases):
            continue
        if "worker" in ast.unparse(node):
            continue
        if re.search(r"while (?:True|1)\b|rand|shuffle", ast.unparse(function.node)):
            continue
        loop = next((n for n in function.own_nodes if isinstance(n, ast.For)), None)
        return function.place(loop.lineno) if loop is not None else None
    return None


def _repeated(view: JobView, place: Place, value: dict[str, object], stream: Place) -> Draft:
    workers = value["num_workers"]
    wasted = 1.0 - 1.0 / int(str(workers))
    text = (
        f"each of {workers} loader workers goes over all of a rank's data at {where(stream, view)}"
    )
    return _wasteful(
        (stream, place),
        text,
        value,
        wasted=wasted,
        confidence=0.8,
        why=[
            text + ": the data set asks nobody which worker it is in.",
            f"An epoch has {workers} times its samples, each of them {workers} times.",
        ],
        advice="Split what __iter__ goes over by torch.utils.data.get_worker_info().",
    )


def _is_whole(view: JobView, value: dict[str, object]) -> bool:
    """Whether a rank's loader goes over as many samples as the data set has."""
    batches, sampler, dataset = (value.get(k) for k in ("batch_sampler", "sampler", "dataset"))
    if _splits(view, str(dataset)):
        return False
    if batches not in PLAIN_BATCHES:
        return _is_known(view, str(batches)) and not _splits(view, str(batches))
    if sampler in UNSHARDED:
        return True
    drawn, whole = value.get("sampler_len"), value.get("dataset_len")
    if value.get("num_replicas") is not None or not isinstance(drawn, int):
        return False
    is_own = _is_known(view, str(sampler)) and not _splits(view, str(sampler))
    is_readable = sampler in LIBRARY_SAMPLERS or is_own
    return is_readable and isinstance(whole, int) and drawn >= whole > 0


def _is_known(view: JobView, name: str) -> bool:
    return any(name in module.classes for module in view.project.modules)


def _splits(view: JobView, name: str) -> bool:
    """Whether the project's class or function of that name may split data over ranks itself."""
    for module in view.project.modules:
        nodes: list[ast.AST] = [module.classes[name]] if name in module.classes else []
        nodes += [f.node for f in module.functions if f.name == name and not f.class_name]
        if any(SPLIT_WORDS.search(ast.get_source_segment(module.text, n) or "") for n in nodes):
            return True
    return False


def _makers(info: FunctionInfo, line: int | None) -> set[str]:
    """Names that are called for the statement at ``line`` and for the names it uses."""
    wanted: set[str] = set()
    found: set[str] = set()
    statements = [n for n in info.own_nodes if isinstance(n, ast.stmt) and _spans(n, line)]
    parts: list[ast.AST] = [n for n in statements if not isinstance(n, BLOCKS)]
    assigns = [pair for node in info.own_nodes for pair in _bindings(node)]
    for _ in range(4):
        for node in [n for part in parts for n in ast.walk(part)]:
            if isinstance(node, ast.Name):
                wanted.add(node.id)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                found.add(node.func.id if isinstance(node.func, ast.Name) else node.func.attr)
        parts = [
            value
            for target, value in assigns
            if wanted & {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        ]
    return found


def _by_place(view: JobView) -> dict[Place, list[Setting]]:
    """Loaders by the line that builds them, one a rank."""
    found: dict[Place, list[Setting]] = {}
    for rank in view.ranks:
        once: set[Place] = set()
        for setting in view.values("dataloader", rank):
            if setting.places and setting.places[0] not in once:
                once.add(setting.places[0])
                found.setdefault(setting.places[0], []).append(setting)
    return found


def _wrong_replicas(view: JobView, place: Place, values: list[dict[str, object]]) -> Draft | None:
    replicas = {v.get("num_replicas") for v in values} - {None}
    positions = [v.get("sampler_rank") for v in values if v.get("sampler_rank") is not None]
    expected = view.world_size
    if replicas & _group_sizes(view):
        return None  # ranks that hold one model together read the same part by right
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


def _group_sizes(view: JobView) -> set[object]:
    """Numbers of members of the job's process groups that not all ranks are in."""
    known = [p.groups for p in view.patterns]
    known += [one.flight.groups for one in view.by_rank.values() if one.flight is not None]
    sizes = {len(members) for groups in known for members in groups.values()}
    return {size for size in sizes if 1 < size < view.world_size}


def _unsharded(view: JobView, place: Place, value: dict[str, object]) -> Draft:
    wasted = 1.0 - 1.0 / view.world_size
    loop = _iteration_of(view, place)
    text = (
        f"the loader at {where(place, view)} has a {value.get('sampler')}: each of "
        f"{view.world_size} ranks reads all {value.get('dataset_len')} samples"
    )
    return _wasteful(
        (place, *([loop] if loop else [])),
        text,
        value,
        wasted=wasted,
        confidence=0.85,
        why=[
            text + ".",
            f"An epoch takes {view.world_size} times the steps it needs; step time is normal.",
            "Nothing in the loader's arguments depends on the rank.",
        ],
        advice="Give the loader a DistributedSampler and call its set_epoch each epoch.",
    )


def _wasteful(
    places: tuple[Place, ...],
    text: str,
    value: dict[str, object],
    *,
    wasted: float,
    confidence: float,
    why: list[str],
    advice: str,
) -> Draft:
    """A cause that no step shows: ``wasted`` of the steps need not be made at all."""
    return Draft(
        rule="sampler",
        category="sampler_misconfiguration",
        ranks="all",
        places=places,
        share=None,
        rank_share=0.9 * wasted,
        confidence=confidence,
        summary=text,
        why=why,
        advice=advice,
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
        if isinstance(node, ast.Assign) and _spans(node, line):
            target = node.targets[0]
            if isinstance(target, ast.Name):
                return target.id
            return target.attr if isinstance(target, ast.Attribute) else None
    return None


def _spans(node: ast.stmt, line: int | None) -> bool:
    return line is not None and node.lineno <= line <= (node.end_lineno or node.lineno)


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
    assigns = [pair for node in info.own_nodes for pair in _bindings(node)]
    for _ in range(4):
        for target, value in assigns:
            if _mentions(value, tainted):
                tainted |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    for statement in info.own_nodes:
        if (
            isinstance(statement, ast.stmt)
            and not isinstance(statement, BLOCKS)
            and _spans(statement, line)
        ):
            return _mentions(statement, tainted)
    return False


def _bindings(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return (target, value) pairs of an assignment or loop; tuples side by side pair up."""
    if isinstance(node, ast.For):
        return [(node.target, node.iter)]
    if isinstance(node, ast.AnnAssign):
        return [(node.target, node.value)] if node.value is not None else []
    if not isinstance(node, ast.Assign):
        return []
    found: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets:
        pairs = (target, node.value)
        if (
            isinstance(pairs[0], ast.Tuple)
            and isinstance(pairs[1], ast.Tuple)
            and len(pairs[0].elts) == len(pairs[1].elts)
        ):
            found += list(zip(pairs[0].elts, pairs[1].elts, strict=True))
        else:
            found.append(pairs)
    return found


def _mentions(node: ast.AST, tainted: set[str]) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in tainted:
            return True
        if isinstance(part, ast.Attribute) and "rank" in part.attr.lower():
            return True
        text = part.value if isinstance(part, ast.Constant) else None
        if isinstance(text, str) and RANK_WORDS.search(text):
            return True
        if isinstance(part, ast.Name) and RANK_WORDS.search(part.id):
            return True
    return False
