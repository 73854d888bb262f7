"""PAD001 Pad to the longest of a batch, not to the longest there could be.

## What it does
Where rows of different lengths are copied into a tensor of a fixed width, makes it as wide as the
longest row of the batch.

## Why it hurts
All that lies behind the last row's end is computed, sent and thrown away.

## When it is wrong
Compiled code or a fixed-size exchange needs one shape: then pad to a few widths.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, assigned, code, dotted, find, flat

CODE = "PAD001"
ANSWERS = frozenset(
    {
        "load_imbalance",
        "python_overhead",
        "straggler_compute",
        "dataloader_bottleneck",
        "straggler_data_loading",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="load_imbalance",
        before="""\
import torch

LIMIT = 512

def collate(rows):
    out = torch.zeros(len(rows), LIMIT, dtype=torch.long)  # <-- here
    for i, row in enumerate(rows):
        out[i, :len(row)] = row
    return out
""",
        after="""\
import torch

LIMIT = 512

def collate(rows):
    out = torch.zeros(len(rows), min(LIMIT, max(map(len, rows))), dtype=torch.long)
    for i, row in enumerate(rows):
        out[i, :len(row)] = row
    return out
""",
    ),
    Example(
        category="load_imbalance",
        before="""\
import torch

class Collate:
    def __call__(self, rows):
        ids = torch.full((len(rows), self.limit), self.pad)
        for i, row in enumerate(rows):
            n = len(row)
            ids[i, :n] = torch.tensor(row)  # <-- here
        return ids
""",
        after="""\
import torch

class Collate:
    def __call__(self, rows):
        ids = torch.full((len(rows), min(self.limit, max(map(len, rows)))), self.pad)
        for i, row in enumerate(rows):
            n = len(row)
            ids[i, :n] = torch.tensor(row)
        return ids
""",
    ),
)
KEEPS = (
    Example(
        category="load_imbalance",
        before="""\
import torch

def collate(rows):
    out = torch.zeros(len(rows), max(map(len, rows)))  # <-- here
    for i, row in enumerate(rows):
        out[i, :len(row)] = row
    return out
""",
    ),
    Example(
        category="load_imbalance",
        before="""\
import torch

def one_hot(rows, classes):
    out = torch.zeros(len(rows), classes)  # <-- here
    for i, row in enumerate(rows):
        out[i, row] = 1
    return out
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Narrow it; None where no fixed width is filled row by row."""
    for source, loop in context.every(cst.For, 0.4):
        match = re.fullmatch(r"enumerate\(([\w.]+)\)", flat(loop.iter))
        if (
            match is None
            or not isinstance(loop.target, cst.Tuple)
            or len(loop.target.elements) != 2
        ):
            continue
        number, row = (code(e.value) for e in loop.target.elements)
        for statement in find(loop.body, cst.SimpleStatementLine):
            rule = rf"([\w.]+)\[{number}, ?: ?(?:len\({row}\)|\w+)\] ?= .*"
            filled = re.fullmatch(rule, flat(statement), re.S)
            made = _made(source, loop, filled[1]) if filled is not None else None
            if made is None or f"len({row})" not in flat(loop.body):
                continue
            width = _width(made)
            assert width is not None
            edits = Edits(source)
            edits.replace_text(width, f"min({code(width)}, max(map(len, {match[1]})))")
            return context.result(
                edits,
                why=f"{source.path}:{source.line(made)} is {code(width)} wide, however short the "
                "rows are.",
                behaviour="Batches get the width of their longest row; what is computed for "
                "padding is left out.",
                score=0.85 * context.closeness(source, made),
            )
    return None


def _made(source: Source, loop: cst.For, name: str) -> cst.Call | None:
    """``torch.zeros(n, WIDTH)`` of the tensor that is filled, with a width that is fixed."""
    block = list(source.siblings(loop))
    for statement in reversed(block[: block.index(loop)]):
        made = assigned(statement)
        if made is None or code(made[0]) != name:
            continue
        call = made[1]
        width = _width(call)
        if not isinstance(call, cst.Call) or width is None or not _is_new(source, call):
            return None
        return call if isinstance(width, cst.Integer) or dotted(width) else None
    return None


def _is_new(source: Source, call: cst.Call) -> bool:
    return (
        re.fullmatch(r"torch\.(?:zeros|ones|empty|full)", source.full_name(call.func)) is not None
    )


def _width(call: cst.BaseExpression) -> cst.BaseExpression | None:
    """The second dimension: of ``zeros(n, width)`` or ``full((n, width), value)``."""
    if not isinstance(call, cst.Call) or not call.args:
        return None
    first = call.args[0].value
    if isinstance(first, cst.Tuple | cst.List):
        return first.elements[1].value if len(first.elements) == 2 else None
    return call.args[1].value if len(call.args) > 1 and call.args[1].keyword is None else None
