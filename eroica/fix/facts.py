"""What source says about collectives and conditions: which calls meet, what a test depends on."""

import re
from collections.abc import Iterator

import libcst as cst

from eroica.fix.nodes import children
from eroica.fix.tree import (
    Function,
    Source,
    code,
    dotted,
    find,
    names,
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
# Calls whose value differs from rank to rank: data, time, randomness, the file system.
LOCAL_CALLS = re.compile(
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


def is_local(source: Source, test: cst.BaseExpression, function: Function | None) -> bool:
    """True for a condition on data, time or files of this rank that no collective made equal."""
    reduced = agreed_names(source, function) if function is not None else set()
    if any(dotted(n) in reduced for n in walk(test)):
        return False
    if any(LOCAL_CALLS.fullmatch(short(source, call) or "-") for call in find(test, cst.Call)):
        return True
    if function is None:
        return False
    made = {
        target: value
        for target, value, _ in source.assignments(function.body)
        if any(LOCAL_CALLS.fullmatch(short(source, c) or "-") for c in find(value, cst.Call))
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


def wrapping_calls(source: Source) -> list[cst.Call]:
    """Return the constructors of DistributedDataParallel, whether or not a name is bound."""
    return source.calls(source.module, r"(?:[\w.]+\.)?(?:DistributedDataParallel|DDP)")


def wrapped_models(source: Source) -> dict[str, cst.Call]:
    """Return the names bound to DistributedDataParallel and the constructor of each."""
    wrapping = {id(call) for call in wrapping_calls(source)}
    return {
        target: value
        for target, value, _ in source.assignments()
        if isinstance(value, cst.Call) and id(value) in wrapping
    }
