"""GRP001 Call a collective on the group its neighbors use.

## What it does
Adds `group=` to a collective without one in a function whose other collectives name a group.

## Why it hurts
Without `group=` the call runs on all ranks of the job, while only the members of the group come.

## When it is wrong
The function is called by every rank and means to wait for all.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import collectives
from eroica.fix.tree import argument, code

CODE = "GRP001"
ANSWERS = frozenset(
    {
        "rank_conditional_collective",
        "collective_order_mismatch",
        "collective_count_mismatch",
        "divergent_control_flow",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist

def average(x, group):
    dist.all_reduce(x, group=group)
    dist.barrier()  # <-- here
""",
        after="""\
import torch.distributed as dist

def average(x, group):
    dist.all_reduce(x, group=group)
    dist.barrier(group=group)
""",
    ),
)
KEEPS = (
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist

def average(x, group):
    dist.all_reduce(x, group=group)
    dist.barrier(group=group)  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Add the group; None where no function mixes calls with and without one."""
    for source, function in context.every(cst.FunctionDef, 0.4):
        calls = [c for c in collectives(source, function.body) if "new_group" not in code(c.func)]
        groups = {code(arg.value) for c in calls if (arg := argument(c, "group")) is not None}
        without = [c for c in calls if argument(c, "group") is None and len(c.args) < 3]
        if len(groups) != 1 or not without:
            continue
        group = groups.pop()
        edits = Edits(source)
        for call in without:
            edits.set_argument(call, "group", group)
        spot = any(s.function is function for s in context.spots)
        return context.result(
            edits,
            why=f"{source.path}:{source.line(without[0])} runs on all ranks; the other collectives "
            f"of {function.name.value}() run on {group}.",
            behaviour=f"Only the members of {group} wait for each other here.",
            score=0.95 if spot else 0.5,
        )
    return None
