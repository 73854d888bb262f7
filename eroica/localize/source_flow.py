"""What encloses a line of a function and what may leave before it: blocks, loops, guards, tries."""

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from eroica.localize.source import FunctionInfo

BlockKind = Literal["if", "while", "for", "with", "try", "except", "match"]
JumpKind = Literal["return", "continue", "break", "raise", "exit"]
Loop = ast.For | ast.AsyncFor | ast.While
_EXITS = frozenset({"sys.exit", "os._exit", "exit", "quit", "os.abort"})


@dataclass(frozen=True, eq=False)
class Block:
    """One statement around a line, and the branch of it that the line is in."""

    kind: BlockKind
    node: ast.stmt | ast.excepthandler
    branch: str
    """``body``, ``orelse``, ``finalbody`` or ``handler``."""

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def test(self) -> ast.expr | None:
        """The condition or the iterable, where the block has one."""
        if isinstance(self.node, ast.If | ast.While):
            return self.node.test
        if isinstance(self.node, ast.For | ast.AsyncFor):
            return self.node.iter
        return None

    @property
    def text(self) -> str:
        return ast.unparse(self.test) if self.test is not None else ""

    @property
    def is_loop(self) -> bool:
        return isinstance(self.node, ast.For | ast.AsyncFor | ast.While)


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition before a line under which the line is not reached."""

    test: ast.expr
    is_negated: bool
    """The jump is taken where the test is false."""
    jump: JumpKind
    line: int
    """Of the condition."""
    loop: Loop | None = None
    """The loop that ``break`` or ``continue`` acts on."""

    @property
    def text(self) -> str:
        text = ast.unparse(self.test)
        return f"not ({text})" if self.is_negated else text


def _bodies(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    for name in ("body", "orelse", "finalbody"):
        value = getattr(node, name, None)
        if isinstance(value, list) and value:
            yield name, value
    for handler in getattr(node, "handlers", []):
        yield "handler", [handler]
    for case in getattr(node, "cases", []):
        yield "body", case.body


_KINDS: dict[type[ast.AST], BlockKind] = {
    ast.If: "if",
    ast.While: "while",
    ast.For: "for",
    ast.AsyncFor: "for",
    ast.With: "with",
    ast.AsyncWith: "with",
    ast.Try: "try",
    ast.TryStar: "try",
    ast.ExceptHandler: "except",
    ast.Match: "match",
}


def _covers(node: ast.AST, line: int) -> bool:
    start = getattr(node, "lineno", None)
    end = getattr(node, "end_lineno", None)
    return start is not None and end is not None and start <= line <= end


def statement_path(
    function: FunctionInfo, line: int
) -> list[tuple[ast.stmt | ast.excepthandler, str, list[ast.stmt]]]:
    """Return (statement, branch of its parent, siblings), outermost first, to the line's own."""
    path: list[tuple[ast.stmt | ast.excepthandler, str, list[ast.stmt]]] = []
    node: ast.AST = function.node
    while True:
        found = None
        for branch, siblings in _bodies(node):
            inner = next((s for s in siblings if _covers(s, line)), None)
            if inner is not None:
                found = (inner, branch, siblings)
                break
        if found is None:
            return path
        path.append(found)
        inner = found[0]
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return path
        node = inner


def blocks(function: FunctionInfo, line: int) -> list[Block]:
    """Return the blocks of the function around a line, innermost first.

    A line in a block's own head (its test, its iterable) is not inside the block.
    """
    path = statement_path(function, line)
    found: list[Block] = []
    for (node, _, _), (_, branch, _) in itertools.pairwise(path):
        kind = _KINDS.get(type(node))
        if kind is not None and not isinstance(node, ast.ExceptHandler):
            found.append(Block(kind, node, branch))
        elif isinstance(node, ast.ExceptHandler):
            found.append(Block("except", node, "body"))
    return found[::-1]


def loops(function: FunctionInfo, line: int) -> list[Block]:
    """Return the loops around a line, innermost first (the ``else`` of a loop is not inside)."""
    return [b for b in blocks(function, line) if b.is_loop and b.branch == "body"]


def head_loop(function: FunctionInfo, line: int) -> Block | None:
    """Return the loop whose head (iterable or test) the line is: it waits for its next item."""
    path = statement_path(function, line)
    if not path:
        return None
    node = path[-1][0]
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        return Block(_KINDS[type(node)], node, "body")
    return None


