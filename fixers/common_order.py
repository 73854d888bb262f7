"""DET002 Make collectives in one order on all ranks.

## What it does
Goes through a set, the keys of a dictionary, or a listed folder in sorted order where the body of
the loop leads to a collective, or where the ranks take parts of the list.

## Why it hurts
A set of strings has another order in each process, a dictionary the order of its making, a folder
that of its file system. The first collective of one rank then meets the second of another.

## When it is wrong
The keys cannot be compared with each other, or the order itself carries meaning.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import reaches_collective
from eroica.fix.ranks import is_ranked
from eroica.fix.tree import Source, code, dotted, find

CODE = "DET002"
ANSWERS = frozenset(
    {
        "collective_order_mismatch",
        "collective_shape_mismatch",
        "collective_dtype_mismatch",
        "collective_count_mismatch",
        "divergent_control_flow",
        "sampler_misconfiguration",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="collective_order_mismatch",
        before="""\
import torch.distributed as dist

def reduce_all(tables):
    changed = {name for name, t in tables.items() if t.touched}
    for name in changed:
        dist.all_reduce(tables[name].grad)  # <-- here
""",
        after="""\
import torch.distributed as dist

def reduce_all(tables):
    changed = {name for name, t in tables.items() if t.touched}
    for name in sorted(changed):
        dist.all_reduce(tables[name].grad)
""",
    ),
    Example(
        category="collective_shape_mismatch",
        before="""\
import torch.distributed as dist

def share(stats):
    for name, value in stats.items():
        dist.all_reduce(value)  # <-- here
""",
        after="""\
import torch.distributed as dist

def share(stats):
    for name, value in sorted(stats.items()):
        dist.all_reduce(value)
""",
    ),
    Example(
        category="sampler_misconfiguration",
        before="""\
import os

def mine(folder, rank, world):
    files = os.listdir(folder)
    return files[rank::world]  # <-- here
""",
        after="""\
import os

def mine(folder, rank, world):
    files = sorted(os.listdir(folder))
    return files[rank::world]
""",
    ),
)
KEEPS = (
    Example(
        category="collective_order_mismatch",
        before="""\
import torch.distributed as dist

def reduce_all(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)  # <-- here
""",
    ),
    Example(
        category="collective_order_mismatch",
        before="""\
def show(names):
    for name in set(names):
        print(name)  # <-- here
""",
    ),
)
_LISTS = re.compile(r"os\.listdir|os\.scandir|glob\.i?glob|(?:.*\.)?(?:iterdir|rglob)")


def fix(context: Context) -> FixerResult | None:
    """Sort what is gone through; None where the order is the same on all ranks."""
    return _loops(context) or _listed(context)


def _loops(context: Context) -> FixerResult | None:
    exact = context.cause.category in (
        "collective_order_mismatch",
        "collective_shape_mismatch",
        "collective_dtype_mismatch",
    )
    for source, loop in context.every(cst.For, 0.4):
        if not reaches_collective(source, loop.body, context.files):
            continue
        is_set = _is_set(source, loop, loop.iter)
        is_table = exact and re.fullmatch(r"[\w.]+\.(?:items|keys)\(\)", code(loop.iter))
        if not is_set and not is_table:
            continue
        edits = Edits(source)
        edits.replace_text(loop.iter, f"sorted({code(loop.iter)})")
        return _result(context, source, loop, edits, 0.9 if is_set else 0.6)
    return None


def _is_set(source: Source, node: cst.CSTNode, value: cst.CSTNode) -> bool:
    """A set by its text, or a name that is made as one."""
    if isinstance(value, cst.Set | cst.SetComp):
        return True
    if isinstance(value, cst.Call):
        name = code(value.func)
        if name in ("list", "tuple", "iter") and len(value.args) == 1:
            return _is_set(source, node, value.args[0].value)
        return name in ("set", "frozenset") or name.rpartition(".")[2] in (
            "union",
            "intersection",
            "difference",
            "symmetric_difference",
        )
    if isinstance(value, cst.BinaryOperation):
        is_join = isinstance(value.operator, cst.BitOr | cst.BitAnd | cst.Subtract)
        return is_join and ".keys()" in code(value)
    name = dotted(value)
    scope = source.module if name.startswith("self.") else source.function_of(node)
    made = [v for t, v, _ in source.assignments(scope) if t == name] if name else []
    return bool(made) and all(not dotted(v) and _is_set(source, node, v) for v in made)


def _listed(context: Context) -> FixerResult | None:
    """``os.listdir()`` of which each rank takes a part."""
    for source, call in context.every(cst.Call, 0.6):
        if not _LISTS.fullmatch(source.full_name(call.func)):
            continue
        function = source.function_of(call)
        if function is None or any(
            isinstance(a, cst.Call) and code(a.func) == "sorted" for a in source.ancestors(call)
        ):
            continue
        parts = [s for s in find(function.body, cst.Subscript) if ":" in code(s)]
        if ".sort(" in code(function.body) or not any(
            is_ranked(n) for part in parts for n in find(part, cst.Name)
        ):
            continue
        edits = Edits(source)
        edits.replace_text(call, f"sorted({code(call)})")
        return _result(context, source, call, edits, 0.6)
    return None


def _result(
    context: Context, source: Source, node: cst.CSTNode, edits: Edits, score: float
) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(node)} goes through what has another order on each rank.",
        behaviour="The same work in sorted order.",
        score=score * max(context.closeness(source, node), 0.7),
    )
