"""SMP001 Deal samples to ranks in turn instead of in blocks.

## What it does
Replaces the block `items[rank * k:(rank + 1) * k]` by `items[rank:k * world:world]`, and lets
ranks shuffle their batches by one seed, so that equal lengths meet in a step.

## Why it hurts
Where the items are sorted, by length say, one rank gets all the long ones and the others wait.

## When it is wrong
The order matters, or neighbors must stay together (windows of one recording).
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.ranks import is_ranked
from eroica.fix.tree import Source, code, dotted, find, flat, names

CODE = "SMP001"
ANSWERS = frozenset(
    {"load_imbalance", "straggler_compute", "sampler_misconfiguration", "straggler_data_loading"}
)
LABEL = "review"
FIXES = (
    Example(
        category="load_imbalance",
        before="""\
def shard(items, rank, world):
    k = len(items) // world
    return items[rank * k:(rank + 1) * k]  # <-- here
""",
        after="""\
def shard(items, rank, world):
    k = len(items) // world
    return items[rank:k * world:world]
""",
    ),
)
KEEPS = (
    Example(
        category="load_imbalance",
        before="""\
def shard(items, rank, world):
    return items[rank::world]  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Interleave the split; None where no block of a rank is cut out."""
    for source, node in context.every(cst.Subscript, 0.4):
        parts = _block(node) or _by_names(source, node)
        if parts is None:
            continue
        rank, size = parts
        world = _world(source, node, size)
        if world is None:
            continue
        edits = Edits(source)
        edits.replace_text(node, f"{code(node.value)}[{rank}:{size} * {world}:{world}]")
        others = {source.path: edits}
        for file in context.files:
            for call in _shuffles(file):
                edit = others.setdefault(file.path, Edits(file))
                edit.replace_text(call.args[0].value, "0")
        return context.result(
            *others.values(),
            why=f"{source.path}:{source.line(node)} cuts blocks out of items that are in some "
            "order, "
            "so ranks get unlike work.",
            behaviour="Each rank gets other items than before, as many of them.",
            score=0.95 * context.closeness(source, node),
        )
    return None


def _block(node: cst.Subscript) -> tuple[str, str] | None:
    """Rank and size of ``[rank * k:(rank + 1) * k]``."""
    match = re.fullmatch(
        r".*\[([\w.()]+) ?\* ?([\w.()]+) ?: ?\(\1 ?\+ ?1\) ?\* ?\2\]", code(node), re.S
    )
    if match is None:
        match = re.fullmatch(
            r".*\[([\w.()]+) ?\* ?([\w.()]+) ?: ?\1 ?\* ?\2 ?\+ ?\2\]", code(node), re.S
        )
    if match is None:
        return None
    rank = cst.parse_expression(match[1])
    return (match[1], match[2]) if is_ranked(rank) else None


def _by_names(source: Source, node: cst.Subscript) -> tuple[str, str] | None:
    """Rank and size of ``[lo:hi]`` with ``lo = rank * k`` and ``hi = lo + k``."""
    bounds = node.slice[0].slice if len(node.slice) == 1 else None
    function = source.function_of(node)
    if not isinstance(bounds, cst.Slice) or function is None or bounds.step is not None:
        return None
    low, high = (dotted(bound) for bound in (bounds.lower, bounds.upper))
    made = {target: flat(value) for target, value, _ in source.assignments(function.body)}
    match = re.fullmatch(r"([\w.()]+) ?\* ?([\w.]+)", made.get(low, ""))
    if match is None or not high:
        return None
    rank, size = match[1], match[2]
    if not is_ranked(cst.parse_expression(rank)):
        rank, size = size, rank
    ends = (f"{low} + {size}", f"({rank} + 1) * {size}")
    is_block = is_ranked(cst.parse_expression(rank)) and made.get(high, "") in ends
    return (rank, size) if is_block else None


def _world(source: Source, node: cst.Subscript, size: str) -> str | None:
    """What the size was divided by."""
    function = source.function_of(node)
    for target, value, _ in source.assignments(function.body if function else None):
        if target == size and isinstance(value, cst.BinaryOperation):
            if isinstance(value.operator, cst.FloorDivide):
                return code(value.right)
    return None


def _shuffles(source: Source) -> list[cst.Call]:
    """``random.Random(rank).shuffle(...)``: generators seeded by the rank, used once to shuffle."""
    found = []
    for call in find(source.module, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "shuffle":
            made = call.func.value
            if (
                (
                    isinstance(made, cst.Call)
                    and dotted(made.func).endswith("Random")
                    and len(made.args) == 1
                )
                and is_ranked(made.args[0].value)
                and names(made.args[0].value)
            ):
                found.append(made)
    return found
