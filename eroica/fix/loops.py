"""What source says about loops: which train, what counts their turns, what happens now and then."""

import re

import libcst as cst

from eroica.fix.facts import backward_call, calls_here, definitions
from eroica.fix.tree import (
    Function,
    Loop,
    Source,
    body_of,
    code,
    dotted,
    find,
    flat,
    single,
)


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
