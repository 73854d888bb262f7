"""Walking a syntax tree that is walked thousands of times: its nodes are listed once.

libcst finds a node's children anew at each look, by a visit of all its fields that makes the node
anew; sixty fixers look often, in sixty files. A tree that is kept here is walked from lists
instead, made from the fields that hold code: blanks, comments and punctuation are not in them.
Other nodes, as edits make them, are walked as libcst does.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from heapq import merge
from itertools import islice
from typing import TypeVar

import libcst as cst

Node = TypeVar("Node", bound=cst.CSTNode)


class Listing:
    """All nodes of one tree in source order; forgotten with ``close``."""

    def __init__(self, root: cst.CSTNode) -> None:
        self.nodes: list[cst.CSTNode] = []
        self.ends: list[int] = []
        """Of each node, the number after its last descendant's."""
        self.kids: list[list[cst.CSTNode]] = []
        self.parents: list[int] = []
        """Of each node, the number of the one around it; -1 for the root."""
        self.texts: dict[int, str] = {}
        """Of nodes by number, once they were asked for."""
        self._by_type: dict[type, list[int]] = {}
        self._add(root, -1)
        for number, node in enumerate(self.nodes):
            self._by_type.setdefault(type(node), []).append(number)
            _KNOWN[id(node)] = (self, number)

    def _add(self, node: cst.CSTNode, above: int) -> None:
        number = len(self.nodes)
        self.nodes.append(node)
        self.ends.append(0)
        self.parents.append(above)
        children = _code_below(node)
        self.kids.append(children)
        for child in children:
            self._add(child, number)
        self.ends[number] = len(self.nodes)

    def below(self, number: int) -> Iterator[cst.CSTNode]:
        return islice(self.nodes, number, self.ends[number])

    def places(self, number: int, kind: type) -> Iterator[int]:
        """The numbers of nodes of exactly one class below a node."""
        places = self._by_type.get(kind, [])
        return islice(places, bisect_left(places, number), bisect_left(places, self.ends[number]))

    def of_type(self, number: int, kind: type[Node]) -> Iterator[Node]:
        """Nodes of exactly one class, without a look at the others."""
        for place in self.places(number, kind):
            yield self.nodes[place]  # type: ignore[misc]

    def close(self) -> None:
        for node in self.nodes:
            _KNOWN.pop(id(node), None)


# Where the fields of a class do not stand in the order of the source: libcst's codegen, 1.8.
_ORDER: dict[type[cst.CSTNode], tuple[str, ...]] = {
    cst.Arg: ("keyword", "value"),
    cst.ClassDef: ("decorators", "name", "type_parameters", "bases", "keywords", "body"),
    cst.ExceptHandler: ("type", "name", "body"),
    cst.ExceptStarHandler: ("type", "name", "body"),
    cst.FunctionDef: ("decorators", "name", "type_parameters", "params", "returns", "body"),
    cst.IfExp: ("body", "test", "orelse"),
    cst.ImportFrom: ("module", "names"),
    cst.MatchCase: ("pattern", "guard", "body"),
    cst.Parameters: ("posonly_params", "params", "star_arg", "kwonly_params", "star_kwarg"),
    cst.TypeAlias: ("name", "type_parameters", "value"),
}
_NO_CODE = re.compile(
    r"whitespace|comma|colon|lines|separator"
    r"|^(?:[lr](?:par|bracket|brace)|dot|equal|semicolon|header|footer|newline|indent|star|operator"
    r"|first_line|last_line|comment|posonly_ind|asynchronous|relative)$"
)
"""Fields that hold blanks, comments, punctuation."""


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """The fields of a class that hold code, in the order of the source."""
    known = _ORDER.get(kind)
    return known or tuple(f.name for f in fields(kind) if not _NO_CODE.search(f.name))


def _code_below(node: cst.CSTNode) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = []
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [item for item in value if isinstance(item, cst.CSTNode)]
    return found


_KNOWN: dict[int, tuple[Listing, int]] = {}
"""By identity: a node that is listed lives as long as its listing, so that no other has its id."""


def _known(node: cst.CSTNode) -> tuple[Listing, int] | None:
    found = _KNOWN.get(id(node))
    return found if found is not None and found[0].nodes[found[1]] is node else None


def remembered(node: cst.CSTNode, make: Callable[[cst.CSTNode], str]) -> str:
    """Return the text that ``make`` gives of a node, made once where the tree is listed."""
    found = _known(node)
    if found is None:
        return make(node)
    listing, number = found
    if number not in listing.texts:
        listing.texts[number] = make(node)
    return listing.texts[number]


def parent(node: cst.CSTNode) -> cst.CSTNode | None:
    """Return what a listed node lies in; None for the module, and for what is not listed."""
    found = _known(node)
    above = found[0].parents[found[1]] if found is not None else -1
    return found[0].nodes[above] if found is not None and above >= 0 else None


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return a node's children, in source order."""
    found = _known(node)
    return list(node.children) if found is None else found[0].kids[found[1]]


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and everything below it, in source order."""
    found = _known(node)
    if found is not None:
        yield from found[0].below(found[1])
        return
    yield node
    for child in node.children:
        yield from walk(child)


def find(node: cst.CSTNode, kind: type[Node]) -> Iterator[Node]:
    """Yield the nodes of one kind at or below a node, in source order."""
    found = _known(node)
    if found is not None and kind in _CONCRETE:
        yield from found[0].of_type(found[1], kind)
        return
    for item in walk(node):
        if isinstance(item, kind):
            yield item


def find_each(node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Yield the nodes of several classes at or below a node, in source order."""
    found = _known(node)
    if found is None:
        yield from (item for item in walk(node) if isinstance(item, kinds))
        return
    listing, number = found
    for place in merge(*(listing.places(number, kind) for kind in kinds)):
        yield listing.nodes[place]


_CONCRETE = frozenset(
    [
        cst.Assign,
        cst.AssignTarget,
        cst.Attribute,
        cst.AugAssign,
        cst.BinaryOperation,
        cst.Call,
        cst.ClassDef,
        cst.Comparison,
        cst.Continue,
        cst.Decorator,
        cst.ExceptHandler,
        cst.For,
        cst.FunctionDef,
        cst.If,
        cst.IfExp,
        cst.ListComp,
        cst.Name,
        cst.Raise,
        cst.Return,
        cst.SimpleStatementLine,
        cst.SimpleStatementSuite,
        cst.Subscript,
        cst.Try,
        cst.While,
        cst.With,
        cst.WithItem,
    ]
)
"""Classes without subclasses: an index by class finds all of them."""
