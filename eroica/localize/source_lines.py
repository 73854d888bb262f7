"""What one line of a function calls, and which expressions are locks."""

import ast

from eroica.localize.source import FunctionInfo, Project
from eroica.localize.source_calls import dotted
from eroica.localize.source_flow import statement_path


def line_calls(
    function: FunctionInfo, line: int
) -> tuple[ast.stmt | ast.excepthandler | None, list[ast.Call]]:
    """Return the statement of a line and the calls that begin on it (else in its head)."""
    path = statement_path(function, line)
    if not path:
        return None, []
    statement = path[-1][0]
    if len(path) > 1:
        outer = path[-2][0]
        if isinstance(outer, ast.With | ast.AsyncWith) and outer.lineno == statement.lineno:
            statement = outer  # `with lock: x += 1` on one line
    heads: list[ast.AST] = [statement]
    if isinstance(statement, ast.If | ast.While):
        heads = [statement.test]
    elif isinstance(statement, ast.For | ast.AsyncFor):
        heads = [statement.iter]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        heads = [item.context_expr for item in statement.items]
    found = [n for head in heads for n in ast.walk(head) if isinstance(n, ast.Call)]
    exact = [c for c in found if c.lineno <= line <= (c.end_lineno or c.lineno)]
    return statement, exact or found


def is_bounded(call: ast.Call, *, by_position: bool = True) -> bool:
    """Whether a call that may wait is given a time-out, or told not to wait.

    Without ``by_position`` by its keywords alone: of an unknown call the rest says nothing.
    """
    for keyword in call.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ...
        if keyword.arg == "timeout" and value is not None:
            return True
        if keyword.arg in ("block", "blocking") and value is not True:
            return True
    if not by_position or not isinstance(call.func, ast.Attribute):
        return False
    block, timeout = _BLOCK_AND_TIMEOUT_AT.get(call.func.attr, (None, None))
    for position, unlimited in ((block, True), (timeout, None)):
        if position is not None and position < len(call.args):
            given = call.args[position]
            if not isinstance(given, ast.Constant) or given.value is not unlimited:
                return True
    return False


_BLOCK_AND_TIMEOUT_AT: dict[str, tuple[int | None, int]] = {
    **dict.fromkeys(("wait", "join", "result"), (None, 0)),
    **dict.fromkeys(("acquire", "get"), (0, 1)),
    "put": (1, 2),
}
"""Positions of ``block`` and ``timeout`` in calls of threading, queue and concurrent.futures."""


def is_lock(node: ast.expr, function: FunctionInfo) -> bool:
    """Whether an expression is a lock: by its name, or by what the module assigns to it."""
    if isinstance(node, ast.Call):
        return "lock" in dotted(node.func).lower() and "file" not in dotted(node.func).lower()
    name = dotted(node).rpartition(".")[2]
    words = name.lower().strip("_")
    if any(part in words for part in ("lock", "mutex", "mtx", "semaphore", "sem", "cond", "guard")):
        return True
    return bool(_LOCKS & function.module.made_by.get(name, set()))


_LOCKS = frozenset({"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"})
_QUEUES = frozenset({"Queue", "SimpleQueue", "LifoQueue", "PriorityQueue", "JoinableQueue"})


def is_queue(node: ast.expr, function: FunctionInfo, project: Project | None = None) -> bool:
    """Whether an expression is a queue: by its name, or by what the project assigns to it."""
    name = dotted(node).rpartition(".")[2]
    if any(part in name.lower() for part in ("queue", "inbox", "results")):
        return True
    modules = project.modules if project is not None else (function.module,)
    return any(_QUEUES & module.made_by.get(name, set()) for module in modules)
