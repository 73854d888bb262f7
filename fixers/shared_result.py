"""DIV004 Give a reduced value to all ranks that decide by it.

## What it does
Replaces `dist.reduce(x, dst=0)` by `dist.all_reduce(x)` where every rank goes on to use `x`.

## Why it hurts
`reduce` gives the sum to one rank only. A decision taken by it - is this the best loss, stop now -
comes out differently there, and that rank enters collectives which the others leave out.

## When it is wrong
Only the destination uses the value, and the others only return it.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.ranks import ranked
from eroica.fix.tree import Source, called, code, find, names

CODE = "DIV004"
ANSWERS = frozenset(
    {
        "divergent_control_flow",
        "checkpoint_collective_on_one_rank",
        "rank_conditional_collective",
        "collective_count_mismatch",
        "collective_order_mismatch",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="divergent_control_flow",
        before="""\
import torch.distributed as dist

def validate(model, data):
    total = model(data).detach()
    dist.reduce(total, dst=0, op=dist.ReduceOp.SUM)
    return total.item() / dist.get_world_size()

def train(model, data, best):
    loss = validate(model, data)
    if loss < best:  # <-- here
        dist.barrier()
""",
        after="""\
import torch.distributed as dist

def validate(model, data):
    total = model(data).detach()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total.item() / dist.get_world_size()

def train(model, data, best):
    loss = validate(model, data)
    if loss < best:
        dist.barrier()
""",
    ),
)
KEEPS = (
    Example(
        category="divergent_control_flow",
        before="""\
import torch.distributed as dist

def report(loss, rank):
    dist.reduce(loss, 0)  # <-- here
    if rank == 0:
        print(loss.item())
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import functools

def total(rows):
    functools.reduce(max, rows)  # <-- here
    return rows
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Reduce to all; None where only the destination goes on with the value."""
    for source, line in context.every(cst.SimpleStatementLine, 0.4):
        call = called(line)
        if call is None or not call.args:
            continue
        if source.full_name(call.func) != "torch.distributed.reduce":
            continue
        value = code(call.args[0].value)
        if not _is_used_by_all(source, line, value):
            continue
        edits = Edits(source)
        rest = [a for n, a in enumerate(call.args) if not _is_destination(n, a)]
        given = ", ".join(
            (f"{a.keyword.value}=" if a.keyword is not None else "") + code(a.value) for a in rest
        )
        dist = edits.module("torch.distributed", line)
        edits.replace_text(call, f"{dist}.all_reduce({given})")
        return context.result(
            edits,
            why=f"{source.path}:{source.line(line)} gives the sum of `{value}` to one rank, and "
            "all ranks decide by it.",
            behaviour="All ranks get the sum; the all-reduce moves about twice as many bytes.",
            score=0.9,
        )
    return None


def _is_destination(number: int, arg: cst.Arg) -> bool:
    if arg.keyword is None:
        return number == 1
    return arg.keyword.value in ("dst", "group_dst")


def _is_used_by_all(source: Source, line: cst.CSTNode, value: str) -> bool:
    """Something after it in the block reads the value, and not under a condition on the rank."""
    name = value.partition(".")[0]
    for statement in source.following(line):
        if isinstance(statement, cst.If) and ranked(source, statement.test):
            continue
        if name in names(statement) and not any(
            isinstance(e, cst.IfExp) and ranked(source, e.test) for e in find(statement, cst.IfExp)
        ):
            return True
    return False
