"""Taking statements that all ranks must reach out of a condition that only some ranks meet."""

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
    ranked,
    reaches_collective,
)
from eroica.fix.tree import Function, Source, code, dotted, find, names, single

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
    """Return what all ranks must run: statements that lead to a collective, and what feeds them."""
    shared = {statement for statement in body if leads(statement)}
    needed: set[str] = set()
    for statement in reversed(body):
        if statement in shared:
            needed |= names(statement)
            continue
        small = single(statement)
        if isinstance(small, cst.Assign) and all(
            dotted(t.target) in needed or names(t.target) & needed for t in small.targets
        ):
            shared.add(statement)
            needed |= names(small.value)
    return shared


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
    groups: list[tuple[bool, list[cst.BaseStatement]]] = []
    for statement in body:
        is_shared = statement in shared
        if groups and groups[-1][0] == is_shared:
            groups[-1][1].append(statement)
        else:
            groups.append((is_shared, [statement]))
    test = cst.parse_expression(joined(apart))
    new: list[cst.BaseStatement] = []
    own_done = False
    for is_shared, statements in groups:
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
        if code(call.func).rpartition(".")[2] == name
        and any(f is function for _, f in definitions(source, call, everything))
    ]


def leads_to_collective(source: Source, sources: tuple[Source, ...]) -> Test:
    return lambda statement: reaches_collective(source, statement, sources)


def holds_collective(source: Source) -> Test:
    return lambda statement: any(is_collective(source, c) for c in calls_here(statement))
