"""Edits of one file, collected by node and made in one pass, so that comments and layout stay."""

import textwrap
from collections.abc import Callable, Sequence

import libcst as cst

from eroica.fix.imports import is_imported, with_helper, with_imports
from eroica.fix.scopes import name_for
from eroica.fix.suites import as_it_was
from eroica.fix.tree import Source, names

Change = cst.CSTNode | Callable[[cst.CSTNode], cst.CSTNode]


def expression(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


class _Fill(cst.CSTTransformer):
    """Puts nodes in the place of ``__NAME__`` placeholders."""

    def __init__(self, parts: dict[str, object]) -> None:
        self.parts = {f"__{name}__": part for name, part in parts.items()}

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        small = original_node.body[0] if len(original_node.body) == 1 else None
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Name):
            part = self.parts.get(small.value.value)
            if isinstance(part, list | tuple):
                return cst.FlattenSentinel(part)
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        part = self.parts.get(original_node.value)
        return part if isinstance(part, cst.BaseExpression) else updated_node


class _Apply(cst.CSTTransformer):
    def __init__(self, edits: "Edits") -> None:
        self.edits = edits
        self.edited = {*edits._changes, *edits._before, *edits._after, *edits._gaps}

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> object:  # type: ignore[override]
        updated: object = super().on_leave(original_node, updated_node)
        key = id(original_node)
        if isinstance(original_node, cst.IndentedBlock) and key not in self.edits._changes:
            was = as_it_was(original_node, self.edits.source.suites, self.edited)
            return was or _no_empty_block(updated)
        change = self.edits._changes.get(key)
        if change is not None and isinstance(updated, cst.CSTNode):
            updated = change(updated)
        gap = self.edits._gaps.get(key)
        if gap and hasattr(updated, "leading_lines") and not updated.leading_lines:
            updated = updated.with_changes(leading_lines=gap)  # type: ignore[attr-defined]
        before = self.edits._before.get(key, [])
        after = self.edits._after.get(key, [])
        if not (before or after):
            return updated
        if isinstance(updated, cst.FlattenSentinel):
            middle = list(updated)
        else:
            middle = [updated] if isinstance(updated, cst.CSTNode) else []
        if before and middle:  # a comment above the statement stays above what is put before it
            first = middle[0]
            lead = getattr(first, "leading_lines", ())
            if lead:
                before = [before[0].with_changes(leading_lines=lead), *before[1:]]
                middle[0] = first.with_changes(leading_lines=())
        return cst.FlattenSentinel([*before, *middle, *after])


def _no_empty_block(block: object) -> object:
    if isinstance(block, cst.IndentedBlock) and not block.body:
        return block.with_changes(body=[cst.parse_statement("pass")])
    return block


