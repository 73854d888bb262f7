"""What a file's text says of collectives, for the gate that reads many files: kept by text."""

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from eroica.fix.facts import COLLECTIVES, HIDDEN

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_USUAL = frozenset({"dist", "torch.distributed", "distributed", "c10d"})


@dataclass(frozen=True)
class Names:
    """By what names a file calls torch.distributed."""

    modules: frozenset[str]
    """Of the module itself: ``dist``, or what it was imported as."""
    functions: Mapping[str, str]
    """The plain names imported from it, and what each is there."""


@dataclass(frozen=True)
class Calls:
    """What the functions of a file call; ``*`` stands for a collective."""

    by_function: Mapping[str, frozenset[str]]
    everywhere: frozenset[str]


_NO_CALLS = Calls({}, frozenset())


UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python raises for text that it cannot read: no code, a NUL, nested too deeply."""


def parse(text: str) -> ast.Module:
    """As ``ast.parse``, without the warnings that a foreign file may deserve."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text.removeprefix("\ufeff"))


def parsed(text: str) -> ast.Module | None:
    """Return the tree; None where the text does not parse."""
    try:
        return parse(text)
    except UNREADABLE:
        return None


@lru_cache(maxsize=512)  # names only, no tree: a few hundred bytes a file
def calls_of(text: str) -> Calls:
    """Return what is called in a file; nothing where it does not parse."""
    tree = parsed(text)
    if tree is None:
        return _NO_CALLS
    names = distributed_names(tree)
    made: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            own = made.setdefault(node.name, set())
            own |= {_called(n, names) for n in ast.walk(node) if isinstance(n, ast.Call)}
    calls = (last_name(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call))
    return Calls({name: frozenset(own) for name, own in made.items()}, frozenset(calls))


def _called(call: ast.Call, names: Names) -> str:
    if collective(call, names):
        return "*"
    return "" if _root(call.func) in ("torch", "np", "os") else last_name(call.func)


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes, calls and subscripts begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def leading_functions(texts: Mapping[str, str]) -> set[str]:
    """Return the names of project functions that call a collective, directly or through others."""
    calls: dict[str, set[str]] = {}
    for text in texts.values():
        for name, made in calls_of(text).by_function.items():
            calls.setdefault(name, set()).update(made)
    leading = {name for name, made in calls.items() if "*" in made}
    while True:
        more = {n for n, made in calls.items() if n not in leading and made & leading}
        if not more:
            return leading - {"__init__", "forward", "main"}
        leading |= more


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def distributed_names(tree: ast.Module) -> Names:
    """Return the names under which a module knows torch.distributed and what is in it."""
    modules, functions = set(_USUAL), {}
    for name, full in _imported(tree):
        if full == "torch.distributed":
            modules.add(name)
        elif full == "torch":
            modules.add(f"{name}.distributed")
        elif full.startswith("torch.distributed."):
            functions[name] = full.rpartition(".")[2]
    return Names(frozenset(modules), functions)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def collective(call: ast.Call, names: Names) -> str:
    """Return the operation of a collective call, or an empty string."""
    last = last_name(call.func)
    if isinstance(call.func, ast.Name):
        last = names.functions.get(last, last)
    if last in HIDDEN:
        return last
    if last not in COLLECTIVES:
        return ""
    if isinstance(call.func, ast.Attribute):
        return last if ast.unparse(call.func.value) in names.modules else ""
    return last if last_name(call.func) in names.functions else ""
