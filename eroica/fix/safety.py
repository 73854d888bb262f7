"""The distributed-safety gate: may a patch leave a collective that only some ranks reach?

Each collective call, and each call of a project function that leads to one, is a site. A site is
guarded where a condition on the rank or on local data decides whether it runs: an enclosing if
or while, a return, continue, break or raise taken earlier in the block, an except clause. A
patch is refused if a file has more guarded sites of an operation after it than before. Removing
a collective altogether is allowed: taking away a one-sided one is often the cure.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eroica.fix.distributed import (
    FunctionNode,
    calls_of,
    collective,
    distributed_names,
    last_name,
    leading_functions,
    parsed,
)
from eroica.fix.facts import LOCAL_CALLS
from eroica.fix.ranks import RANK, RANK_CALLS, RANK_VARIABLES

_EXITS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True)
class Site:
    path: str
    function: str
    op: str
    line: int
    guard: str
    """``rank``, ``data``, ``except``, or empty."""
    test: str


def one_sided(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return why the files after a patch are refused, or an empty string."""
    old, new = _both(before, after)
    had = Counter((site.path, site.op) for site in old if site.guard)
    for key, count in Counter((site.path, site.op) for site in new if site.guard).items():
        if count > had[key]:
            site = _the_new_one(old, new, key)
            kind = {"rank": "the rank", "data": "local data", "except": "an error"}[site.guard]
            return (
                f"{site.path}:{site.line} {site.op} would depend on {kind} ({site.test}): "
                "the ranks that skip it leave the others waiting"
            )
    return ""


def _the_new_one(old: list[Site], new: list[Site], key: tuple[str, str]) -> Site:
    known = {(s.function, s.test) for s in old if s.guard and (s.path, s.op) == key}
    guarded = [s for s in new if s.guard and (s.path, s.op) == key]
    return next((s for s in guarded if (s.function, s.test) not in known), guarded[-1])


