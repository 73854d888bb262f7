"""A listed tree is walked as libcst walks it, and is forgotten with its source."""

import gc
from pathlib import Path

import libcst as cst
import pytest

from eroica.fix import nodes
from eroica.fix.diff import file_edit
from eroica.fix.edits import Edits
from eroica.fix.gates import check
from eroica.fix.nodes import children, find, parent, walk
from eroica.fix.tree import Source, body_of, code

FILES = sorted((Path(__file__).parents[1] / "eroica/fix").glob("*.py"))[:6]
NO_CODE = (
    cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine, cst.Comment,
    cst.Newline, cst.LeftParen, cst.RightParen, cst.LeftSquareBracket, cst.RightSquareBracket,
    cst.LeftCurlyBrace, cst.RightCurlyBrace, cst.Comma, cst.Dot, cst.Colon, cst.Semicolon,
    cst.AssignEqual, cst.BaseUnaryOp, cst.BaseBinaryOp, cst.BaseBooleanOp, cst.BaseCompOp,
    cst.BaseAugOp, cst.Asynchronous, cst.BitOr, cst.ParamSlash,
)  # fmt: skip
EVERY_ORDER = """\
class A(B, metaclass=C):
    @d
    async def f(a, /, b: int = 1, *c, e=2, **g) -> h:
        try:
            x = i if j else k(l, m=n, *o)
        except p as q:
            with r as s, t: u[v:w, y] = (z := 1)
        match aa:
            case [bb, *cc] if dd: ee()
            case {"ff": gg, **hh}: pass
        return [ii for jj in kk if ll for mm in nn], f"{oo!r:>{pp}}", lambda qq, rr=1: ss
from . import tt as uu
from vv import *
"""


def plainly(node):
    """The node and all code below it, as libcst finds it."""
    yield node
    for child in node.children:
        if not isinstance(child, NO_CODE):
            yield from plainly(child)


TEXTS = [pytest.param(path.read_text(), id=path.name) for path in FILES]


@pytest.mark.parametrize("text", [*TEXTS, pytest.param(EVERY_ORDER, id="orders")])
def test_a_listed_tree_is_walked_as_libcst_walks_it(text):
    source = Source("a.py", text)
    expected = list(plainly(source.module))
    assert [id(n) for n in walk(source.module)] == [id(n) for n in expected]
    for function in find(source.module, cst.FunctionDef):
        below = list(plainly(function))
        assert [id(n) for n in walk(function)] == [id(n) for n in below]
        for kind in (cst.Name, cst.Call, cst.If, cst.BaseExpression):
            wanted = [id(n) for n in below if isinstance(n, kind)]
            assert [id(n) for n in find(function, kind)] == wanted
        for node in below:
            wanted = [child for child in node.children if not isinstance(child, NO_CODE)]
            assert [id(n) for n in children(node)] == [id(n) for n in wanted]
            assert all(parent(child) is node for child in wanted)
    assert parent(source.module) is None


def test_classes_found_by_index_have_no_subclass_that_would_be_missed():
    assert [kind for kind in nodes._CONCRETE if kind.__subclasses__()] == []


def test_nodes_that_an_edit_made_are_walked_as_well():
    made = cst.parse_statement("if x:\n    f(x)\n")
    assert [n.value for n in find(made, cst.Name)] == ["x", "f", "x"]
    assert [n for n in walk(made) if not isinstance(n, NO_CODE)] == list(plainly(made))


def test_a_tree_is_forgotten_with_its_source():
    gc.collect()
    before = len(nodes._KNOWN)
    source = Source("a.py", "def f(x):\n    return x\n")
    assert len(nodes._KNOWN) > before
    del source
    gc.collect()
    assert len(nodes._KNOWN) == before


LINES = """\
import os
class Own(Exception): pass
def f(rank, x):
    if rank == 0: print(x); os.sync()  # why
    else: pass
    for y in x: go(y)
"""


def test_blocks_on_one_line_are_walked_as_blocks_and_stay_on_their_line():
    source = Source("a.py", LINES)
    edits = Edits(source)
    assert edits.text() == LINES
    (node,) = find(source.module, cst.If)
    (line,) = body_of(node)
    assert (source.line(line), code(line), source.parent(line)) == (
        4,
        "print(x); os.sync()",
        node.body,
    )
    edits.before(line, "start()")
    assert edits.text() == LINES.replace(
        " print(x); os.sync()  # why", "\n        start()\n        print(x); os.sync()  # why"
    )


def test_text_of_code_has_no_comments_in_it():
    source = Source("a.py", "# one\nf(a,  # two\n  # three\n  b)  # four\n")
    assert code(source.module.body[0]) == "f(a,\n  b)"


@pytest.mark.parametrize(
    ("text", "full", "name", "new"),
    [
        ("def run(x):\n    pass\n", "queue", "queue", "import queue\n"),
        ("def run(queue):\n    pass\n", "queue", "queue_module", "import queue as queue_module\n"),
        ("import queue as q\ndef run(queue):\n    pass\n", "queue", "q", ""),
        ("import time\ndef run(a):\n    time = a()\n", "time", "time_module",
         "import time as time_module\n"),
        ("def run(x):\n    pass\n", "torch.distributed", "dist",
         "import torch.distributed as dist\n"),
        ("import torch\ndef run(x):\n    pass\n", "torch.distributed", "torch.distributed", ""),
        ("def run(x):\n    pass\n    import time\n", "time", "time_module",
         "import time as time_module\n"),
        ("dist = 1\ndef run(x):\n    pass\n", "torch.distributed", "distributed_module",
         "import torch.distributed as distributed_module\n"),
    ],
)  # fmt: skip
def test_a_module_is_called_by_a_name_that_means_it_there(text, full, name, new):
    source = Source("a.py", text)
    edits = Edits(source)
    assert edits.module(full, body_of(source.functions_named("run")[0])[0]) == name
    assert [line for line in edits.text().splitlines(keepends=True) if line not in text] == (
        [new] if new and new not in text else []
    )


def test_a_byte_order_mark_stays_where_it_is():
    text = "\ufeffimport torch\n\ndef f(x):\n    return x\n"
    source = Source("a.py", text)
    edits = Edits(source)
    assert edits.text() == text
    edits.add_import("import gc")
    edits.replace_text(next(find(source.module, cst.Return)).value, "x + gc.isenabled()")
    made = edits.text()
    assert made == "\ufeffimport gc\nimport torch\n\ndef f(x):\n    return x + gc.isenabled()\n"
    gates = {gate.name: gate for gate in check([file_edit("a.py", text, made)])}
    assert gates["compiles"].passed and gates["names"].passed


def test_what_a_function_imports_counts_behind_that_line_only():
    source = Source("a.py", "def run(x):\n    first()\n    import time as clock\n    last()\n")
    first, _, last = body_of(source.functions_named("run")[0])
    assert (source.alias("time"), source.alias("time", first)) == (None, None)
    assert source.alias("time", last) == "clock"
    assert Edits(source).module("time", last) == "clock"


@pytest.mark.parametrize(
    "head",
    [
        "import typing\nif typing.TYPE_CHECKING:\n    import torch.distributed as dist\n",
        "class A:\n    import torch.distributed as dist\n",
    ],
)
def test_an_import_that_the_running_file_has_not_is_made_again(head):
    source = Source("a.py", f"{head}def run(x):\n    return x\n")
    edits = Edits(source)
    assert source.alias("torch.distributed") is None
    assert edits.module("torch.distributed", source.functions_named("run")[0]) == "dist"
    assert "\nimport torch.distributed as dist\n" in "\n" + edits.text()
