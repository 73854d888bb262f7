"""SMP003 Give ranks equal parts of what is sorted into bins.

## What it does
Replaces `rows[bin == rank]` by parts of equal size in the order of the bins; of a list filtered by
`key(x) % world == rank`, and of blocks such as `order.chunk(world)[rank]`, takes every `world`-th
element.

## Why it hurts
Bins of equal width hold unequal numbers, blocks of what is sorted unequal work: one rank gets most
of it and the others wait.

## When it is wrong
What is in one bin must be on one rank, for example because the ranks exchange borders by bin.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.ranks import is_ranked
from eroica.fix.tree import Source, code, dotted, find, names

CODE = "SMP003"
ANSWERS = frozenset(
    {
        "load_imbalance",
        "straggler_compute",
        "straggler_data_loading",
        "sampler_misconfiguration",
        "uneven_inputs",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="load_imbalance",
        before="""\
def own(points, rank, world):
    bins = (points[:, 0] * world).long().clamp(max=world - 1)
    return points[bins == rank]  # <-- here
""",
        after="""\
def own(points, rank, world):
    bins = points[:, 0] * world
    return points[bins.argsort().tensor_split(world)[rank]]
""",
    ),
    Example(
        category="load_imbalance",
        before="""\
import torch.distributed as dist

class Split:
    def mine(self, docs):
        rank, size = dist.get_rank(), dist.get_world_size()
        return [d for d in docs if d.site % size == rank]  # <-- here
""",
        after="""\
import torch.distributed as dist

class Split:
    def mine(self, docs):
        rank, size = dist.get_rank(), dist.get_world_size()
        return docs[rank::size]
""",
    ),
    Example(
        category="load_imbalance",
        before="""\
def mine(lengths, rank, world):
    order = lengths.argsort()
    return order.chunk(world)[rank]  # <-- here
""",
        after="""\
def mine(lengths, rank, world):
    order = lengths.argsort()
    return order[rank::world]
""",
    ),
    Example(
        category="load_imbalance",
        before="""\
def part(samples, rank, world):
    samples = sorted(samples, key=len)
    per = (len(samples) + world - 1) // world
    start = rank * per
    return samples[start:start + per]  # <-- here
""",
        after="""\
def part(samples, rank, world):
    samples = sorted(samples, key=len)
    per = (len(samples) + world - 1) // world
    start = rank * per
    return samples[rank::world]
""",
    ),
)
KEEPS = (
    Example(
        category="load_imbalance",
        before="""\
def own(points, rank, world):
    return points[rank::world]  # <-- here
""",
    ),
    Example(
        category="load_imbalance",
        before="""\
def mine(files, rank, world):
    return [f for i, f in enumerate(files) if i % world == rank]  # <-- here
""",
    ),
    Example(
        category="load_imbalance",
        before="""\
def pick(rows, label):
    return rows[labels == label]  # <-- here
""",
    ),
)
_WORLD = re.compile(r"(?:.*\.)?(?:world|world_?size|size|num_?replicas|n_?ranks|ws)")


def fix(context: Context) -> FixerResult | None:
    """Split by count; None where no rank's part is picked by a bin or a key."""
    return _masks(context) or _filters(context) or _blocks(context) or _spans(context)


