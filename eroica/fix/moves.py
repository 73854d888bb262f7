"""Taking statements that all ranks must reach out of a condition that only some ranks meet."""

import re
from collections.abc import Callable, Sequence

import libcst as cst

from eroica.fix.edits import Edits
from eroica.fix.facts import (
    calls_here,
    collectives,
    conjuncts,
    definitions,
    is_collective,
    is_local,
    joined,
    reaches_collective,
)
from eroica.fix.ranks import ranked
from eroica.fix.tree import Function, Source, code, dotted, find, last_name, names, single, walk

Test = Callable[[cst.CSTNode], bool]


def conditions(source: Source, sources: tuple[Source, ...], kind: str) -> list[cst.If]:
    """Return the ifs on the rank (or on local data) whose body leads to a collective."""
    found = []
    for node in find(source.module, cst.If):
        parts, _ = split_test(source, node, kind)
        if parts and reaches_collective(source, node.body, sources):
            if node.orelse is not None and reaches_collective(source, node.orelse, sources):
                continue
            if not isinstance(source.parent(node), cst.If):  # not an elif
                found.append(node)
    return found


def split_test(
    source: Source, node: cst.If, kind: str
) -> tuple[list[cst.BaseExpression], list[cst.BaseExpression]]:
    """Split a condition into the parts that differ over ranks and the parts that do not."""
    function = source.function_of(node)
    apart: list[cst.BaseExpression] = []
    alike: list[cst.BaseExpression] = []
    for part in conjuncts(node.test):
        differs = ranked(source, part) if kind == "rank" else is_local(source, part, function)
        (apart if differs else alike).append(part)
    return apart, alike


def shared_statements(source: Source, body: Sequence[cst.CSTNode], leads: Test) -> set[cst.CSTNode]:
    """Return what all ranks must run: statements that lead to a collective, what feeds them, and
    conditions that leave before them: who leaves there must not be one rank alone."""
    shared = {statement for statement in body if leads(statement)}
    needed: set[str] = set()
    is_before = False
    for statement in reversed(body):
        if statement in shared or (is_before and _may_leave(statement)):
            shared.add(statement)
            needed |= names(statement)
            is_before = True
            continue
        small = single(statement)
        if isinstance(small, cst.Assign) and all(
            dotted(t.target) in needed or names(t.target) & needed for t in small.targets
        ):
            shared.add(statement)
            needed |= names(small.value)
    return shared | _resets(body, shared)


def _resets(body: Sequence[cst.CSTNode], shared: set[cst.CSTNode]) -> set[cst.CSTNode]:
    """What begins anew, after a collective, the state that went into it: on all ranks or none."""
    given = {
        code(node)
        for statement in shared
        for node in find(statement, cst.Attribute)
        if dotted(node).startswith("self.")
    }
    own = [statement for statement in body if statement not in shared]
    made = {
        name
        for statement in own
        if isinstance(small := single(statement), cst.Assign)
        for target in small.targets
        for name in names(target.target)
    }
    first = next((i for i, statement in enumerate(body) if statement in shared), len(body))
    found: set[cst.CSTNode] = set()
    for statement in body[first:]:
        small = single(statement)
        value = small.value if isinstance(small, cst.Expr | cst.Assign) else None
        if isinstance(small, cst.Expr) and isinstance(value, cst.Call):
            call = value.func
            if not isinstance(call, cst.Attribute) or code(call.value) not in given:
                continue
            is_reset = call.attr.value.endswith("_") or call.attr.value in ("clear", "reset")
        else:
            targets = small.targets if isinstance(small, cst.Assign) else ()
            is_reset = any(code(t.target) in given for t in targets)
        if is_reset and value is not None and not names(value) & made:
            found.add(statement)
    return found - shared


def _may_leave(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.If) and any(
        found for kind in (cst.Return, cst.Continue, cst.Break) for found in find(statement, kind)
    )


def regroup(
    edits: Edits,
    node: cst.If,
    kind: str,
    leads: Test,
    *,
    extra: str = "",
) -> bool:
    """Rewrite ``if R and S: body`` so that the shared statements only depend on S.

    ``extra`` is put after everything. False where the condition has no such form.
    """
    source = edits.source
    apart, alike = split_test(source, node, kind)
    body = node.body.body if isinstance(node.body, cst.IndentedBlock) else ()
    if not apart or not body:
        return False
    shared = shared_statements(source, list(body), leads)
    test = cst.parse_expression(joined(apart))
    new: list[cst.BaseStatement] = []
    own_done = False
    for is_shared, statements in in_groups(body, shared):
        if is_shared:
            new.extend(statements)
            continue
        else_part = node.orelse if not own_done else None
        own_done = True
        new.append(cst.If(test=test, body=cst.IndentedBlock(body=statements), orelse=else_part))
    if node.orelse is not None and not own_done:
        return False
    if extra:
        new.extend(edits.statements(extra))
    if alike:
        if node.orelse is not None:
            return False
        outer = cst.parse_expression(joined(alike))
        new = [cst.If(test=outer, body=cst.IndentedBlock(body=new))]
    lead = node.leading_lines
    if lead and not new[0].leading_lines:  # type: ignore[attr-defined]
        new[0] = new[0].with_changes(leading_lines=lead)
    edits.replace(node, new)
    return True


