"""DDP002 Reduce gradients once per optimizer step.

## What it does
Runs all but the last micro-batch of an accumulation under `model.no_sync()`.

## Why it hurts
DDP reduces all gradients in every backward pass; while they accumulate only the last one counts.

## When it is wrong
Something between the micro-batches reads averaged gradients.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import backward_call, conjuncts, wrapped_models
from eroica.fix.loops import is_interval
from eroica.fix.tree import Loop, Source, code, find, names

CODE = "DDP002"
ANSWERS = frozenset({"redundant_gradient_sync"})
LABEL = "review"
FIXES = (
    Example(
        before="""\
def train_step(model, opt, batches, n):
    opt.zero_grad()
    for x in batches:  # <-- here
        loss = model(x) / n
        loss.backward()
    opt.step()
""",
        after="""\
import contextlib


def mark_last(items):
    \"\"\"Yield (is_last, item), looking one item ahead.\"\"\"
    iterator = iter(items)
    for item in iterator:
        for following in iterator:
            yield False, item
            item = following
        yield True, item


def train_step(model, opt, batches, n):
    opt.zero_grad()
    for is_last, x in mark_last(batches):
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = model(x) / n
            loss.backward()
    opt.step()
""",
    ),
    Example(
        before="""\
def train(model, opt, loader, n):
    for i, x in enumerate(loader):
        loss = model(x) / n
        loss.backward()  # <-- here
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
""",
        after="""\
import contextlib

def train(model, opt, loader, n):
    for i, x in enumerate(loader):
        with contextlib.nullcontext() if (i + 1) % n == 0 else model.no_sync():
            loss = model(x) / n
            loss.backward()
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
""",
    ),
)
KEEPS = (
    Example(
        before="""\
def train(model, opt, loader):
    for x in loader:
        loss = model(x)
        loss.backward()  # <-- here
        opt.step()
        opt.zero_grad()
"""
    ),
)
HELPER = '''
def mark_last(items):
    """Yield (is_last, item), looking one item ahead."""
    iterator = iter(items)
    for item in iterator:
        for following in iterator:
            yield False, item
            item = following
        yield True, item
'''


def fix(context: Context) -> FixerResult | None:
    """Add no_sync; None where no loop accumulates or it has it already."""
    for source, loop in context.loops():
        if not isinstance(loop, cst.For) or backward_call(loop.body) is None:
            continue
        if any(backward_call(inner.body) for inner in find(loop.body, cst.For)):
            continue
        if "no_sync" in code(loop) or "join" in code(loop):
            continue
        model = _model(context, source, loop)
        if model is None:
            continue
        group = _forward_to_backward(loop, model)
        if group is None:
            continue
        steps = [c for c in find(loop.body, cst.Call) if code(c.func).endswith(".step")]
        result = None
        if not steps and _stepped_after(source, loop):
            result = _micro_batches(context, source, loop, model, group)
        elif steps:
            result = _interval(context, source, loop, model, group, steps)
        if result is not None:
            return result
    return None


def _model(context: Context, source: Source, loop: Loop) -> str | None:
    """The name called first in the loop that is a DDP model here or at the caller."""
    wrapped = {n.rpartition(".")[2] for s in context.files for n in wrapped_models(s)} | {
        "model",
        "ddp",
        "ddp_model",
        "net",
    }
    for call in find(loop.body, cst.Call):
        name = code(call.func)
        if name.rpartition(".")[2] in wrapped and ("." not in name or name.startswith("self.")):
            return name
    return None


def _forward_to_backward(loop: cst.For, model: str) -> list[cst.BaseStatement] | None:
    """The statements from the forward call to the backward call, both at the loop's top level."""
    body = list(loop.body.body)
    first = next((i for i, s in enumerate(body) if f"{model}(" in code(s)), None)
    last = next((i for i, s in enumerate(body) if backward_call(s) is not None), None)
    if first is None or last is None or last < first or isinstance(body[last], cst.If):
        return None
    return body[first : last + 1]  # type: ignore[return-value]


def _stepped_after(source: Source, loop: cst.For) -> bool:
    return any(".step(" in code(s) for s in source.following(loop))


def _wrap(edits: Edits, model: str, test: str, group: list[cst.BaseStatement]) -> None:
    contextlib = edits.module("contextlib", group[0])
    edits.replace(
        group[0],
        edits.statements(
            f"with {contextlib}.nullcontext() if {test} else {model}.no_sync():\n    __BODY__",
            BODY=group,
        ),
    )
    for statement in group[1:]:
        edits.remove(statement)


def _micro_batches(
    context: Context, source: Source, loop: cst.For, model: str, group: list[cst.BaseStatement]
) -> FixerResult | None:
    edits = Edits(source)
    flag = "is_last"
    if flag in names(loop):
        return None
    target = code(loop.target)
    left = f"({target})" if isinstance(loop.target, cst.Tuple) and not loop.target.lpar else target
    edits.replace(loop.target, cst.parse_expression(f"{flag}, {left}"))
    edits.replace_text(loop.iter, f"mark_last({code(loop.iter)})")
    _wrap(edits, model, flag, group)
    if not source.functions_named("mark_last"):
        edits.add_helper(HELPER)
    return _result(context, source, loop, edits)


def _interval(
    context: Context,
    source: Source,
    loop: cst.For,
    model: str,
    group: list[cst.BaseStatement],
    steps: list[cst.Call],
) -> FixerResult | None:
    """The optimizer steps under ``(i + 1) % n == 0``: that is when gradients must be whole."""
    above = source.enclosing(steps[0], cst.If)
    if not isinstance(above, cst.If) or source.line(above) < source.line(group[-1]):
        return None
    parts = [p for p in conjuncts(above.test) if is_interval(p)]
    text = code(above.test)
    if not parts or (" or " not in text and len(conjuncts(above.test)) > 1):
        return None
    known = names(loop.target)
    if not names(above.test) & known:
        return None  # a counter moved on inside the loop: its value differs before and after
    edits = Edits(source)
    _wrap(edits, model, text, group)
    return _result(context, source, loop, edits)


def _result(context: Context, source: Source, loop: cst.For, edits: Edits) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(loop)} accumulates gradients and reduces them in every "
        "micro-batch.",
        behaviour="Gradients are summed locally and averaged once; the result is the same.",
        score=0.9 * context.closeness(source, loop),
    )
