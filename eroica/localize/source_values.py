"""The values a name takes in a function: assignments, loop targets, arguments, mutations."""

import ast
from collections.abc import Iterable
from typing import TypeGuard

from eroica.localize.source import FunctionInfo

STEP_NAMES = frozenset({"step", "epoch", "iteration", "iter", "global_step", "it", "update"})
_MUTATORS = frozenset({"append", "add", "extend", "insert", "update", "setdefault", "register"})


def argument_of(call: ast.Call, function: FunctionInfo, name: str) -> ast.expr | None:
    """Return the expression a call passes for a parameter; None where it is defaulted."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = list(function.parameters)
    if names and names[0] in ("self", "cls"):
        names = names[1:]
    position = names.index(name) if name in names else -1
    if 0 <= position < len(call.args) and not isinstance(call.args[position], ast.Starred):
        return call.args[position]
    return None


class Assigned:
    """One value a name takes; a counter is incremented or taken from range/enumerate.

    A mutation (``x.append(v)``, ``x[k] = v``) adds to what the name holds.
    """

    __slots__ = ("is_counter", "is_mutation", "node")

    def __init__(self, node: ast.expr, is_counter: bool = False, is_mutation: bool = False) -> None:
        self.node, self.is_counter, self.is_mutation = node, is_counter, is_mutation


def assigned_values(function: FunctionInfo, name: str) -> Iterable[Assigned]:
    """Yield the values assigned to a name or ``self.x`` in a function, in source order."""
    for node in function.own_nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _unpack(target, node.value, name)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield from _unpack(node.target, node.value, name)
        elif isinstance(node, ast.AugAssign):
            if _spells(node.target, name):
                is_counter = isinstance(node.value, ast.Constant)
                yield Assigned(node.value, is_counter and name.split(".")[-1] in STEP_NAMES)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield from _loop_target(node.target, node.iter, name)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from _unpack(node.optional_vars, node.context_expr, name)
        elif _is_mutation(node) and _spells(node.func.value, name):
            yield Assigned(node.args[-1], is_mutation=True)


def _is_mutation(node: ast.AST) -> TypeGuard["_MethodCall"]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and bool(node.args)
        and node.func.attr in _MUTATORS
    )


class _MethodCall(ast.Call):
    """For the type checker: a call of a method."""

    func: ast.Attribute


def _spells(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name | ast.Attribute) and ast.unparse(target) == name


def _unpack(target: ast.expr, value: ast.expr, name: str) -> Iterable[Assigned]:
    if isinstance(target, ast.Tuple | ast.List):
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            for inner, part in zip(target.elts, value.elts, strict=True):
                yield from _unpack(inner, part, name)
        elif any(_spells(inner, name) for inner in target.elts):
            yield Assigned(value)
    elif _spells(target, name):
        yield Assigned(value)
    elif isinstance(target, ast.Subscript) and _spells(target.value, name):
        yield Assigned(value, is_mutation=True)
        yield Assigned(target.slice, is_mutation=True)


def _loop_target(target: ast.expr, iterable: ast.expr, name: str) -> Iterable[Assigned]:
    called = iterable.func if isinstance(iterable, ast.Call) else None
    function = called.id if isinstance(called, ast.Name) else ""
    if function == "range" and _spells(target, name):
        yield Assigned(iterable, is_counter=True)
    elif function == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        if _spells(target.elts[0], name):
            yield Assigned(iterable, is_counter=True)
        else:
            yield from _loop_target(target.elts[1], iterable, name)
    elif any(_spells(n, name) for n in ast.walk(target) if isinstance(n, ast.expr)):
        yield Assigned(iterable)
