"""COL002 Call the collective before the early return of some ranks.

## What it does
Moves a guard such as `if rank != 0: return` behind the last collective that follows it in the
same block.

## Why it hurts
The ranks that return early never make the call; those that stay wait for them for ever.

## When it is wrong
The statements between the guard and the collective must not run on the other ranks, for example
because only one rank has the data.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import collectives, ends_early, ranked
from eroica.fix.tree import Source, code, find

CODE = "COL002"
ANSWERS = frozenset(
    {
        "rank_conditional_collective",
        "checkpoint_collective_on_one_rank",
        "divergent_control_flow",
        "collective_count_mismatch",
    }
)
LABEL = "review"
FIXES = (
    Example(
        before="""\
import torch.distributed as dist

def gather(rank, x):
    if rank != 0:
        return None
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x)  # <-- here
    return parts
""",
        after="""\
import torch.distributed as dist

def gather(rank, x):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x)
    if rank != 0:
        return None
    return parts
""",
    ),
)
KEEPS = (
    Example(
        before="""\
import torch.distributed as dist

def gather(rank, x):
    dist.all_reduce(x)  # <-- here
    if rank != 0:
        return None
    return x
"""
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Move the guard; None where none stands before a collective."""
    for source in context.files:
        for node in find(source.module, cst.If):
            last = _last_collective(source, node)
            if last is None or not context.is_named(source, node):
                continue
            edits = Edits(source)
            edits.remove(node)
            edits.replace(last, [last, node.with_changes(leading_lines=())])
            return context.result(
                edits,
                why=f"{source.path}:{source.line(node)} `{code(node.test)}` sends ranks back "
                "before "
                f"the collective on line {source.line(last)}.",
                behaviour="All ranks run the lines up to the collective, then the guard applies.",
                score=0.9 if context.is_near(source, node, 4) else 0.7,
            )
    return None


def _last_collective(source: Source, node: cst.If) -> cst.BaseStatement | None:
    """The last statement with a collective after a guard on the rank, in the same block."""
    if node.orelse is not None or ends_early(node.body) is None or not ranked(source, node.test):
        return None
    after = [s for s in source.following(node) if collectives(source, s)]
    return after[-1] if after else None
