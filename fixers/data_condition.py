"""COL003 Move a barrier out of a condition on local data.

## What it does
Takes `dist.barrier()` out of an `if` whose test depends on this rank's files, data or clock
(`if not os.path.exists(cache):`), so that every rank reaches it.

## Why it hurts
The ranks for which the test comes out the other way never reach the barrier.

## When it is wrong
The condition is the same on all ranks, for example because it was broadcast before.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import is_barrier, is_local
from eroica.fix.tree import called, code, find

CODE = "COL003"
ANSWERS = frozenset(
    {
        "rank_conditional_collective",
        "divergent_control_flow",
        "collective_count_mismatch",
        "collective_order_mismatch",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="rank_conditional_collective",
        before="""\
import os
import torch.distributed as dist

def load(path, local_rank):
    if not os.path.exists(path):
        if local_rank == 0:
            build(path)
        dist.barrier()  # <-- here
    return read(path)
""",
        after="""\
import os
import torch.distributed as dist

def load(path, local_rank):
    if not os.path.exists(path):
        if local_rank == 0:
            build(path)
    dist.barrier()
    return read(path)
""",
    ),
)
KEEPS = (
    Example(
        before="""\
import torch.distributed as dist

def load(step):
    if step % 5 == 0:
        dist.barrier()  # <-- here
"""
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Move the barriers behind the outermost condition on local data around them."""
    for source in context.files:
        for call in find(source.module, cst.Call):
            statement = source.statement_of(call)
            if statement is None or called(statement) is not call or not is_barrier(source, call):
                continue
            if not context.is_named(source, call):
                continue
            outer = None
            function = source.function_of(call)
            for above in source.ancestors(call):
                if isinstance(above, cst.FunctionDef | cst.For | cst.While):
                    break
                if isinstance(above, cst.If) and is_local(source, above.test, function):
                    outer = above
            if outer is None or isinstance(source.parent(outer), cst.If):
                continue
            edits = Edits(source)
            edits.remove(statement)
            edits.after(outer, "__S__", S=[statement.with_changes(leading_lines=())])
            return context.result(
                edits,
                why=f"{source.path}:{source.line(outer)} `{code(outer.test)}` can differ between "
                "ranks, and the barrier below it needs all of them.",
                behaviour="Every rank waits at the barrier, also where it has nothing to prepare.",
                score=0.9 if context.is_near(source, statement, 1) else 0.6,
            )
    return None