def in_groups(
    body: Sequence[cst.BaseStatement], shared: set[cst.CSTNode]
) -> list[tuple[bool, list[cst.BaseStatement]]]:
    """Return the runs of statements that are shared by all ranks, and of those that are not."""
    groups: list[tuple[bool, list[cst.BaseStatement]]] = []
    for statement in body:
        is_shared = statement in shared
        if groups and groups[-1][0] == is_shared:
            groups[-1][1].append(statement)
        else:
            groups.append((is_shared, [statement]))
    return groups


def meets_all(
    source: Source, node: cst.CSTNode, sources: tuple[Source, ...], depth: int = 3
) -> bool:
    """True where all ranks meet at or below a node: in a collective of no group, or at a store."""
    for call in calls_here(node):
        if is_collective(source, call) and not any(
            arg.keyword is not None and arg.keyword.value == "group" for arg in call.args
        ):
            return True
        if _STORE.fullmatch(dotted(call.func)):
            return True
        for other, function in definitions(source, call, sources) if depth else ():
            if meets_all(other, function.body, sources, depth - 1):
                return True
    return False


_STORE = re.compile(r"(?:.*[._])?store\.(?:wait|get)", re.I)


def hoist(
    edits: Edits, statements: Sequence[cst.BaseStatement], sources: tuple[Source, ...]
) -> list[str] | None:
    """Give a name to each call inside of compound statements in which all ranks meet.

    Returns the assignments to be made before the statements; None where a call needs what only
    the statements make.
    """
    source, lines = edits.source, []
    taken = names(source.function_of(statements[0]) or source.module)
    made: set[str] = set()
    for statement in statements:
        made |= _bound(statement)
        if not isinstance(statement, cst.BaseCompoundStatement):
            continue
        for call in _meeting_calls(source, statement, sources):
            if names(call) & made:
                return None
            name = code(call.func).rpartition(".")[2] + "_of_all"
            while name in taken:
                name += "_"
            taken.add(name)
            lines.append(f"{name} = {code(call)}")
            edits.replace(call, cst.Name(name))
    return lines


def _bound(statement: cst.CSTNode) -> set[str]:
    """The names a statement gives a value to."""
    found: set[str] = set()
    for node in walk(statement):
        if isinstance(node, cst.AssignTarget | cst.For | cst.AugAssign | cst.NamedExpr):
            found |= names(node.target)
        elif isinstance(node, cst.AsName):
            found |= names(node.name)
    return found


def _meeting_calls(
    source: Source, node: cst.CSTNode, sources: tuple[Source, ...]
) -> list[cst.Call]:
    """The outermost calls below a node that return a value all ranks have to meet for."""
    if isinstance(node, cst.Call):
        deep = any(
            meets_all(other, function.body, sources, 2)
            for other, function in definitions(source, node, sources)
        )
        if deep or is_collective(source, node):
            return [node]
    return [c for child in node.children for c in _meeting_calls(source, child, sources)]


def callees(
    source: Source, node: cst.CSTNode, sources: tuple[Source, ...]
) -> list[tuple[Source, Function]]:
    """Return the project's functions called at or below a node that hold a collective."""
    found = []
    for call in calls_here(node):
        for other, function in definitions(source, call, sources):
            if collectives(other, function.body):
                found.append((other, function))
    return found


def call_sites(function: Function, sources: Sequence[Source]) -> list[tuple[Source, cst.Call]]:
    """Return the calls in the project that mean a function."""
    name = function.name.value
    everything = tuple(sources)
    return [
        (source, call)
        for source in sources
        for call in find(source.module, cst.Call)
        if last_name(call.func) == name
        and source.function_of(call) is not function  # within it: itself again, or another's
        and any(f is function for _, f in definitions(source, call, everything))
    ]


def leads_to_collective(source: Source, sources: tuple[Source, ...]) -> Test:
    return lambda statement: reaches_collective(source, statement, sources)


def holds_collective(source: Source) -> Test:
    return lambda statement: any(is_collective(source, c) for c in calls_here(statement))
