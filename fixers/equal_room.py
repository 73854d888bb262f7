"""CAC001 Give each rank the same room for its cache.

## What it does
Where the size of a cache is what is left over for a rank - `min(share, total - rank * share)` -
takes the share alone.

## Why it hurts
The last rank gets a small rest, evicts what it needs again, and all others wait while it makes it
anew.

## When it is wrong
The ranks of a host do not fit their memory with equal shares: then lower the share for all.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.ranks import is_ranked
from eroica.fix.tree import Source, code, dotted, find

CODE = "CAC001"
ANSWERS = frozenset(
    {"straggler_data_loading", "straggler_compute", "load_imbalance", "dataloader_bottleneck"}
)
LABEL = "review"
FIXES = (
    Example(
        category="straggler_data_loading",
        before="""\
class Store:
    def __init__(self, rank, world, entries):
        share = -(-entries // world)
        self.limit = max(0, min(share, entries - rank * share))
        self.rows = {}

    def get(self, key):
        if key not in self.rows:
            self.rows[key] = decode(key)  # <-- here
            while len(self.rows) > self.limit:
                self.rows.pop(next(iter(self.rows)))
        return self.rows[key]
""",
        after="""\
class Store:
    def __init__(self, rank, world, entries):
        share = -(-entries // world)
        self.limit = share
        self.rows = {}

    def get(self, key):
        if key not in self.rows:
            self.rows[key] = decode(key)
            while len(self.rows) > self.limit:
                self.rows.pop(next(iter(self.rows)))
        return self.rows[key]
""",
    ),
)
KEEPS = (
    Example(
        category="straggler_data_loading",
        before="""\
def part(items, rank, share):
    count = min(share, len(items) - rank * share)
    return items[rank * share:rank * share + count]  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Take the share; None where no cache has a limit that depends on the rank."""
    for source, node in context.every(cst.SimpleStatementLine, 0.3):
        parts = [(t, v) for t, v, _ in source.assignments(node)]
        for target, value in parts:
            share = _share(value)
            if share is None or not _is_limit(source, target):
                continue
            edits = Edits(source)
            edits.replace(value, share)
            return context.result(
                edits,
                why=f"{source.path}:{source.line(node)} `{target}` is the rest that is left for a "
                "rank; with little of it the cache is of no use there.",
                behaviour="Each rank keeps as much as the others; the host needs a little more "
                "memory.",
                score=0.85,
            )
    return None


def _depends_on_rank(node: cst.CSTNode) -> bool:
    return any(is_ranked(n) for n in find(node, cst.Name)) or any(
        is_ranked(n) for n in find(node, cst.Attribute)
    )


def _share(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The one side of a ``min`` that is the same for all ranks."""
    for call in find(value, cst.Call):
        if dotted(call.func) != "min" or len(call.args) != 2:
            continue
        alike = [arg.value for arg in call.args if not _depends_on_rank(arg)]
        if len(alike) == 1 and not isinstance(alike[0], cst.Integer):
            return alike[0]
    return None


def _is_limit(source: Source, target: str) -> bool:
    """``len(cache) > limit`` decides there whether something is thrown out."""
    rule = re.compile(rf"len\([\w.]+\) ?>=? ?{re.escape(target)}\b")
    evicts = re.compile(r"\.pop(?:item|left)?\(|\bdel ")
    return any(
        rule.search(code(node.test)) and evicts.search(code(node.body))
        for kind in (cst.While, cst.If)
        for node in find(source.module, kind)
        if isinstance(node, cst.While | cst.If)
    )
