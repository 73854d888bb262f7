"""COL001 Move a collective out of a condition on the rank.

## What it does
Splits `if rank == 0 and step % n == 0:` so that what all ranks must call no longer depends on
the rank. A barrier inside the function that only one rank calls moves behind the call.

## Why it hurts
A collective returns when all ranks of the group have called it. One that only some ranks reach
pairs up with whatever the others call next, and nobody moves on.

## When it is wrong
The ranks that satisfy the condition are exactly the members of the collective's group.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import COLLECTIVES, collectives, is_barrier, short
from eroica.fix.moves import Test, call_sites, callees, conditions, holds_collective, regroup
from eroica.fix.tree import Function, Source, called, code, main_block

CODE = "COL001"
ANSWERS = frozenset(
    {
        "rank_conditional_collective",
        "checkpoint_collective_on_one_rank",
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
import torch.distributed as dist

def save(model, path):
    model.save(path)
    dist.barrier()  # <-- here

def train(rank, model):
    for step in range(10):
        # keep one copy
        if rank == 0 and step % 5 == 0:
            save(model, "x")
""",
        after="""\
import torch.distributed as dist

def save(model, path):
    model.save(path)

def train(rank, model):
    for step in range(10):
        # keep one copy
        if step % 5 == 0:
            if rank == 0:
                save(model, "x")
            dist.barrier()
""",
    ),
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist

def report(loss):
    if dist.get_rank() == 0:
        print("reducing")
        total = loss.clone()
        dist.all_reduce(total)  # <-- here
        print(total.item())
""",
        after="""\
import torch.distributed as dist

def report(loss):
    if dist.get_rank() == 0:
        print("reducing")
    total = loss.clone()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(total.item())
""",
    ),
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist

def join(rank, world):
    members = list(range(0, world, 2))
    if rank in members:
        group = dist.new_group(members)  # <-- here
        dist.barrier(group=group)
        return group
    return None
""",
        after="""\
import torch.distributed as dist

def join(rank, world):
    members = list(range(0, world, 2))
    group = dist.new_group(members)
    if rank in members:
        dist.barrier(group=group)
        return group
    return None
""",
    ),
)
KEEPS = (
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist

def exchange(rank, x):
    if rank == 0:
        dist.broadcast(x, 0)  # <-- here
    else:
        dist.broadcast(x, 0)
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Move the collective; None where no condition on the rank leads to one."""
    options = []
    for source in context.files:
        for node in conditions(source, context.files, "rank"):
            score = _score(context, source, node)
            if score:
                options.append((score, source, node))
    for score, source, node in sorted(options, key=lambda option: -option[0]):
        result = _direct(context, source, node, score) or _through_call(
            context, source, node, score
        )
        if result is not None:
            return result
    return None


def _score(context: Context, source: Source, node: cst.If) -> float:
    if context.is_near(source, node, 1):
        return 0.9
    for other, function in callees(source, node, context.files):
        if any(spot.source is other and spot.function is function for spot in context.spots):
            return 0.85
    return 0.5 if context.is_named(source, node) else 0.0


def _new_groups(source: Source) -> Test:
    """All ranks make a group; only its members use it."""
    return lambda statement: any(
        short(source, call) in ("new_group", "new_subgroups")
        for call in collectives(source, statement)
    )


def _is_group_of_members(source: Source, node: cst.If, wanted: Test) -> bool:
    """A subgroup's collective under a test of membership is right as it stands."""
    return not any(wanted(s) and _new_groups(source)(s) for s in node.body.body) and any(
        arg.keyword is not None and arg.keyword.value == "group"
        for call in collectives(source, node.body)
        for arg in call.args
    )


def _direct(context: Context, source: Source, node: cst.If, score: float) -> FixerResult | None:
    wanted = _new_groups(source) if _new_groups(source)(node.body) else holds_collective(source)
    if not collectives(source, node.body) or _is_group_of_members(source, node, wanted):
        return None
    if not any(wanted(s) for s in node.body.body if not _nested(s)):
        return None
    edits = Edits(source)
    if not regroup(edits, node, "rank", wanted):
        return None
    return context.result(edits, why=_why(source, node), behaviour=_BEHAVIOUR, score=score)


def _nested(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.BaseCompoundStatement)


def _through_call(
    context: Context, source: Source, node: cst.If, score: float
) -> FixerResult | None:
    """The function called holds barriers only: take them out of it and wait behind the call."""
    for other, function in callees(source, node, context.files):
        barriers = _plain_barriers(other, function)
        sites = call_sites(function, context.files)
        if barriers is None or len(sites) != 1:
            continue
        edits = Edits(source)
        dist = edits.module("torch.distributed", node)
        there = edits if other is source else Edits(other)
        for statement in barriers:
            there.remove(statement)
        if regroup(edits, node, "rank", lambda _: False, extra=f"{dist}.barrier()"):
            return context.result(
                *{id(e): e for e in (edits, there)}.values(),
                why=_why(source, node),
                behaviour=_BEHAVIOUR,
                score=score,
            )
    return None


def _plain_barriers(source: Source, function: Function) -> list[cst.CSTNode] | None:
    """The function's barrier lines, where these are its only collectives and take no group."""
    lines = [s for s in main_block(function) if (c := called(s)) and is_barrier(source, c)]
    if len(lines) != len(collectives(source, function.body)):
        return None
    if any(called(line).args for line in lines):  # type: ignore[union-attr]
        return None
    return list(lines) or None


def _why(source: Source, node: cst.If) -> str:
    return (
        f"{source.path}:{source.line(node)} `{code(node.test)}` lets only some ranks reach a "
        "collective that needs all of them."
    )


_BEHAVIOUR = (
    "All ranks call the collective; the ranks that skipped it now wait there for the others."
)
assert "barrier" in COLLECTIVES