def jumps(statements: list[ast.stmt], *, in_loop: bool = False) -> list[tuple[JumpKind, int]]:
    """Return the jumps that leave this list of statements, with their lines.

    ``break`` and ``continue`` of a loop inside the list do not leave it.
    """
    found: list[tuple[JumpKind, int]] = []
    for node in statements:
        if isinstance(node, ast.Return):
            found.append(("return", node.lineno))
        elif isinstance(node, ast.Raise):
            found.append(("raise", node.lineno))
        elif isinstance(node, ast.Continue) and not in_loop:
            found.append(("continue", node.lineno))
        elif isinstance(node, ast.Break) and not in_loop:
            found.append(("break", node.lineno))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func) in _EXITS:
                found.append(("exit", node.lineno))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_loop = isinstance(node, ast.For | ast.AsyncFor | ast.While)
            for branch, body in _bodies(node):
                found += jumps(body, in_loop=in_loop or (is_loop and branch == "body"))
    return found


def guards(function: FunctionInfo, line: int) -> list[Guard]:
    """Return the conditions before a line that may leave its block or function, nearest first."""
    path = statement_path(function, line)
    found: list[Guard] = []
    loop: Loop | None = None
    for node, _, siblings in path:
        for sibling in siblings:
            if sibling is node:
                break
            found += _guards_of(sibling, loop)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            loop = node
    return found[::-1]


def _guards_of(statement: ast.stmt, loop: Loop | None) -> list[Guard]:
    """Conditions inside one earlier statement under which control does not come past it."""
    found: list[Guard] = []
    if isinstance(statement, ast.If):
        for is_negated, body in ((False, statement.body), (True, statement.orelse)):
            nested = [g for inner in body for g in _guards_of(inner, loop)]
            direct = jumps([s for s in body if not isinstance(s, ast.If | ast.For | ast.While)])
            found += nested
            found += [
                Guard(statement.test, is_negated, kind, statement.lineno, loop)
                for kind, _ in direct
            ]
    elif isinstance(statement, ast.With | ast.AsyncWith | ast.Try):
        found += [g for inner in statement.body for g in _guards_of(inner, loop)]
    elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
        found += [
            g
            for inner in statement.body
            for g in _guards_of(inner, loop)
            if g.jump in ("return", "raise", "exit")
        ]
    return found


def breaks(loop: Loop) -> list[Guard]:
    """Return the conditions under which a loop (or its function) is left from inside the loop."""
    found: list[Guard] = []
    for statement in loop.body:
        found += [g for g in _guards_of(statement, loop) if g.jump != "continue"]
    return found


def following(function: FunctionInfo, line: int) -> list[ast.stmt]:
    """Return the statements after the line's own in its block."""
    path = statement_path(function, line)
    if not path:
        return []
    node, _, siblings = path[-1]
    position = next((i for i, s in enumerate(siblings) if s is node), len(siblings))
    return siblings[position + 1 :]


@dataclass(frozen=True, eq=False)
class Handler:
    """An ``except`` clause around a line that lets the program go on."""

    node: ast.ExceptHandler
    jump: JumpKind | None
    """How the handler leaves; None where it falls through to what follows the ``try``."""

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def types(self) -> str:
        return ast.unparse(self.node.type) if self.node.type else "everything"


def swallowing_handlers(function: FunctionInfo, line: int) -> list[Handler]:
    """Return the handlers around a line that let the program go on, innermost first."""
    found: list[Handler] = []
    for block in blocks(function, line):
        if block.kind != "try" or block.branch != "body" or not isinstance(block.node, ast.Try):
            continue
        for handler in block.node.handlers:
            last = handler.body[-1]
            left = jumps(handler.body)
            goes_on = any(kind in ("return", "continue", "break") for kind, _ in left)
            if any(kind == "exit" for kind, _ in left):
                continue
            if isinstance(last, ast.Raise) and not goes_on:
                continue
            if handler.type is not None and _is_control_exception(ast.unparse(handler.type)):
                continue
            jump = next((kind for kind, _ in left if kind != "raise"), None)
            found.append(Handler(handler, jump))
    return found


def _is_control_exception(name: str) -> bool:
    return name in ("KeyboardInterrupt", "SystemExit", "ImportError", "ModuleNotFoundError")
