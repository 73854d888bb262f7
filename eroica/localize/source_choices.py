"""Conditions on a call that are no ``if`` statement: inline tests, cases, decorators.

``rank == 0 and dist.barrier()``, ``save() if is_main else None``, ``match rank:`` and
``@rank_zero_only`` let some ranks past as an ``if`` does.
"""

import ast
from collections.abc import Iterator

from eroica.localize.source import FunctionInfo
from eroica.localize.source_calls import collective_kind, dotted
from eroica.localize.source_depend import is_rank_name
from eroica.localize.source_lines import line_calls
from eroica.localize.waits import short
from eroica.records import Place

Choice = tuple[ast.expr, bool]
"""A test, and whether it has to hold for the call to be made."""

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
_FIRST_ONLY = ("rank_zero", "rank0", "main_process", "master", "main_only", "is_main")


def inline_choices(function: FunctionInfo, line: int, entered: Place | None) -> list[Choice]:
    """Return the tests inside the statement of a line that a call on it stands under.

    The call is the one of the function ``entered``, else a collective.
    """
    statement, calls = line_calls(function, line)
    if statement is None:
        return []
    call = next((c for c in calls if _is_meant(c, function, entered)), None)
    if call is None:
        return []
    around = {child: node for node in ast.walk(statement) for child in ast.iter_child_nodes(node)}
    found: list[Choice] = []
    node: ast.AST = call
    while node is not statement and not isinstance(node, ast.Lambda) and node in around:
        outer = around[node]
        found += _tests_between(outer, node)
        node = outer
    return [] if isinstance(node, ast.Lambda) else found


def _is_meant(call: ast.Call, function: FunctionInfo, entered: Place | None) -> bool:
    if entered is None:
        return collective_kind(call, function.module) is not None
    return dotted(call.func).rpartition(".")[2] == short(entered.name)


def _tests_between(outer: ast.AST, node: ast.AST) -> list[Choice]:
    if isinstance(outer, ast.IfExp) and node is not outer.test:
        return [(outer.test, node is outer.body)]
    if isinstance(outer, ast.BoolOp):
        before = outer.values[: next(i for i, v in enumerate(outer.values) if v is node)]
        return [(value, isinstance(outer.op, ast.And)) for value in before]
    if isinstance(outer, _COMPREHENSIONS) and not isinstance(node, ast.comprehension):
        return [(test, True) for generator in outer.generators for test in generator.ifs]
    return []


def case_at(node: ast.Match, line: int) -> int | None:
    """Return the number of the case whose body a line is in."""
    for number, case in enumerate(node.cases):
        if case.body[0].lineno <= line <= (case.body[-1].end_lineno or 0):
            return number
    return None


def case_choices(node: ast.Match, line: int) -> list[Choice]:
    """Return the tests that lead into the case a line is in; empty where patterns are no values."""
    number = case_at(node, line)
    if number is None:
        return []
    found: list[Choice] = []
    for case in node.cases[: number + 1]:
        test = _test_of(node.subject, case.pattern)
        is_last = case is node.cases[number]
        if test is not None and (is_last or case.guard is None):
            found.append((test, is_last))
        if is_last and case.guard is not None:
            found.append((case.guard, True))
    return found


def _test_of(subject: ast.expr, pattern: ast.pattern) -> ast.expr | None:
    test: ast.expr | None = None
    if isinstance(pattern, ast.MatchValue):
        test = ast.Compare(subject, [ast.Eq()], [pattern.value])
    elif isinstance(pattern, ast.MatchSingleton):
        test = ast.Compare(subject, [ast.Is()], [ast.Constant(pattern.value)])
    elif isinstance(pattern, ast.MatchOr):
        parts = [_test_of(subject, part) for part in pattern.patterns]
        if all(part is not None for part in parts):
            test = ast.BoolOp(ast.Or(), [part for part in parts if part is not None])
    if test is not None:
        ast.fix_missing_locations(ast.copy_location(test, subject))
    return test


def rank_decorators(function: FunctionInfo) -> Iterator[tuple[str, int, bool]]:
    """Yield (name, line, whether it stands for rank 0 alone) of decorators that name ranks."""
    for node in getattr(function.node, "decorator_list", []):
        called = node.func if isinstance(node, ast.Call) else node
        name = dotted(called).rpartition(".")[2]
        is_first = any(word in name for word in _FIRST_ONLY) and "local" not in name
        if is_first or is_rank_name(name) or "process" in name.split("_"):
            yield name, node.lineno, is_first
