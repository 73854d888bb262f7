"""Walking a syntax tree that is walked thousands of times: its nodes are listed once.

libcst finds a node's children anew at each look, by a visit of all its fields; sixty fixers look
often. A tree that is kept here is walked from lists instead. Other nodes, as edits make them, are
walked as libcst does.
"""

from bisect import bisect_left
from collections.abc import Iterator
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
        self._by_type: dict[type, list[int]] = {}
        self._add(root)
        for number, node in enumerate(self.nodes):
            self._by_type.setdefault(type(node), []).append(number)
            _KNOWN[id(node)] = (self, number)

    def _add(self, node: cst.CSTNode) -> None:
        number = len(self.nodes)
        self.nodes.append(node)
        self.ends.append(0)
        children = list(node.children)
        self.kids.append(children)
        for child in children:
            self._add(child)
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


_KNOWN: dict[int, tuple[Listing, int]] = {}
"""By identity: a node that is listed lives as long as its listing, so that no other has its id."""


def _known(node: cst.CSTNode) -> tuple[Listing, int] | None:
    found = _KNOWN.get(id(node))
    return found if found is not None and found[0].nodes[found[1]] is node else None


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
        cst.Subscript,
        cst.Try,
        cst.While,
        cst.With,
        cst.WithItem,
    ]
)
"""Classes without subclasses: an index by class finds all of them."""
