"""What source says about ranks and collectives: names, conditions, training loops.

More than 300 lines since each collective has one.
"""

import re
from collections.abc import Iterator

import libcst as cst

from eroica.fix.nodes import children
from eroica.fix.tree import (
    Function,
    Loop,
    Source,
    body_of,
    code,
    dotted,
    find,
    flat,
    names,
    single,
    walk,
)

# torch.distributed functions that every rank of the group must reach (torch 2.x, module c10d).
COLLECTIVES = frozenset(
    [
        "barrier",
        "monitored_barrier",
        "all_reduce",
        "all_gather",
        "all_gather_object",
        "all_gather_into_tensor",
        "all_gather_coalesced",
        "all_reduce_coalesced",
        "broadcast",
        "broadcast_object_list",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "gather",
        "gather_object",
        "scatter",
        "scatter_object_list",
        "all_to_all",
        "all_to_all_single",
        "new_group",
        "new_subgroups",
    ]
)
BARRIERS = frozenset({"barrier", "monitored_barrier"})
# Calls with collectives inside: checkpoint and state-dict functions of sharded models.
HIDDEN = frozenset(
    [
        "get_model_state_dict",
        "get_optimizer_state_dict",
        "get_state_dict",
        "full_tensor",
        "full_state_dict",
        "consolidate_state_dict",
        "optim_state_dict",
        "full_optim_state_dict",
        "sharded_state_dict",
        "summon_full_params",
        "save_checkpoint_sharded",
        "dcp_save",
        "async_save",
        "clip_grad_norm_fsdp",
        "wait_for_everyone",
        "gather_for_metrics",
    ]
)
_RANK = re.compile(
    r"(?!(?:.*_)?(?:per|num|n|max|min|by|each|of|low|lora|matrix|full)_rank)(?:.*_)?(?:rank|rank_?id)\d*|(?:is_?)?(?:main|master|chief|primary)(?:_?(?:process|rank|proc|node))?"
    r"|(?:is_?)?(?:global|world|local)_zero|is_?rank_?(?:0|zero)|rank_?(?:0|zero)(?:_only)?|is_(?:local_)?(?:main|world)_process(?:_zero)?",
    re.I,
)
# This process's own number, asked for: not that of another in a group (get_global_rank).
_RANK_CALLS = re.compile(
    r"(?:.*\.)?_?(?!\w*(?:matrix|lora|full|low)_rank|get_(?:global|group)_rank)"
    r"(?:(?:\w+_)?rank|is_(?:main|local_main|world)_process"
    r"|is_main|is_master(?:_ordinal)?|(?:is_)?rank_?(?:zero|0)|process_index)"
)
_RANK_VARIABLES = re.compile(
    r"(?:(?:LOCAL|GROUP|NODE|PMI|OMPI_COMM_WORLD)_)?RANK|SLURM_(?:PROCID|LOCALID)"
)
# Calls whose value differs from rank to rank: data, time, randomness, the file system.
_LOCAL_CALLS = re.compile(
    r"(?:.*\.)?(?:isfinite|isnan|isinf|any|all|item|exists|isfile|isdir|is_file|is_dir|time|"
    r"perf_counter|monotonic|random|randint|rand|choice|uniform|empty|full|update|step|check|"
    r"should_stop|stop|next|numel|max|min|sum|mean)"
)


def short(source: Source, call: cst.Call) -> str:
    """Return the last part of what a call calls."""
    func = call.func
    if isinstance(func, cst.Attribute):
        return func.attr.value
    return source.full_name(func).rpartition(".")[2]


def is_collective(source: Source, call: cst.Call) -> bool:
    """True for a call that every rank of its group must make."""
    name, last = source.full_name(call.func), short(source, call)
    if last in COLLECTIVES:
        return name.startswith("torch.distributed") or name.rpartition(".")[0] in (
            "dist",
            "torch.distributed",
        )
    if last in HIDDEN:
        return True
    return last in ("save", "async_save") and "distributed.checkpoint" in name


def is_barrier(source: Source, call: cst.Call) -> bool:
    return is_collective(source, call) and short(source, call) in BARRIERS


def collectives(source: Source, node: cst.CSTNode) -> list[cst.Call]:
    """Return the collective calls at or below a node, nested functions left out."""
    return [call for call in calls_here(node) if is_collective(source, call)]


