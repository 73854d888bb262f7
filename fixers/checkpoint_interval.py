"""CKP002 Save checkpoints less often.

## What it does
Multiplies the interval of the save by ten where it is a number in the program; puts a save of
every step under an interval of 100 steps.

## Why it hurts
While a rank writes, the step waits, and with it all ranks.

## When it is wrong
Work between two checkpoints is dearer than the writing: then save in the background
(`torch.distributed.checkpoint.async_save`) or on a faster disk.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import calls_here, conjuncts, definitions, joined
from eroica.fix.loops import counter_of, interval_of, step_loops
from eroica.fix.settings import literal_behind
from eroica.fix.tree import Loop, Source, code, find

CODE = "CKP002"
ANSWERS = frozenset({"checkpoint_overhead", "serialized_on_rank0"})
LABEL = "review"
FACTOR, EVERY, LONG = 10, 100, 50
FIXES = (
    Example(
        category="checkpoint_overhead",
        before="""\
import torch

def train(model, data, rank):
    for step, x in enumerate(data):
        model(x).backward()
        if rank == 0 and step % 5 == 0:
            torch.save(model.state_dict(), "last.pt")  # <-- here
""",
        after="""\
import torch

def train(model, data, rank):
    for step, x in enumerate(data):
        model(x).backward()
        if rank == 0 and step % 50 == 0:
            torch.save(model.state_dict(), "last.pt")
""",
    ),
    Example(
        category="checkpoint_overhead",
        before="""\
import torch

def train(model, data, rank):
    for step, x in enumerate(data):
        model(x).backward()
        if rank == 0:
            torch.save(model.state_dict(), "last.pt")  # <-- here
""",
        after="""\
import torch

def train(model, data, rank):
    for step, x in enumerate(data):
        model(x).backward()
        if rank == 0 and step % 100 == 0:
            torch.save(model.state_dict(), "last.pt")
""",
    ),
)
KEEPS = (
    Example(
        category="checkpoint_overhead",
        before="""\
import torch

def train(model, data):
    for x in data:
        model(x).backward()
    torch.save(model.state_dict(), "last.pt")  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Lengthen the interval; None where no save stands in a training loop."""
    if context.cause.category == "serialized_on_rank0" and not any(
        s.function is not None and "save" in s.function.name.value for s in context.spots
    ):
        return None
    for source in context.files:
        for loop in step_loops(source, context.files):
            for call in calls_here(loop.body):
                if _saves(context, source, call):
                    result = _rewrite(context, source, loop, call)
                    if result is not None:
                        return result
    return None


def _saves(context: Context, source: Source, call: cst.Call, depth: int = 2) -> bool:
    name = code(call.func).rpartition(".")[2]
    if source.full_name(call.func) in (
        "torch.save",
        "torch.distributed.checkpoint.save",
        "pickle.dump",
    ):
        return True
    if depth:
        for other, function in definitions(source, call, context.files):
            if any(_saves(context, other, inner, depth - 1) for inner in calls_here(function.body)):
                return True
    return name in ("save_checkpoint", "save_state", "save_pretrained")


def _rewrite(context: Context, source: Source, loop: Loop, call: cst.Call) -> FixerResult | None:
    edits = Edits(source)
    why = f"{source.path}:{source.line(call)} saves in the way of the training steps."
    ifs = [
        a for a in source.ancestors(call) if isinstance(a, cst.If) and a in set(find(loop, cst.If))
    ]
    for node in ifs:
        for part in conjuncts(node.test):
            every = interval_of(part)
            if every is not None:
                behind = literal_behind(context, source, every.right)
                if behind is None or not isinstance(behind.node, cst.Integer):
                    continue
                if behind.node.evaluated_value >= LONG:
                    return None
                there = edits if behind.source is source else Edits(behind.source)
                there.replace_text(behind.node, str(behind.node.evaluated_value * FACTOR))
                return context.result(
                    there,
                    why=why,
                    score=0.85,
                    behaviour=f"A restart loses up to {FACTOR} times as many steps as before.",
                )
    counter = counter_of(loop)
    statement = source.statement_of(call)
    if not counter or statement is None:
        return None
    test = f"{counter} % {EVERY} == 0"
    if ifs:
        edits.replace(
            ifs[-1].test,
            cst.parse_expression(joined([*conjuncts(ifs[-1].test), cst.parse_expression(test)])),
        )
    else:
        edits.replace_text(statement, f"if {test}:\n    __BODY__", BODY=[statement])
    return context.result(
        edits,
        why=why,
        score=0.85,
        behaviour=f"One checkpoint in {EVERY} steps: a restart loses up to as many.",
    )