class Edits:
    """What to change in one Source; ``text()`` is the file after it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._changes: dict[int, Callable[[cst.CSTNode], object]] = {}
        self._before: dict[int, list[cst.CSTNode]] = {}
        self._after: dict[int, list[cst.CSTNode]] = {}
        self._gaps: dict[int, list[cst.EmptyLine]] = {}
        self._imports: list[str] = []
        self._helpers: list[str] = []

    def statements(self, text: str, **parts: object) -> list[cst.BaseStatement]:
        """Parse statements; ``__NAME__`` stands for a part: an expression or statements."""
        module = cst.parse_module(textwrap.dedent(text), self.source.module.config_for_parsing)
        filled = module.visit(_Fill(parts)) if parts else module
        body = list(filled.body)
        if filled.header and body:  # blank lines at the top belong to the first statement
            gap = [line.with_changes(indent=line.comment is not None) for line in filled.header]
            body[0] = body[0].with_changes(leading_lines=[*gap, *body[0].leading_lines])
        return body  # type: ignore[return-value]

    def replace(self, node: cst.CSTNode, change: Change | Sequence[cst.CSTNode]) -> None:
        """Replace a node: by one, by several statements, or by a function of its edited self."""
        if isinstance(change, cst.CSTNode):
            self._changes[id(node)] = lambda _: change
        elif callable(change):
            self._changes[id(node)] = change
        else:
            lead = getattr(node, "leading_lines", ())
            items = list(change)
            if items and lead and hasattr(items[0], "leading_lines") and not items[0].leading_lines:
                items[0] = items[0].with_changes(leading_lines=lead)
            self._changes[id(node)] = lambda _: cst.FlattenSentinel(items)

    def unwrap(self, node: cst.With | cst.If) -> None:
        """Put a block's (edited) statements in its place."""

        def change(updated: cst.CSTNode) -> object:
            assert isinstance(updated, cst.With | cst.If)
            body = list(updated.body.body)
            lead = updated.leading_lines
            if body and lead and not getattr(body[0], "leading_lines", (1,)):
                body[0] = body[0].with_changes(leading_lines=lead)
            return cst.FlattenSentinel(body)

        self._changes[id(node)] = change

    def replace_text(self, node: cst.CSTNode, text: str, **parts: object) -> None:
        """Replace an expression or a statement by parsed text."""
        if isinstance(node, cst.BaseExpression):
            self.replace(node, expression(text))
        else:
            self.replace(node, self.statements(text, **parts))

    def remove(self, statement: cst.CSTNode) -> None:
        """Take a statement out; blank lines above it go to the next one."""
        self._changes[id(statement)] = lambda _: cst.RemoveFromParent()
        gap = [line for line in getattr(statement, "leading_lines", ()) if line.comment is None]
        after = self.source.following(statement)
        if gap and after and not getattr(after[0], "leading_lines", (1,)):
            self._gaps[id(after[0])] = gap

    def before(self, statement: cst.CSTNode, text: str, **parts: object) -> None:
        self._before.setdefault(id(statement), []).extend(self.statements(text, **parts))

    def after(self, statement: cst.CSTNode, text: str, **parts: object) -> None:
        self._after.setdefault(id(statement), []).extend(self.statements(text, **parts))

    def set_argument(
        self, call: cst.Call, keyword: str, value: str, position: int | None = None
    ) -> None:
        """Set or add a keyword argument of a call (None of the others moves)."""
        new = expression(value)

        def change(node: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(node, cst.Call)
            return with_argument(node, keyword, new, position)

        earlier = self._changes.get(id(call))
        self._changes[id(call)] = (
            change if earlier is None else lambda node: change(earlier(node))  # type: ignore[arg-type]
        )

    def drop_argument(self, call: cst.Call, keyword: str) -> None:
        def change(node: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(node, cst.Call)
            kept = [a for a in node.args if a.keyword is None or a.keyword.value != keyword]
            if kept and isinstance(kept[-1].comma, cst.Comma) and kept[-1] is not node.args[-1]:
                kept[-1] = kept[-1].with_changes(comma=node.args[-1].comma)
            return node.with_changes(args=kept)

        earlier = self._changes.get(id(call))
        self._changes[id(call)] = (
            change if earlier is None else lambda node: change(earlier(node))  # type: ignore[arg-type]
        )

    def add_import(self, text: str) -> None:
        """Add an import line unless the file has it: ``import gc``, ``from a import b``."""
        if text not in self._imports and not is_imported(self.source, text):
            self._imports.append(text)

    def module(self, full: str, at: cst.CSTNode | None = None) -> str:
        """Return how to call a module at a node, with an import of it where that takes one."""
        name, line = name_for(self.source, full, at)
        if line:
            self.add_import(line)
        return name

    def also_at_top(self, node: cst.CSTNode) -> None:
        """Import for the whole file what the names in a node mean, where only a function does."""
        source = self.source
        for name in sorted(names(node) & (source.imports.keys() - source.top_imports.keys())):
            full = source.imports[name]
            home, _, last = full.rpartition(".")
            if any(isinstance(n, cst.ImportFrom) for n in source.import_lines(name)):
                line = f"from {home} import {last}" + ("" if last == name else f" as {name}")
            else:
                line = f"import {full}" + ("" if full == name else f" as {name}")
            self.add_import(line)

    def add_helper(self, text: str) -> None:
        """Add a function below the imports."""
        self._helpers.append(text)

    def edited(self, statement: cst.CSTNode) -> cst.BaseStatement:
        """Return one statement with the edits made inside of it so far."""
        new = statement.visit(_Apply(self))
        assert isinstance(new, cst.BaseStatement)
        return new

    def text(self) -> str:
        module = self.source.module.visit(_Apply(self))
        module = with_imports(module, self._imports)
        for helper in self._helpers:
            module = with_helper(module, self.statements(helper))
        return self.source.mark + module.code


def with_argument(
    call: cst.Call, keyword: str, value: cst.BaseExpression, position: int | None = None
) -> cst.Call:
    args = list(call.args)
    for number, arg in enumerate(args):
        by_position = number == position and arg.keyword is None and not arg.star
        if by_position or (arg.keyword is not None and arg.keyword.value == keyword):
            args[number] = arg.with_changes(value=value)
            return call.with_changes(args=args)
    new = cst.Arg(
        value=value,
        keyword=cst.Name(keyword),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    at = next((i for i, arg in enumerate(args) if arg.star == "**"), len(args))
    if at < len(args):
        args.insert(
            at, new.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        )
        return call.with_changes(args=args)
    if args:
        last = args[-1]
        if isinstance(last.comma, cst.Comma):  # a trailing comma stays one
            between: object = cst.SimpleWhitespace(" ")
            if len(args) > 1 and isinstance(args[-2].comma, cst.Comma):
                between = args[-2].comma.whitespace_after
            new = new.with_changes(comma=last.comma)
            args[-1] = last.with_changes(comma=cst.Comma(whitespace_after=between))  # type: ignore[arg-type]
        else:
            args[-1] = last.with_changes(
                comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
                whitespace_after_arg=cst.SimpleWhitespace(""),
            )
            new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
    return call.with_changes(args=[*args, new])
