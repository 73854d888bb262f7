"""Decisions that each rank takes alone, and how they are taken together."""

import re

import libcst as cst

from eroica.fix.context import Context
from eroica.fix.edits import Edits
from eroica.fix.facts import (
    agreed_names,
    backward_call,
    calls_here,
    collectives,
    conjuncts,
    definitions,
    is_local,
)
from eroica.fix.loops import is_interval
from eroica.fix.moves import meets_all
from eroica.fix.ranks import ranked
from eroica.fix.tree import Function, Source, code, dotted, find, names, walk

# Whose value is another on each rank: the clock, chance, the file system, what the data holds.
_OWN = re.compile(
    r"(?:.*\.)?(?:time|monotonic|perf_counter|process_time|now|random|randint|rand|uniform|choice"
    r"|exists|isfile|is_file|isfinite|isnan|isinf|getmtime|qsize)(?:_ns)?"
)
_CHANCE = re.compile(r"\b(?:random|randint|rand|uniform|choice)\b")


def differs(context: Context, source: Source, test: cst.BaseExpression) -> bool:
    """True for a test whose answer may differ over ranks, looked for in what it calls as well.

    Where the cause points at the test itself, the evidence says that it does.
    """
    if ranked(source, test) or _is_shared(source, test):
        return False
    function = source.function_of(test)
    if is_local(source, test, function) or is_named_as_parting(context, source, test):
        return True
    return any(
        not collectives(other, called.body)
        and any(_OWN.fullmatch(dotted(c.func) or "-") for c in calls_here(called.body))
        for call in find(test, cst.Call)
        for other, called in definitions(source, call, context.files)
    )


def is_named_as_parting(context: Context, source: Source, test: cst.BaseExpression) -> bool:
    """True where the cause says that ranks part, and points at this test.

    It names the line of the test, or one of the few lines of its block, or what these call.
    """
    if context.cause.category not in _PARTING or _SETTINGS.search(code(test)):
        return False
    above = source.parent(test)
    node = above if isinstance(above, cst.If) and _is_short(source, above) else test
    first, last = source.line(node), source.last_line(node)
    if any(
        s.source is source and s.line is not None and first <= s.line <= last for s in context.spots
    ):
        return True
    return (
        isinstance(node, cst.If)
        and context.cause.category == "divergent_control_flow"
        and score_of(context, source, test) >= 0.85
    )


def _is_short(source: Source, node: cst.If) -> bool:
    return source.last_line(node) - source.line(node) <= 8


_PARTING = (
    "divergent_control_flow",
    "rank_conditional_collective",
    "checkpoint_collective_on_one_rank",
    "collective_count_mismatch",
)
_SETTINGS = re.compile(r"\b(?:args|cfg|config|conf|opts?|options|parser|environ)\b")


def _is_shared(source: Source, test: cst.BaseExpression) -> bool:
    """Intervals of a counter, and what a collective has made equal."""
    if all(is_interval(part) for part in conjuncts(test)):
        return True
    function = source.function_of(test)
    agreed = agreed_names(source, function) if function is not None else set()
    return any(dotted(node) in agreed for node in walk(test) if dotted(node))


def works(context: Context, source: Source, node: cst.CSTNode, depth: int = 2) -> bool:
    """True where ranks train or meet at or below a node, in functions it calls as well."""
    if backward_call(node) is not None or meets_all(source, node, context.files):
        return True
    return depth > 0 and any(
        works(context, other, function.body, depth - 1)
        for call in calls_here(node)
        for other, function in definitions(source, call, context.files)
    )


def score_of(context: Context, source: Source, test: cst.BaseExpression) -> float:
    """How the cause points at a test: its line, a function it or its block calls, its function."""
    if context.is_near(source, test, 1):
        return 0.9
    named = {id(s.function) for s in context.spots if s.function is not None}
    statement = source.statement_of(test)
    for call in calls_here(statement) if statement is not None else ():
        for other, function in definitions(source, call, context.files):
            if id(function) in named:
                return 0.85
            if any(
                id(f) in named
                for inner in calls_here(function.body)
                for _, f in definitions(other, inner, context.files)
            ):
                return 0.7
    return 0.6 if context.is_named(source, test) else 0.0


def together(
    context: Context, edits: Edits, test: cst.BaseExpression, flag: str, op: str
) -> tuple[str, str]:
    """Return the lines that take a decision together, and the expression that holds it.

    What chance decides is taken from the first rank, so that it stays as likely as before.
    """
    source = edits.source
    dist, torch = edits.module("torch.distributed", test), edits.module("torch", test)
    text = code(test)
    plain = isinstance(test, cst.Comparison | cst.BooleanOperation | cst.UnaryOperation)
    value = f"int({text})" if plain else f"int(bool({text}))"
    lines = f"{flag} = {torch}.tensor({value}{device_of(context, source, test)})\n"
    if _CHANCE.search(text):
        lines += f"{dist}.broadcast({flag}, src=0)\n"
    else:
        lines += f"{dist}.all_reduce({flag}, op={dist}.ReduceOp.{op})\n"
    return lines, f"{flag}.item()"


def device_of(context: Context, source: Source, test: cst.BaseExpression) -> str:
    """The device of the tensor that is tested, else that of a job which runs on devices."""
    for call in find(test, cst.Call):
        func = source.full_name(call.func)
        if func.startswith("torch.") and call.args and dotted(call.args[0].value):
            return f", device={dotted(call.args[0].value)}.device"
    return job_device(context, source)


def job_device(context: Context, source: Source) -> str:
    """The argument that puts a tensor where the job's collectives take it: NCCL takes no CPU's.

    A program that asks whether there is a device at all runs without one too.
    """
    texts = [s.text for s in context.files]
    if not any(re.search(r"\bnccl\b|\.cuda\(|[\"']cuda", text) for text in texts):
        return ""
    if any("cuda.is_available()" in text for text in texts):
        torch = source.alias("torch") or "torch"
        return f', device="cuda" if {torch}.cuda.is_available() else "cpu"'
    return ', device="cuda"'


def free(name: str, function: Function | None, source: Source) -> str:
    """Return a name that nothing there uses yet."""
    used = names(function or source.module)
    while name in used:
        name += "_"
    return name
