"""CNT002 Reduce a zero for a gradient that a rank does not have.

## What it does
Replaces `if p.grad is None: continue` before a collective by filling the gradient with zeros, so
that every rank reduces the same parameters in the same order.

## Why it hurts
Which parameters get a gradient depends on the rank's data (experts, towers, branches). A rank
that skips one makes a collective less and pairs the next with the wrong parameter.

## When it is wrong
Parameters that get no gradient on any rank should stay out of the optimizer's step.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import collectives
from eroica.fix.tree import Source, code, find, flat

CODE = "CNT002"
ANSWERS = frozenset(
    {
        "collective_count_mismatch",
        "divergent_control_flow",
        "collective_shape_mismatch",
        "collective_order_mismatch",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="collective_count_mismatch",
        before="""\
import torch
import torch.distributed as dist

def average(model):
    for p in model.parameters():
        if p.grad is None:  # <-- here
            continue
        dist.all_reduce(p.grad)
""",
        after="""\
import torch
import torch.distributed as dist

def average(model):
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
""",
    ),
    Example(
        category="collective_count_mismatch",
        before="""\
import torch
import torch.distributed as dist

def average(model):
    for p in model.parameters():
        if p.grad is not None:  # <-- here
            dist.all_reduce(p.grad)
""",
        after="""\
import torch
import torch.distributed as dist

def average(model):
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
""",
    ),
)
KEEPS = (
    Example(
        category="collective_count_mismatch",
        before="""\
def clip(model):
    for p in model.parameters():
        if p.grad is None:  # <-- here
            continue
        p.grad.clamp_(-1, 1)
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Fill missing gradients; None where no such test stands before a collective."""
    for source, loop in context.loops():
        if not collectives(source, loop.body):
            continue
        for node in find(loop.body, cst.If):
            result = _rewrite(context, source, node)
            if result is not None:
                return result
    return None


def _rewrite(context: Context, source: Source, node: cst.If) -> FixerResult | None:
    test = flat(node.test)
    if node.orelse is not None or ".grad is " not in test or " and " in test or " or " in test:
        return None
    grad = test.partition(" is ")[0]
    owner = grad.removesuffix(".grad")
    edits = Edits(source)
    fill = f"{grad} = {edits.module('torch', node)}.zeros_like({owner})"
    if test.endswith("is None") and code(node.body).strip() == "continue":
        edits.replace(node.body.body[0], edits.statements(fill))
    elif test.endswith("is not None") and collectives(source, node.body):
        new = edits.statements(
            f"if {grad} is None:\n    {fill}\n__BODY__", BODY=list(node.body.body)
        )
        edits.replace(node, new)
    else:
        return None
    return context.result(
        edits,
        why=f"{source.path}:{source.line(node)} leaves out what has no gradient on this rank, "
        "while "
        "other ranks reduce it.",
        behaviour="Parameters without a gradient here get the other ranks' average instead of "
        "none.",
        score=0.9 * context.closeness(source, node),
    )
