"""DDP004 Do not exchange weights in every step.

## What it does
Removes broadcasts and averages of the parameters from the training loop of a
DistributedDataParallel model, and averages of gradients beside DDP's own.

## Why it hurts
DDP starts all ranks from the same weights and gives all the same gradients: the weights stay
equal, and exchanging them again costs a pass over the whole model each step.

## When it is wrong
Ranks change weights in ways of their own (dropout of layers on purpose, local steps).
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import (
    backward_call,
    calls_here,
    collectives,
    definitions,
    short,
    wrapped_models,
)
from eroica.fix.loops import step_loops
from eroica.fix.tree import Function, Source, called, code, main_block

CODE = "DDP004"
ANSWERS = frozenset({"redundant_gradient_sync", "excessive_small_collectives"})
LABEL = "review"
FIXES = (
    Example(
        category="redundant_gradient_sync",
        before="""\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def sync(model):
    for p in model.parameters():
        dist.broadcast(p.data, 0)  # <-- here

def train(net, opt, data):
    model = DDP(net)
    for x in data:
        model(x).backward()
        opt.step()
        sync(model)
""",
        after="""\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def sync(model):
    for p in model.parameters():
        dist.broadcast(p.data, 0)

def train(net, opt, data):
    model = DDP(net)
    for x in data:
        model(x).backward()
        opt.step()
""",
    ),
)
KEEPS = (
    Example(
        category="redundant_gradient_sync",
        before="""\
import torch.distributed as dist

def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)  # <-- here

def train(model, opt, data):
    for x in data:
        model(x).backward()
        average(model)
        opt.step()
""",
    ),
)
_WEIGHTS = re.compile(r"\w+(\.grad)?(\.data|\.detach\(\))?")


def fix(context: Context) -> FixerResult | None:
    """Remove the exchange; None where the model is not wrapped or nothing is exchanged twice."""
    if not any(wrapped_models(source) for source in context.files):
        return None
    for source in context.files:
        for loop in step_loops(source, context.files):
            for statement in loop.body.body:
                if backward_call(statement) is None and _exchanges(context, source, statement):
                    edits = Edits(source)
                    edits.remove(statement)
                    return context.result(
                        edits,
                        why=f"{source.path}:{source.line(statement)} exchanges in every step what "
                        "DDP keeps equal by itself.",
                        behaviour="Weights stay equal through equal gradients; check buffers that "
                        "DDP does not broadcast.",
                        score=0.95 * max(context.closeness(source, statement), _least(context)),
                    )
    return None


def _least(context: Context) -> float:
    """What is exchanged twice is better left out than fused."""
    return 0.97 if context.cause.category == "redundant_gradient_sync" else 0.7


def _exchanges(context: Context, source: Source, statement: cst.CSTNode) -> bool:
    """A loop over parameters with a collective in it, or a call of a function that is one."""
    if isinstance(statement, cst.For):
        return _is_exchange(source, statement)
    call = called(statement)
    if call is None:
        return False
    for other, function in definitions(source, call, context.files):
        loops = [s for s in main_block(function) if isinstance(s, cst.For)]
        if len(loops) == 1 and _is_exchange(other, loops[0]) and _only_that(function):
            return True
    return False


def _is_exchange(source: Source, loop: cst.For) -> bool:
    made = collectives(source, loop.body)
    return (
        bool(re.search(r"\.(parameters|named_parameters)\(", code(loop.iter)))
        and bool(made)
        and all(short(source, c) in ("broadcast", "all_reduce") for c in made)
        and all(c.args and _WEIGHTS.fullmatch(code(c.args[0].value)) for c in made)
    )


def _only_that(function: Function) -> bool:
    """The function does nothing else that could matter."""
    return not any(code(c.func) in ("print", "torch.save") for c in calls_here(function.body))
