"""What may block between two collectives, by the source alone.

Where a rank's stack was not taken, the recorder still tells its last collective and the one it
did not come to. The calls of the program between the two places that can wait without end are
the candidates; they are named as such, not as seen.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from eroica.localize.source import FunctionInfo, Project
from eroica.localize.source_calls import Calls, dotted
from eroica.localize.source_flow import loops
from eroica.localize.source_lines import is_bounded, is_lock
from eroica.localize.waits import call_wait, short
from eroica.records import CollectiveEntry, Place

_CATEGORY = {
    "io": "blocked_io",
    "file_lock": "blocked_io",
    "child": "blocked_io",
    "store": "polling_wait",
    "sleep": "polling_wait",
    "lock": "thread_lock_deadlock",
    "queue_get": "thread_lock_deadlock",
    "queue_put": "thread_lock_deadlock",
}
_ORDER = tuple(_CATEGORY)
_HARMLESS = frozenset({"write", "flush", "open", "read_text", "read_bytes", "read", "readline"})
"""File calls that end on a local disk; a pipe or socket is told by its own calls."""


@dataclass(frozen=True)
class Candidate:
    """A call that may wait without end."""

    kind: str
    place: Place
    text: str

    @property
    def category(self) -> str:
        return _CATEGORY[self.kind]


def candidates(
    last: CollectiveEntry, expected: CollectiveEntry, project: Project, calls: Calls
) -> list[Candidate]:
    """Return calls between a rank's last collective and the one it did not come to.

    Searched are the statements between the two lines in the innermost function both have in
    common (around the loop, where the expected one stands before), and what they call.
    """
    mine = [p for p in reversed(last.frames) if project.contains(p.file)]
    wanted = [p for p in reversed(expected.frames) if project.contains(p.file)]
    common = 0
    for a, b in zip(mine, wanted, strict=False):
        if (a.file, short(a.name)) != (b.file, short(b.name)):
            break
        common += 1
        if a.line != b.line:
            break
    if common == 0:
        return []
    start, end = mine[common - 1], wanted[common - 1]
    function = project.enclosing(start.file, start.line)
    if function is None or start.line is None or end.line is None:
        return []
    found = [
        c
        for node in _between(function, start.line, end.line)
        for c in _reach(node, function, project, calls, 3)
    ]
    found.sort(key=lambda c: _ORDER.index(c.kind))
    return list(dict.fromkeys(found))


def _between(function: FunctionInfo, start: int, end: int) -> Iterator[ast.AST]:
    """Nodes after ``start`` and before ``end``; with a loop around both, through its border."""
    around = [b for b in loops(function, start) if b.line <= end <= _last_line(b.node)]
    wraps = end <= start
    first = around[0].line if around else function.line
    final = _last_line(around[0].node) if around else _last_line(function.node)
    for node in function.own_nodes:
        line = getattr(node, "lineno", None)
        if line is None:
            continue
        inside = (start < line <= final) or (first <= line < end) if wraps else start < line < end
        if inside:
            yield node


def _last_line(node: ast.AST) -> int:
    return getattr(node, "end_lineno", None) or 1 << 30


def _reach(
    node: ast.AST, function: FunctionInfo, project: Project, calls: Calls, depth: int
) -> Iterator[Candidate]:
    if isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if is_lock(item.context_expr, function):
                text = ast.unparse(item.context_expr)
                yield Candidate("lock", function.place(node.lineno), text)
    if not isinstance(node, ast.Call):
        return
    known = call_wait(node, function)
    if known is not None and known[0] in _CATEGORY and not _is_bounded(node, known[1]):
        text = dotted(node.func, function.module)
        yield Candidate(known[0], function.place(node.lineno), text)
    elif depth > 0:
        for callee in calls.resolve(node, function):
            if callee is not function and callee.name != "__init__":
                for inner in callee.own_nodes:
                    yield from _reach(inner, callee, project, calls, depth - 1)


def _is_bounded(call: ast.Call, op: str) -> bool:
    return op in _HARMLESS or is_bounded(call)
