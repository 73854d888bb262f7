"""One source file as a libcst tree: where a line lies, what encloses it, what a name means."""

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from eroica.fix.nodes import Listing, children, find, find_each, parent, walk
from eroica.fix.statements import (
    argument,
    assigned,
    body_of,
    called,
    is_docstring,
    main_block,
    single,
)
from eroica.fix.suites import indent
from eroica.fix.texts import bare, code, dotted, flat, last_name

__all__ = [  # under the name that fixers know
    "argument",
    "assigned",
    "bare",
    "body_of",
    "called",
    "children",
    "code",
    "dotted",
    "find",
    "flat",
    "is_docstring",
    "last_name",
    "main_block",
    "single",
    "walk",
]
Function = cst.FunctionDef
Loop = cst.For | cst.While
Assignment = tuple[str, cst.BaseExpression, cst.Assign | cst.AnnAssign]
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement

BYTE_ORDER_MARK = "\ufeff"


def names(node: cst.CSTNode) -> set[str]:
    """Return every plain name read or written at or below a node."""
    return {item.value for item in find(node, cst.Name)}


class Source:
    """A parsed file. ``path`` is relative to the project, with forward slashes."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
        """What some editors put before the text of a file; it is no part of the tree."""
        self.module = cst.parse_module(text.removeprefix(BYTE_ORDER_MARK))
        self.suites: dict[int, cst.SimpleStatementSuite] = {}
        """The blocks on one line, by the ``id`` of the indented ones that stand for them."""
        listing = Listing(self.module)
        blocks = list(find(self.module, cst.SimpleStatementSuite))
        if blocks:
            self._indent(blocks)
            listing.close()
            listing = Listing(self.module)
        weakref.finalize(self, listing.close)
        self.memo: dict[str, object] = {}
        """What was found out about the file as a whole, by name."""
        self._assignments: list[Assignment] | None = None
        self._by_name: dict[str, list[Function]] = {}
        for function in find(self.module, cst.FunctionDef):
            self._by_name.setdefault(function.name.value, []).append(function)
        lines = list(find_each(self.module, cst.Import, cst.ImportFrom))
        self.imports = dict(_imported(lines))
        self.top_imports = dict(_imported(n for n in lines if self._is_for_all(n)))

    def _indent(self, blocks: Iterable[cst.SimpleStatementSuite]) -> None:
        positions = dict(self._positions)  # of the text, before the tree departs from it
        for suite in blocks:
            block, line = indent(parent(suite), suite)
            positions[block] = positions[line] = positions[suite]
            self.suites[id(block)] = suite
        self._positions = positions

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        """Made at the first question: of most files of a project nobody asks for a line."""
        # A tree that was just parsed holds no node twice: nothing has to be copied.
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        return wrapper.resolve(PositionProvider)

    def _is_for_all(self, line: cst.CSTNode) -> bool:
        """Whether the whole file has what a line imports, when it runs."""
        return not any(
            isinstance(above, cst.FunctionDef | cst.ClassDef)
            or (isinstance(above, cst.If) and "TYPE_CHECKING" in code(above.test))
            for above in self.ancestors(line)
        )

    def import_lines(self, name: str) -> list[cst.CSTNode]:
        """Return the import lines that give a name its meaning."""
        lines = find_each(self.module, cst.Import, cst.ImportFrom)
        return [line for line in lines if name in dict(_imported([line]))]

    # --- where things are
    def line(self, node: cst.CSTNode) -> int:
        return self._positions[node].start.line

    def last_line(self, node: cst.CSTNode) -> int:
        return self._positions[node].end.line

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return parent(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what encloses a node, innermost first."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def enclosing(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> cst.CSTNode | None:
        """Return the innermost ancestor of one of the kinds, within the same function."""
        for above in self.ancestors(node):
            if isinstance(above, kinds):
                return above
            if isinstance(above, cst.FunctionDef):
                return None
        return None

    def loops(self, node: cst.CSTNode) -> list[Loop]:
        """Return the loops around a node within its function, innermost first."""
        found: list[Loop] = []
        for above in self.ancestors(node):
            if isinstance(above, cst.For | cst.While):
                found.append(above)
            if isinstance(above, cst.FunctionDef):
                break
        return found

    def function_of(self, node: cst.CSTNode) -> Function | None:
        return next((a for a in self.ancestors(node) if isinstance(a, cst.FunctionDef)), None)

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        return next((a for a in self.ancestors(node) if isinstance(a, cst.ClassDef)), None)

    def statement_of(self, node: cst.CSTNode) -> Statement | None:
        """Return the whole statement a node is part of (itself, where it is one)."""
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            return node
        for above in self.ancestors(node):
            if isinstance(above, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return above
        return None

    def siblings(self, statement: cst.CSTNode) -> Sequence[cst.BaseStatement]:
        """Return the block a statement lies in."""
        above = self.parent(statement)
        if isinstance(above, cst.IndentedBlock | cst.Module):
            return above.body
        return ()

    def following(self, statement: cst.CSTNode) -> Sequence[cst.BaseStatement]:
        """Return the statements after one in its block."""
        block = self.siblings(statement)
        for number, item in enumerate(block):
            if item is statement:
                return block[number + 1 :]
        return ()

    def function_at(self, line: int) -> Function | None:
        """Return the innermost function whose lines (decorators included) hold a line."""
        best: Function | None = None
        for function in find(self.module, cst.FunctionDef):
            if self.line(function) <= line <= self.last_line(function):
                best = function
            for decorator in function.decorators:
                if self.line(decorator) == line:
                    return function
        return best

    def statement_at(self, line: int) -> Statement | None:
        """Return the innermost statement that covers a line."""
        best: Statement | None = None
        for node in walk(self.module):
            if (
                isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement)
                and node in self._positions
                and self.line(node) <= line <= self.last_line(node)
            ):
                best = node
        return best

    def functions_named(self, name: str) -> list[Function]:
        return list(self._by_name.get(name.rpartition(".")[2], ()))

    # --- what names mean
    def full_name(self, node: cst.CSTNode | None) -> str:
        """Return a dotted name with its first part replaced by what was imported under it."""
        name = dotted(node)
        first, dot, rest = name.partition(".")
        return f"{self.imports.get(first, first)}{dot}{rest}"

    def calls(self, node: cst.CSTNode, pattern: str) -> list[cst.Call]:
        """Return the calls below a node whose full dotted name matches all of a pattern."""
        rule = re.compile(pattern)
        return [c for c in find(node, cst.Call) if rule.fullmatch(self.full_name(c.func))]

    def uses(self, full: str) -> bool:
        """True where a module, or something from it, is imported anywhere in the file."""
        return any(f"{target}.".startswith(f"{full}.") for target in self.imports.values())

    def alias(self, full: str, at: cst.CSTNode | None = None) -> str | None:
        """Return how this file refers to a module or name, e.g. ``dist`` for torch.distributed.

        What only a function imports is not known to the others: it counts at a node behind it.
        """
        known = self.top_imports | (self.local_imports(at) if at is not None else {})
        best = max(
            (
                (len(target), name)
                for name, target in known.items()
                if full == target or full.startswith(target + ".")
            ),
            default=None,
        )
        if best is None:
            return None
        length, name = best
        return name + full[length:]

    def local_imports(self, at: cst.CSTNode, *, is_before: bool = True) -> dict[str, str]:
        """Return what the functions around a node import, in lines before it or behind it."""
        around = [a for a in self.ancestors(at) if isinstance(a, cst.FunctionDef)]
        lines = [n for a in around for n in find_each(a, cst.Import, cst.ImportFrom)]
        return dict(_imported(n for n in lines if (self.line(n) < self.line(at)) is is_before))

    def assignments(
        self, within: cst.CSTNode | None = None
    ) -> Iterator[tuple[str, cst.BaseExpression, cst.Assign | cst.AnnAssign]]:
        """Yield (dotted target, value, statement); tuple assignments are taken apart."""
        if within is not None:
            yield from _assigned(within)
            return
        if self._assignments is None:
            self._assignments = list(_assigned(self.module))
        yield from self._assignments


def _imported(lines: Iterable[cst.CSTNode]) -> Iterator[tuple[str, str]]:
    """Yield (name, what it means) of import lines."""
    for node in lines:
        if isinstance(node, cst.Import):
            for alias in node.names:
                full = dotted(alias.name)
                if alias.asname is not None:
                    yield dotted(alias.asname.name), full
                else:
                    yield full.split(".")[0], full.split(".")[0]
        elif isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
            base = "." * len(node.relative) + dotted(node.module)
            for alias in node.names:
                name = dotted(alias.asname.name) if alias.asname else dotted(alias.name)
                yield name, f"{base}.{dotted(alias.name)}"


def _assigned(
    within: cst.CSTNode,
) -> Iterator[tuple[str, cst.BaseExpression, cst.Assign | cst.AnnAssign]]:
    for node in find_each(within, cst.Assign, cst.AnnAssign):
        if isinstance(node, cst.AnnAssign) and node.value is not None:
            yield dotted(node.target), node.value, node
        if not isinstance(node, cst.Assign):
            continue
        for target in node.targets:
            for left, right in pairs(target.target, node.value):
                if dotted(left):
                    yield dotted(left), right, node


def pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield the single assignments of a (tuple) assignment; the whole value where it is opaque."""
    if isinstance(target, cst.Tuple | cst.List):
        opaque = not isinstance(value, cst.Tuple | cst.List) or len(value.elements) != len(
            target.elements
        )
        for number, element in enumerate(target.elements):
            right = value if opaque else value.elements[number].value  # type: ignore[attr-defined]
            yield from pairs(element.value, right)
    else:
        yield target, value
