"""Backward passes that need fewer collectives on some ranks: a part of the model not run there."""

import ast
from collections.abc import Iterator

from eroica.localize.source import FunctionInfo, Project
from eroica.localize.source_depend import LOCAL, Depends
from eroica.localize.stuck_reason import Group, Reason
from eroica.records import Place

_MODULE_NAMES = frozenset({"layer", "block", "expert", "module", "branch", "head", "tower"})


def missing_bucket(
    project: Project, depends: Depends, here: Place, there: Place, waiter: Group, skipper: Group
) -> Iterator[Reason]:
    if (there.line or 0) <= (here.line or 0):
        return
    found = list(_conditional_forwards(project, depends, waiter, skipper))
    yield from found
    if not found:
        yield Reason("forward", 0.15, waiter, skipper, here, "", frozenset({"data"}))


def _conditional_forwards(
    project: Project, depends: Depends, waiter: Group, skipper: Group
) -> Iterator[Reason]:
    for function in project.functions:
        if function.class_name is None or not function.name.startswith("forward"):
            continue
        fields = _module_fields(function)
        for node in function.own_nodes:
            reason = _optional_branch(project, depends, node, function, fields, waiter, skipper)
            if reason is not None:
                yield reason


def _optional_branch(
    project: Project,
    depends: Depends,
    node: ast.AST,
    function: FunctionInfo,
    fields: set[str],
    waiter: Group,
    skipper: Group,
) -> Reason | None:
    """A branch of a forward that runs a submodule, or leaves before one, on local grounds."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        test = node.test
    elif isinstance(node, ast.For) and _calls_fields(node, fields):
        test = node.iter
    else:
        return None
    bodies: list[ast.AST] = []
    if isinstance(node, ast.If):
        bodies = [*node.body, *node.orelse]
    elif isinstance(node, ast.IfExp):
        bodies = [node.body, node.orelse]
    elif isinstance(node, ast.While | ast.For):
        bodies = list(node.body)
    leaves = isinstance(node, ast.If) and any(
        isinstance(n, ast.Return | ast.Continue | ast.Break) for n in bodies
    )
    if not leaves and not any(_calls_fields(b, fields) for b in bodies):
        return None
    tags = depends.of(test, function)
    if not tags & LOCAL:
        return None
    score = 0.55 if not isinstance(node, ast.For) else 0.35
    return Reason(
        "forward", score, waiter, skipper, function.place(node.lineno), ast.unparse(test), tags
    )


def _calls_fields(node: ast.AST, fields: set[str]) -> bool:
    """Whether a part of a forward calls a submodule or uses a parameter of ``self``."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and inner.attr in fields:
            return True
        called = inner.func if isinstance(inner, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in _MODULE_NAMES:
            return True
    return False


def _module_fields(function: FunctionInfo) -> set[str]:
    """Attributes that the class's constructor sets: its submodules and parameters."""
    fields: set[str] = set()
    for method in function.module.functions:
        if method.class_name == function.class_name and method.name == "__init__":
            for node in method.own_nodes:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    for target in node.targets:
                        if isinstance(target, ast.Attribute):
                            fields.add(target.attr)
    return fields