def _both(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[list[Site], list[Site]]:
    """The sites before and after, of the files in which they may differ."""
    led, leads = leading_functions(before), leading_functions(after)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    changed |= {path for path in after if calls_of(after[path]).everywhere & (led ^ leads)}
    return (
        list(sites({path: before[path] for path in changed if path in before}, led)),
        list(sites({path: after[path] for path in changed if path in after}, leads)),
    )


def sites(texts: Mapping[str, str], leading: set[str]) -> Iterator[Site]:
    """Yield the collective sites of a set of files; files that do not parse have none."""
    for path, text in texts.items():
        tree = parsed(text) if path.endswith(".py") else None
        if tree is not None:
            yield from _Walker(path, tree, leading).run()


class _Walker:
    def __init__(self, path: str, tree: ast.Module, leading: set[str]) -> None:
        self.path, self.tree, self.leading = path, tree, leading
        self.dist = distributed_names(tree)
        self.ranked = self._ranked_names()
        self.found: list[Site] = []
        self.local: set[str] = set()
        self.agreed: dict[str, int] = {}

    def run(self) -> list[Site]:
        self._function(self.tree, "<module>")
        for node in ast.walk(self.tree):
            if isinstance(node, FunctionNode):
                self._function(node, node.name)
        return self.found

    def _ranked_names(self) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and self._names_rank(node.value, found):
                value = node.value
                if isinstance(value, ast.Compare | ast.BoolOp | ast.IfExp | ast.UnaryOp) or (
                    isinstance(value, ast.Call) and RANK_CALLS.fullmatch(ast.unparse(value.func))
                ):
                    found |= {ast.unparse(t) for t in node.targets}
        return found

    def _names_rank(self, test: ast.expr, known: set[str]) -> bool:
        for node in ast.walk(test):
            if isinstance(node, ast.Name | ast.Attribute):
                if RANK.fullmatch(last_name(node)) or ast.unparse(node) in known:
                    return True
            elif isinstance(node, ast.Call) and RANK_CALLS.fullmatch(ast.unparse(node.func)):
                return True
            elif isinstance(node, ast.Constant) and RANK_VARIABLES.fullmatch(str(node.value)):
                return True  # os.environ["RANK"]
        return False

    def _is_local_call(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and bool(
            LOCAL_CALLS.fullmatch(last_name(node.func) or "-")
        )

    def _kind(self, test: ast.expr) -> str:
        """How a condition may differ over ranks: ``rank``, ``data`` or not at all."""
        if self._names_rank(test, self.ranked):
            return "rank"
        used = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
        if any(line <= test.lineno for line in self._uses(test, self.agreed)):
            return ""
        if used & self.local or any(self._is_local_call(n) for n in ast.walk(test)):
            return "data"
        is_none_test = any(isinstance(n, ast.Is | ast.IsNot) for n in ast.walk(test))
        return "data" if is_none_test and re.search(r"\.grad\b", ast.unparse(test)) else ""

    def _function(self, node: ast.Module | FunctionNode, name: str) -> None:
        self.name = name
        self.agreed, self.local = self._agreed(node), set()
        for inner in _own(node):
            if isinstance(inner, ast.Assign) and any(
                self._is_local_call(n) for n in ast.walk(inner.value)
            ):
                for target in inner.targets:
                    self.local |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        self._block(node.body, ("", ""))

    def _agreed(self, node: ast.Module | FunctionNode) -> dict[str, int]:
        """Expressions that a collective has made equal on all ranks, and from which line on."""
        found: dict[str, int] = {}
        for inner in _own(node):
            if isinstance(inner, ast.Call) and collective(inner, self.dist) and inner.args:
                first = inner.args[0]
                if isinstance(first, ast.Name | ast.Attribute):
                    found.setdefault(ast.unparse(first), inner.lineno)
        for inner in sorted(
            (n for n in _own(node) if isinstance(n, ast.Assign)), key=lambda n: n.lineno
        ):
            if any(line <= inner.lineno for line in self._uses(inner.value, found)):
                for target in inner.targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            found.setdefault(name.id, inner.lineno)
        return found

    def _uses(self, node: ast.expr, agreed: dict[str, int]) -> list[int]:
        texts = {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)}
        return [line for text, line in agreed.items() if text in texts]

    def _block(self, body: list[ast.stmt], guard: tuple[str, str]) -> None:
        for statement in body:
            self._statement(statement, guard)
            if isinstance(statement, ast.Try) and not guard[0]:
                ends = [h.body[-1] for h in statement.handlers if h.body]
                if any(isinstance(end, ast.Return | ast.Continue | ast.Break) for end in ends):
                    guard = ("except", "an except clause that leaves")
            if isinstance(statement, ast.If) and not guard[0]:
                kind = self._kind(statement.test)
                branches = (statement.body, statement.orelse)
                if kind and any(_leaves(branch) for branch in branches):
                    guard = (kind, ast.unparse(statement.test))

    def _statement(self, node: ast.stmt, guard: tuple[str, str]) -> None:
        if isinstance(node, FunctionNode):
            return
        if isinstance(node, ast.ClassDef):
            self._block(node.body, guard)
            return
        if isinstance(node, ast.If | ast.While):
            self._expression(node.test, guard)
            inner = self._under(node.test, guard)
            self._block(node.body, inner)
            self._block(node.orelse, inner)
            return
        if isinstance(node, ast.Match):
            self._expression(node.subject, guard)
            for case in node.cases:
                self._block(case.body, self._under(case.guard or node.subject, guard))
            return
        blocks = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ExceptHandler):
                self._block(child.body, guard if guard[0] else ("except", "an except clause"))
            elif not isinstance(child, ast.stmt):
                self._expression(child, guard)
        for block in blocks:
            if block:
                self._block(block, guard)

    def _under(self, test: ast.expr, guard: tuple[str, str]) -> tuple[str, str]:
        """The guard of what runs only where a test says so."""
        kind = "" if guard[0] else self._kind(test)
        return (kind, ast.unparse(test)) if kind else guard

    def _is_foreign(self, func: ast.expr) -> bool:
        """``torch.save`` is not the project's ``save``."""
        while isinstance(func, ast.Attribute):
            func = func.value
            if isinstance(func, ast.Name) and func.id in ("torch", "np", "os", "json", "self"):
                return func.id != "self"
        return False

    def _expression(self, node: ast.AST, guard: tuple[str, str]) -> None:
        """Note the calls in an expression; what ``x if test else y`` or ``test and x`` guards."""
        if isinstance(node, ast.IfExp):
            self._expression(node.test, guard)
            for part in (node.body, node.orelse):
                self._expression(part, self._under(node.test, guard))
            return
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self._expression(part, guard)
                guard = self._under(part, guard)
            return
        if isinstance(node, ast.Call):
            self._call(node, guard)
        for child in ast.iter_child_nodes(node):
            self._expression(child, guard)

    def _call(self, call: ast.Call, guard: tuple[str, str]) -> None:
        op, last = collective(call, self.dist), last_name(call.func)
        if not op and last in self.leading and not self._is_foreign(call.func):
            op = f"{last}()"
        if op:
            self.found.append(Site(self.path, self.name, op, call.lineno, *guard))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what lies in a function, nested functions left out."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FunctionNode):
            yield child
            yield from _own(child)


def _leaves(block: list[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], _EXITS)