def calls_here(node: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls below a node without entering functions defined in it."""
    if isinstance(node, cst.Call):
        yield node
    for child in children(node):
        if not isinstance(child, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            yield from calls_here(child)


def reaches_collective(
    source: Source, node: cst.CSTNode, sources: tuple[Source, ...], depth: int = 3
) -> bool:
    """True where a collective is called at or below a node, through the project's functions."""
    if collectives(source, node):
        return True
    if depth == 0:
        return False
    for call in calls_here(node):
        for other, function in definitions(source, call, sources):
            if function.body is not node and reaches_collective(
                other, function.body, sources, depth - 1
            ):
                return True
    return False


def definitions(
    source: Source, call: cst.Call, sources: tuple[Source, ...]
) -> list[tuple[Source, Function]]:
    """Return the project's functions a call may mean: same name, one file preferred."""
    name = short(source, call) if isinstance(call.func, cst.Attribute) else dotted(call.func)
    if not name:
        return []
    owner = dotted(call.func).partition(".")[0]
    if owner in source.imports:  # a module or a name from one: only that file's functions
        stems = set(source.imports[owner].strip(".").split("."))
        return [
            (other, function)
            for other in sources
            if other is not source and stems & set(other.path.removesuffix(".py").split("/"))
            for function in other.functions_named(name)
        ]
    is_method = isinstance(call.func, cst.Attribute)
    here = [(source, f) for f in source.functions_named(name) if _fits(source, f, is_method)]
    if here:
        return here
    there = [
        (other, function)
        for other in sources
        if other is not source
        for function in other.functions_named(name)
        if _fits(other, function, is_method)
    ]
    return there if len(there) == 1 else []


def _fits(source: Source, function: Function, is_method: bool) -> bool:
    """``x.save()`` means a method, ``save()`` a plain function."""
    return isinstance(source.enclosing(function, cst.ClassDef), cst.ClassDef) is is_method


def rank_names(source: Source) -> frozenset[str]:
    """Return the names (and dotted names) whose value depends on the rank."""
    known = source.memo.get("rank_names")
    if isinstance(known, frozenset):
        return known
    found: set[str] = set()
    for _ in range(2):
        for target, value, _statement in source.assignments():
            if is_ranked(value, frozenset(found)):
                found.add(target)
    source.memo["rank_names"] = names_of_ranks = frozenset(found)
    return names_of_ranks


def is_ranked(node: cst.CSTNode, known: frozenset[str] = frozenset()) -> bool:
    """True where an expression itself names a rank (a seed of it, or an offset, does not count)."""
    if isinstance(node, cst.Comparison | cst.BooleanOperation | cst.UnaryOperation):
        return any(is_ranked(child, known) for child in node.children)
    if isinstance(node, cst.ComparisonTarget):
        return is_ranked(node.comparator, known)
    if isinstance(node, cst.IfExp):
        return is_ranked(node.test, known)
    if isinstance(node, cst.Call):
        name = dotted(node.func)
        if _RANK_CALLS.fullmatch(name):
            return True
        if name.endswith(("environ.get", "getenv")) and node.args:
            return bool(_RANK_VARIABLES.fullmatch(code(node.args[0].value).strip("\"'")))
        return name in ("int", "bool", "divmod") and any(
            is_ranked(arg.value, known) for arg in node.args
        )
    if isinstance(node, cst.Subscript):
        at = node.slice[0].slice if len(node.slice) == 1 else None
        key = code(at.value).strip("\"'") if isinstance(at, cst.Index) else ""
        return dotted(node.value).endswith("environ") and bool(_RANK_VARIABLES.fullmatch(key))
    if isinstance(node, cst.BinaryOperation):
        return is_ranked(node.left, known)
    name = dotted(node)
    return bool(name) and (name in known or bool(_RANK.fullmatch(name.rpartition(".")[2])))


def ranked(source: Source, test: cst.BaseExpression) -> bool:
    """True for a condition that comes out differently on different ranks by their number."""
    return is_ranked(test, rank_names(source))


def is_local(source: Source, test: cst.BaseExpression, function: Function | None) -> bool:
    """True for a condition on data, time or files of this rank that no collective made equal."""
    reduced = agreed_names(source, function) if function is not None else set()
    if any(dotted(n) in reduced for n in walk(test)):
        return False
    if any(_LOCAL_CALLS.fullmatch(short(source, call) or "-") for call in find(test, cst.Call)):
        return True
    if function is None:
        return False
    made = {
        target: value
        for target, value, _ in source.assignments(function.body)
        if any(_LOCAL_CALLS.fullmatch(short(source, c) or "-") for c in find(value, cst.Call))
    }
    return bool(names(test) & made.keys())


def agreed_names(source: Source, function: Function) -> set[str]:
    """Return the (dotted) names in a function that a collective has made equal on all ranks."""
    found = {dotted(c.args[0].value) for c in collectives(source, function.body) if c.args}
    found.discard("")
    for target, value, _ in source.assignments(function.body):
        if any(dotted(n) in found for n in walk(value)):
            found.add(target)
    return found


def conjuncts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the parts of an ``and`` chain, in order."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*conjuncts(test.left), *conjuncts(test.right)]
    return [test]


def joined(parts: list[cst.BaseExpression]) -> str:
    """Return the text of parts joined by ``and``."""
    texts = [f"({code(p)})" if isinstance(p, cst.BooleanOperation) else code(p) for p in parts]
    return " and ".join(texts)


def ends_early(block: cst.CSTNode) -> cst.CSTNode | None:
    """Return the return, break or continue a block ends with."""
    body = getattr(block, "body", ())
    last = body[-1] if body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    return small if isinstance(small, cst.Return | cst.Break | cst.Continue) else None


def backward_call(node: cst.CSTNode) -> cst.Call | None:
    """Return the first ``.backward()`` at or below a node."""
    for call in calls_here(node):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward":
            return call
    return None


def step_loops(source: Source, sources: tuple[Source, ...] = ()) -> list[Loop]:
    """Return the loops that train: innermost ones that reach a ``.backward()``.

    A loop over epochs, which calls a function with a loop over steps in it, is none.
    """
    found: list[Loop] = []
    for loop in find(source.module, cst.For | cst.While):  # type: ignore[arg-type]
        assert isinstance(loop, cst.For | cst.While)
        if backward_call(loop.body) is not None or _calls_training(source, loop, sources):
            around = source.loops(loop)  # they come before it
            found = [*(other for other in found if other not in around), loop]
    return found


def _calls_training(
    source: Source, node: cst.CSTNode, sources: tuple[Source, ...], depth: int = 2
) -> bool:
    """Whether a step is trained in a function that is called in a loop, or further down."""
    body = node.body if isinstance(node, cst.For | cst.While) else node
    for call in calls_here(body):
        for other, function in definitions(source, call, sources):
            backward = backward_call(function.body)
            if backward is not None:
                found = not any(map(_steps, other.loops(backward)))
            else:
                found = depth > 0 and _trains_once(other, function, sources, depth - 1)
            if found:
                return True
    return False


def _trains_once(
    source: Source, function: Function, sources: tuple[Source, ...], depth: int
) -> bool:
    """Whether a function leads to training, and not in a loop of its own."""
    return _calls_training(source, function.body, sources, depth) and not any(
        _calls_training(source, loop, sources, depth) for loop in _loops_in(function)
    )


def _loops_in(function: Function) -> list[Loop]:
    return [*find(function.body, cst.For), *find(function.body, cst.While)]


def _steps(loop: Loop) -> bool:
    """An optimizer steps in it: it is no loop over parts of one batch."""
    return any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value == "step"
        for call in calls_here(loop.body)
    )


