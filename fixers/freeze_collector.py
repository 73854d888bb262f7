"""GC001 Take long-lived objects out of the garbage collector's way.

## What it does
Puts `gc.collect(); gc.freeze()` before the training loop, so that the objects made until then
(data set tables, tokenizers, the model) are never walked again.

## Why it hurts
A full collection walks every tracked Python object. It happens at another step on each rank, and
each pause holds all the others in the next collective.

## When it is wrong
Much of what was made before the loop becomes garbage later: frozen objects in cycles are kept.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.loops import step_loops
from eroica.fix.tree import Loop, Source

CODE = "GC001"
ANSWERS = frozenset({"gc_pause", "python_overhead"})
LABEL = "review"
FIXES = (
    Example(
        category="gc_pause",
        before="""\
import gc

def train(model, data):
    for x in data:
        model(x).backward()
        gc.collect()  # <-- here
""",
        after="""\
import gc

def train(model, data):
    gc.collect()
    gc.freeze()
    for x in data:
        model(x).backward()
        gc.collect()
""",
    ),
)
KEEPS = (
    Example(
        category="gc_pause",
        before="""\
import gc

def train(model, data):
    gc.freeze()
    for x in data:
        model(x).backward()  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Freeze before the outermost training loop; None where it is done or nothing trains."""
    if context.cause.category != "gc_pause" and context.setting("gc.pauses") is None:
        return None
    if any("gc.freeze" in source.text for source in context.files):
        return None
    place = _outermost(context)
    if place is None:
        return None
    source, loop = place
    edits = Edits(source)
    gc = edits.module("gc", loop)
    edits.before(loop, f"{gc}.collect()\n{gc}.freeze()")
    return context.result(
        edits,
        why=f"Before {source.path}:{source.line(loop)} the program has made what it keeps; the "
        "collector walks all of it at steps of its own choosing on each rank.",
        behaviour="Objects made before the loop are never collected; later garbage still is.",
        score=0.9 if context.cause.category == "gc_pause" else 0.4,
    )


def _outermost(context: Context) -> tuple[Source, Loop] | None:
    for source in context.files:
        for loop in step_loops(source, context.files):
            around = source.loops(loop)
            outer = around[-1] if around else loop
            function = source.function_of(outer)
            if function is not None or isinstance(source.parent(outer), cst.Module):
                return source, outer
    return None
