"""One parsed file of the user's project: its functions, classes, imports and assignments."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from eroica.records import Place

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class FunctionInfo:
    """One function of the project; ``<module>`` for the code outside all functions."""

    name: str
    qualified_name: str
    module: "Module"
    node: FunctionNode | ast.Module
    class_name: str | None = None

    @property
    def file(self) -> str:
        return self.module.file

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 1)

    @property
    def is_module(self) -> bool:
        return isinstance(self.node, ast.Module)

    @cached_property
    def own_nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the body in source order, without those of nested functions and classes."""
        return tuple(_own_nodes(self.node))

    @cached_property
    def own_statements(self) -> tuple[ast.stmt, ...]:
        return tuple(n for n in self.own_nodes if isinstance(n, ast.stmt))

    @cached_property
    def made_attributes(self) -> tuple[str, ...]:
        """Attributes of ``self`` that the function assigns."""
        targets = [
            part
            for node in self.own_nodes
            for target in assigned_to(node)
            for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        return tuple(
            t.attr
            for t in targets
            if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name)
            if t.value.id == "self"
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        if isinstance(self.node, ast.Module):
            return ()
        given = self.node.args
        return tuple(a.arg for a in [*given.posonlyargs, *given.args, *given.kwonlyargs])

    def place(self, line: int | None = None) -> Place:
        return Place(name=self.qualified_name, file=self.file, line=line or self.line)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Last names of the targets of an assignment, each with its own value."""
    if isinstance(target, ast.Tuple | ast.List):
        whole = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        for position, inner in enumerate(target.elts):
            part = value.elts[position] if whole else value  # type: ignore[attr-defined]
            yield from _pairs(inner, part)
    elif isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Attribute):
        yield target.attr, value


def assigned_to(node: ast.AST) -> list[ast.expr]:
    """Return the targets of an assignment with a value, annotated or not; empty for the rest."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) and node.value is not None else []


def _own_nodes(root: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(root):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _own_nodes(child)


@dataclass(eq=False)
class Module:
    """One parsed file."""

    path: Path
    file: str
    """As frames name it: the path itself."""
    name: str
    """Dotted, relative to the root."""
    tree: ast.Module
    text: str
    functions: list[FunctionInfo] = field(default_factory=list)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    """Local name to dotted origin: ``dist`` to ``torch.distributed``."""

    def __post_init__(self) -> None:
        self._collect(self.tree, "", None)
        whole = FunctionInfo(
            name="<module>", qualified_name="<module>", module=self, node=self.tree
        )
        self.functions.append(whole)
        for node in ast.walk(self.tree):
            self._read_import(node)

    def _collect(self, root: ast.AST, prefix: str, class_name: str | None) -> None:
        for child in ast.iter_child_nodes(root):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                qualified = prefix + child.name
                info = FunctionInfo(
                    name=child.name,
                    qualified_name=qualified,
                    module=self,
                    node=child,
                    class_name=class_name,
                )
                self.functions.append(info)
                self._collect(child, qualified + ".", class_name)
            elif isinstance(child, ast.ClassDef):
                self.classes[child.name] = child
                self._collect(child, f"{prefix}{child.name}.", child.name)
            else:
                self._collect(child, prefix, class_name)

    def _read_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                self.imports[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom):
            package = self.name.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *((node.module or "").split(".") if node.module else [])])
            for alias in node.names:
                self.imports[alias.asname or alias.name] = f"{base}.{alias.name}".strip(".")

    @cached_property
    def made_by(self) -> dict[str, set[str]]:
        """Names and attributes assigned in the module to the constructors called for them."""
        found: dict[str, set[str]] = {}
        for node in ast.walk(self.tree):
            for target in assigned_to(node):
                given = node.value  # type: ignore[attr-defined]
                for name, value in _pairs(target, given):
                    made = {
                        inner.func.attr if isinstance(inner.func, ast.Attribute) else inner.func.id
                        for inner in ast.walk(value)
                        if isinstance(inner, ast.Call)
                        and isinstance(inner.func, ast.Attribute | ast.Name)
                    }
                    found.setdefault(name, set()).update(made)
        return found

    @cached_property
    def rebound_globals(self) -> frozenset[str]:
        """Names that functions of the module assign through ``global``."""
        found = (n.names for n in ast.walk(self.tree) if isinstance(n, ast.Global))
        return frozenset(name for names in found for name in names)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def line_text(self, line: int) -> str:
        return self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""

    def enclosing(self, line: int) -> FunctionInfo:
        """Return the innermost function around a line, else ``<module>``."""
        best = self.functions[-1]
        for info in self.functions[:-1]:
            end = getattr(info.node, "end_lineno", None) or info.line
            start = min([info.line, *(d.lineno for d in getattr(info.node, "decorator_list", []))])
            if start <= line <= end and (best.is_module or info.line >= best.line):
                best = info
        return best