def _key_of_rank(test: cst.CSTNode) -> tuple[cst.BaseExpression, str] | None:
    """Key and rank of ``key == rank``."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    target = test.comparisons[0]
    if not isinstance(target.operator, cst.Equal):
        return None
    for key, rank in ((test.left, target.comparator), (target.comparator, test.left)):
        if is_ranked(rank) and not is_ranked(key):
            return key, code(rank)
    return None


def _world(source: Source, node: cst.CSTNode) -> str | None:
    """The name of the number of ranks that is at hand where a node is."""
    function = source.function_of(node)
    if function is None:
        return None
    given = [p.name.value for p in function.params.params]
    made = [target for target, _, _ in source.assignments(function.body)]
    known = [name for name in (*given, *made) if _WORLD.fullmatch(name)]
    used = [dotted(n) for n in find(function.body, cst.Attribute) if _WORLD.fullmatch(dotted(n))]
    calls = [code(c) for c in find(function.body, cst.Call) if code(c).endswith("get_world_size()")]
    return next(iter([*known, *used, *calls]), None)


def _masks(context: Context) -> FixerResult | None:
    for source, node in context.every(cst.Subscript, 0.4):
        if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
            continue
        found = _key_of_rank(node.slice[0].slice.value)
        world = _world(source, node)
        if found is None or world is None or not isinstance(found[0], cst.Name):
            continue
        key, rank = found
        edits = Edits(source)
        edits.replace_text(
            node.slice[0].slice.value, f"{code(key)}.argsort().tensor_split({world})[{rank}]"
        )
        if not _unbinned(source, node, code(key), edits):
            continue
        return _result(context, source, node, edits)
    return None


def _unbinned(source: Source, node: cst.CSTNode, key: str, edits: Edits) -> bool:
    """Sort by what the bins were made from: ``x.long().clamp(...)`` -> ``x``."""
    function = source.function_of(node)
    assert function is not None
    made = [value for target, value, _ in source.assignments(function.body) if target == key]
    uses = sum(n.value == key for n in find(function.body, cst.Name))
    if len(made) != 1 or uses != 2:
        return False
    value = made[0]
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if value.func.attr.value not in (
            "long",
            "int",
            "clamp",
            "floor",
            "to",
            "type",
            "remainder",
        ):
            break
        value = value.func.value
    if value is not made[0]:
        text = code(value)
        whole = text[1:-1] if value.lpar else text
        edits.replace_text(made[0], whole)
    return True


def _filters(context: Context) -> FixerResult | None:
    for source, node in context.every(cst.ListComp, 0.4):
        loop = node.for_in
        if len(loop.ifs) != 1 or code(node.elt) != code(loop.target) or loop.inner_for_in:
            continue
        found = _key_of_rank(loop.ifs[0].test)
        if found is None or not isinstance(found[0], cst.BinaryOperation):
            continue
        key, rank = found
        if not isinstance(key.operator, cst.Modulo) or not dotted(loop.iter):  # type: ignore[attr-defined]
            continue
        if not names(loop.target) & names(key):
            continue
        edits = Edits(source)
        world = code(key.right)  # type: ignore[attr-defined]
        edits.replace_text(node, f"{code(loop.iter)}[{rank}::{world}]")
        return _result(context, source, node, edits)
    return None


def _blocks(context: Context) -> FixerResult | None:
    """``sorted_things.chunk(world)[rank]``: a block of what is in some order."""
    for source, node in context.every(cst.Subscript, 0.4):
        inner = node.value
        if not isinstance(inner, cst.Call) or len(node.slice) != 1:
            continue
        at, call = node.slice[0].slice, source.full_name(inner.func)
        if not isinstance(at, cst.Index) or not is_ranked(at.value):
            continue
        if any(isinstance(a, cst.Subscript) for a in source.ancestors(node)):
            continue  # an index into something else: equal parts of an order, on purpose
        given = [code(a.value) for a in inner.args]
        if call.rpartition(".")[2] not in ("chunk", "tensor_split", "array_split", "split"):
            continue
        if isinstance(inner.func, cst.Attribute) and len(given) == 1:
            items, world = code(inner.func.value), given[0]
        elif len(given) == 2:
            items, world = given
        else:
            continue
        if not _WORLD.fullmatch(world) and not world.endswith("get_world_size()"):
            continue
        edits = Edits(source)
        edits.replace_text(node, f"{items}[{code(at.value)}::{world}]")
        return _result(context, source, node, edits)
    return None


def _spans(context: Context) -> FixerResult | None:
    """``start = rank * size`` and ``items[start:start + size]`` of items that are sorted."""
    for source, node in context.every(cst.Subscript, 0.6):
        match = re.fullmatch(r".+\[(\w+) ?: ?(?:\1 ?\+ ?([\w.]+)|\w+)\]", code(node), re.S)
        function = source.function_of(node)
        world = _world(source, node)
        if match is None or function is None or world is None:
            continue
        made = {t: v for t, v, _ in source.assignments(function.body)}
        start = made.get(match[1])
        if not isinstance(start, cst.BinaryOperation) or not isinstance(
            start.operator, cst.Multiply
        ):
            continue
        rank = next((s for s in (start.left, start.right) if is_ranked(s)), None)
        if rank is None or "sort" not in code(function.body) or match[2] is None:
            continue
        edits = Edits(source)
        edits.replace_text(node, f"{code(node.value)}[{code(rank)}::{world}]")
        return _result(context, source, node, edits)
    return None


def _result(
    context: Context, source: Source, node: cst.CSTNode, edits: Edits
) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(node)} picks this rank's part by a bin, and bins hold "
        "unequal numbers.",
        behaviour="Each rank gets as many as the others; which ones may differ from before.",
        score=0.9 * max(context.closeness(source, node), 0.6),
    )
