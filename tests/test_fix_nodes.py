"""A listed tree is walked as libcst walks it, and is forgotten with its source."""

import gc
from pathlib import Path

import libcst as cst
import pytest

from eroica.fix import nodes
from eroica.fix.nodes import children, find, walk
from eroica.fix.tree import Source

FILES = sorted((Path(__file__).parents[1] / "eroica/fix").glob("*.py"))[:6]


def plainly(node):
    yield node
    for child in node.children:
        yield from plainly(child)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_listed_tree_is_walked_as_libcst_walks_it(path):
    source = Source(path.name, path.read_text())
    expected = list(plainly(source.module))
    assert [id(n) for n in walk(source.module)] == [id(n) for n in expected]
    for function in find(source.module, cst.FunctionDef):
        below = list(plainly(function))
        assert [id(n) for n in walk(function)] == [id(n) for n in below]
        for kind in (cst.Name, cst.Call, cst.If, cst.BaseExpression):
            wanted = [id(n) for n in below if isinstance(n, kind)]
            assert [id(n) for n in find(function, kind)] == wanted
        assert [id(n) for n in children(function)] == [id(n) for n in function.children]


def test_classes_found_by_index_have_no_subclass_that_would_be_missed():
    assert [kind for kind in nodes._CONCRETE if kind.__subclasses__()] == []


def test_nodes_that_an_edit_made_are_walked_as_well():
    made = cst.parse_statement("if x:\n    f(x)\n")
    assert [n.value for n in find(made, cst.Name)] == ["x", "f", "x"]
    assert list(walk(made)) == list(plainly(made))


def test_a_tree_is_forgotten_with_its_source():
    gc.collect()
    before = len(nodes._KNOWN)
    source = Source("a.py", "def f(x):\n    return x\n")
    assert len(nodes._KNOWN) > before
    del source
    gc.collect()
    assert len(nodes._KNOWN) == before
