"""GC002 Collect garbage on the same step on all ranks.

## What it does
Turns the automatic collector off before the training loop and collects every 100th step, on all
ranks together.

## Why it hurts
Automatic collections come when a rank has allocated enough, at a different step on each rank. Each
one holds all ranks, so the job pays for the pauses of all ranks in turn.

## When it is wrong
A step leaves much garbage in cycles: memory grows until the next collection.
"""

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.loops import counter_of, step_loops
from eroica.fix.tree import Loop, Source

CODE = "GC002"
ANSWERS = frozenset({"gc_pause"})
LABEL = "review"
EVERY = 100
FIXES = (
    Example(
        before="""\
import gc

def train(model, data):
    gc.freeze()
    for step, x in enumerate(data):  # <-- here
        model(x).backward()
""",
        after="""\
import gc

def train(model, data):
    gc.freeze()
    gc.disable()
    for step, x in enumerate(data):
        model(x).backward()
        if step % 100 == 0:
            gc.collect()
""",
    ),
)
KEEPS = (
    Example(
        before="""\
import gc

def train(model, data):
    gc.disable()
    for step, x in enumerate(data):
        model(x).backward()  # <-- here
"""
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Align the collections; None where the collector is off or the loop does not count."""
    if any("gc.disable" in s.text or "gc.collect" in s.text for s in context.files):
        return None
    for source in context.files:
        for loop in step_loops(source, context.files):
            counter = counter_of(loop)
            if not counter:
                continue
            edits = Edits(source)
            gc = edits.module("gc", loop)
            around: list[Loop] = source.loops(loop)
            edits.before(around[-1] if around else loop, f"{gc}.disable()")
            edits.after(loop.body.body[-1], f"if {counter} % {EVERY} == 0:\n    {gc}.collect()")
            return _result(context, source, loop, edits)
    return None


def _result(context: Context, source: Source, loop: Loop, edits: Edits) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(loop)} runs with automatic collections, which fall on "
        "different steps on each rank.",
        behaviour=f"Garbage in cycles lives for up to {EVERY} steps.",
        score=0.6,
    )
