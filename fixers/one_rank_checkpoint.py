"""CKP001 Gather the state on all ranks, write it on one.

## What it does
Lets all ranks call the function that collects the state (a sharded `state_dict`, a consolidation,
an all-gather) and puts the test of the rank behind the last collective in it.

## Why it hurts
The full state of a sharded model or optimizer is gathered from all ranks. Called on rank 0 alone,
the gather waits for ranks that are already elsewhere.

## When it is wrong
The function is also called where it must run on one rank only.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import collectives, is_barrier
from eroica.fix.moves import call_sites, callees, conditions, leads_to_collective, regroup
from eroica.fix.tree import Function, Source, called, code, find

CODE = "CKP001"
ANSWERS = frozenset(
    {
        "checkpoint_collective_on_one_rank",
        "rank_conditional_collective",
        "divergent_control_flow",
        "collective_count_mismatch",
        "collective_order_mismatch",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="checkpoint_collective_on_one_rank",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_model_state_dict

def save(model, path):
    state = get_model_state_dict(model)  # <-- here
    torch.save(state, path)

def train(rank, model):
    for step in range(10):
        if step % 5 == 0 and rank == 0:
            save(model, "x")
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_model_state_dict

def save(model, path):
    state = get_model_state_dict(model)
    if dist.get_rank() != 0:
        return
    torch.save(state, path)

def train(rank, model):
    for step in range(10):
        if step % 5 == 0:
            save(model, "x")
""",
    ),
)
KEEPS = (
    Example(
        category="checkpoint_collective_on_one_rank",
        before="""\
import torch

def save(model, path):
    torch.save(model.state_dict(), path)  # <-- here

def train(rank, model):
    if rank == 0:
        save(model, "x")
""",
    ),
)
_EFFECT = re.compile(
    r"(?:.*\.)?(?:print|save|dump|write|write_text|info|warning|log|unlink|remove|replace)"
)


def fix(context: Context) -> FixerResult | None:
    """Open the function to all ranks; None where no call on one rank leads to a collective."""
    for source in context.files:
        for node in conditions(source, context.files, "rank"):
            for other, function in callees(source, node, context.files):
                named = any(s.source is other and s.function is function for s in context.spots)
                if not (named or context.is_near(source, node, 1)):
                    continue
                if len(call_sites(function, context.files)) != 1 or _has_elsewhere(source, node):
                    continue
                result = _open(context, source, node, other, function)
                if result is not None:
                    return result
    return None


def _has_elsewhere(source: Source, node: cst.If) -> bool:
    return node.orelse is not None


def _open(
    context: Context, source: Source, node: cst.If, other: Source, function: Function
) -> FixerResult | None:
    body = function.body.body
    with_collectives = [s for s in body if collectives(other, s)]
    if not with_collectives or all(is_barrier(other, c) for c in collectives(other, function.body)):
        return None
    edits = Edits(source)
    there = edits if other is source else Edits(other)
    dist = there.module("torch.distributed", function)
    last = with_collectives[-1]
    position = list(body).index(last)
    for statement in body[:position]:
        call = called(statement)
        if (
            call is not None
            and statement not in with_collectives
            and _EFFECT.fullmatch(code(call.func))
        ):
            there.replace_text(statement, f"if {dist}.get_rank() == 0:\n    __S__", S=[statement])
    if position + 1 < len(body):
        there.after(last, f"if {dist}.get_rank() != 0:\n    return")
    if not regroup(edits, node, "rank", leads_to_collective(source, context.files)):
        return None
    return context.result(
        *{id(e): e for e in (edits, there)}.values(),
        why=f"{source.path}:{source.line(node)} calls {function.name.value}() on some ranks, and "
        f"{other.path}:{other.line(last)} in it needs all of them.",
        behaviour="All ranks take part in gathering the state; rank 0 alone goes on to write it.",
        score=0.8 if any(True for _ in find(last, cst.Call)) else 0.6,
    )