def wrapped_models(source: Source) -> dict[str, cst.Call]:
    """Return the names bound to DistributedDataParallel and the constructor of each."""
    return {
        target: value
        for target, value, _ in source.assignments()
        if isinstance(value, cst.Call)
        and source.full_name(value.func).rpartition(".")[2] in ("DistributedDataParallel", "DDP")
    }


def interval_of(part: cst.BaseExpression) -> cst.BinaryOperation | None:
    """Return ``x % n`` of ``x % n == y``, ``y == x % n`` and ``not x % n``."""
    sides: list[cst.BaseExpression] = []
    if isinstance(part, cst.Comparison) and len(part.comparisons) == 1:
        if isinstance(part.comparisons[0].operator, cst.Equal):
            sides = [part.left, part.comparisons[0].comparator]
    elif isinstance(part, cst.UnaryOperation) and isinstance(part.operator, cst.Not):
        sides = [part.expression]
    for side in sides:
        if isinstance(side, cst.BinaryOperation) and isinstance(side.operator, cst.Modulo):
            return side
    return None


def is_interval(part: cst.BaseExpression) -> bool:
    """True for ``x % n == y`` and its like."""
    return interval_of(part) is not None


def asked_if_empty(test: cst.BaseExpression) -> str:
    """Return the queue that a test asks whether it is empty; an empty string for other tests."""
    match = re.fullmatch(
        r"([\w.]+)\.empty\(\)|([\w.]+)\.qsize\(\) == 0|not ([\w.]+)\.qsize\(\)", flat(test)
    )
    return next((name for name in match.groups() if name), "") if match is not None else ""


def counter_of(loop: Loop) -> str:
    """The number of the turn: of range or enumerate, or counted up by one in each turn."""
    if isinstance(loop, cst.For):
        call = loop.iter
        while isinstance(call, cst.Call) and dotted(call.func).endswith("tqdm") and call.args:
            call = call.args[0].value
        kind = dotted(call.func) if isinstance(call, cst.Call) else ""
        if kind in ("range", "trange", "tqdm.trange", "count", "itertools.count"):
            return dotted(loop.target)
        if kind == "enumerate" and isinstance(loop.target, cst.Tuple):
            return dotted(loop.target.elements[0].value)
    for statement in body_of(loop):
        small = single(statement)
        is_sum = isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign)
        if is_sum and code(small.value) == "1" and dotted(small.target):  # type: ignore[union-attr]
            return dotted(small.target)  # type: ignore[union-attr]
    return ""
