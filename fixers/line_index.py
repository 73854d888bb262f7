"""DAT004 Jump to a line instead of reading up to it.

## What it does
Replaces a loop that reads a file from its start to line `i` by a table of line starts, built
once a file, and a `seek`.

## Why it hurts
The cost of a sample grows with its place in the file; ranks with later parts are always slower.

## When it is wrong
The file changes while training, or it is compressed.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, code, flat, names

CODE = "DAT004"
ANSWERS = frozenset(
    {
        "straggler_data_loading",
        "dataloader_bottleneck",
        "python_overhead",
        "load_imbalance",
        "straggler_compute",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="straggler_data_loading",
        before="""\
def read_row(path, i):
    with open(path) as f:
        for n, line in enumerate(f):  # <-- here
            if n == i:
                return line.split()
    raise IndexError(i)
""",
        after="""\
import functools


@functools.lru_cache(maxsize=None)
def line_starts(path):
    \"\"\"Return the offset at which each line of a file starts.\"\"\"
    starts = [0]
    with open(path, "rb") as file:
        for line in file:
            starts.append(starts[-1] + len(line))
    return starts


def read_row(path, i):
    with open(path) as f:
        f.seek(line_starts(path)[i])
        line = f.readline()
        if line:
            return line.split()
    raise IndexError(i)
""",
    ),
)
KEEPS = (
    Example(
        category="straggler_data_loading",
        before="""\
def read_all(path):
    with open(path) as f:
        for n, line in enumerate(f):  # <-- here
            if n > 5:
                return line
""",
    ),
)
HELPER = '''
@functools.lru_cache(maxsize=None)
def line_starts(path):
    """Return the offset at which each line of a file starts."""
    starts = [0]
    with open(path, "rb") as file:
        for line in file:
            starts.append(starts[-1] + len(line))
    return starts
'''


def fix(context: Context) -> FixerResult | None:
    """Seek; None where no loop near the cause reads up to one line."""
    for source, loop in context.every(cst.For, 0.5):
        parts = _scan(source, loop)
        if parts is None:
            continue
        file, line, index, path, inner = parts
        edits = Edits(source)
        edits.add_import("import functools")
        edits.replace(
            loop,
            edits.statements(
                f"{file}.seek(line_starts({path})[{index}])\n{line} = {file}.readline()\n"
                f"if {line}:\n    __BODY__",
                BODY=list(inner.body.body),
            ),
        )
        edits.add_helper(HELPER)
        return context.result(
            edits,
            why=f"{source.path}:{source.line(loop)} reads the file from its start for every "
            "sample.",
            behaviour="The line starts are read once a process and kept, 8 bytes or more a line.",
            score=0.95 * context.closeness(source, loop),
        )
    return None


def _scan(source: Source, loop: cst.For) -> tuple[str, str, str, str, cst.If] | None:
    """File, line, index and path of ``for n, line in enumerate(f): if n == i: return ...``."""
    match = re.fullmatch(r"enumerate\((\w+)\)", flat(loop.iter))
    body = list(loop.body.body)
    if match is None or not isinstance(loop.target, cst.Tuple) or len(body) != 1:
        return None
    counter, line = (code(e.value) for e in loop.target.elements)
    inner = body[0]
    if not isinstance(inner, cst.If) or inner.orelse is not None:
        return None
    test = re.fullmatch(rf"(?:{counter} == (.+)|(.+) == {counter})", flat(inner.test))
    last = inner.body.body[-1]
    leaves = isinstance(last, cst.SimpleStatementLine) and isinstance(
        last.body[-1], cst.Return | cst.Break
    )
    if test is None or not leaves or counter in names(inner.body):
        return None
    for above in source.ancestors(loop):
        if isinstance(above, cst.With):
            item = above.items[0]
            opened = item.item
            name = code(item.asname.name) if item.asname is not None else ""
            if isinstance(opened, cst.Call) and code(opened.func) == "open" and name == match[1]:
                mode = argument(opened, "mode", 1)
                if mode is None or code(mode.value).strip("\"'") in ("r", "rt", "rb"):
                    return match[1], line, test[1] or test[2], code(opened.args[0].value), inner
    return None
