"""EXC002 Let all ranks skip a step that failed on one, behind a handler around the whole loop.

## What it does
Where an error handler around the training loop keeps a rank alive - it waits, sleeps, or goes on -
catches the error in the step itself: the ranks agree whether the forward pass worked on all of
them, and otherwise skip the step together.

## Why it hurts
The rank with the error sits in its handler and looks alive; the others wait for its gradients.

## When it is wrong
The error comes again in each step, or leaves the rank unusable: then the handler must end the job.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import device_of, free
from eroica.fix.edits import Edits
from eroica.fix.facts import calls_here, collectives, definitions
from eroica.fix.loops import step_loops
from eroica.fix.tree import Loop, Source, body_of, code, dotted, find

CODE = "EXC002"
ANSWERS = frozenset({"exception_swallowed", "polling_wait", "rank_exited", "blocked_io"})
LABEL = "review"
FIXES = (
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
import time
import torch
import torch.distributed as dist

def fit(model, opt, data):
    for step, x in enumerate(data):
        loss = model(x)
        opt.zero_grad()
        loss.backward()
        opt.step()

def main(model, opt, data):
    try:
        fit(model, opt, data)
    except Exception as error:
        print("failed", error)
        time.sleep(36000)  # <-- here
        raise
""",
        after="""\
import time
import torch
import torch.distributed as dist
import traceback

def fit(model, opt, data):
    for step, x in enumerate(data):
        worked = torch.ones(1)
        try:
            loss = model(x)
            opt.zero_grad()
        except Exception:
            worked.zero_()
            traceback.print_exc()
        dist.all_reduce(worked, op=dist.ReduceOp.MIN)
        if not worked.item():
            continue
        loss.backward()
        opt.step()

def main(model, opt, data):
    try:
        fit(model, opt, data)
    except Exception as error:
        print("failed", error)
        time.sleep(36000)
        raise
""",
    ),
)
KEEPS = (
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
def fit(model, data):
    for x in data:
        loss = model(x)
        loss.backward()

def main(model, data):
    try:
        fit(model, data)  # <-- here
    except KeyboardInterrupt:
        print("stopped")
""",
    ),
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
def fit(model, data):
    for x in data:
        loss = model(x)
        loss.backward()

def main(model, data):
    try:
        fit(model, data)
    except Exception as error:
        print("failed", error)  # <-- here
        raise
""",
    ),
)
_STAYS = ("sleep", "wait", "input", "join", "pause", "set_trace", "breakpoint", "post_mortem")


def fix(context: Context) -> FixerResult | None:
    """Agree in each step; None where no handler around a training loop keeps its rank alive."""
    if context.symptom not in ("stuck", "failed"):
        return None
    for source, node in context.every(cst.Try, 0.4):
        for handler in node.handlers:
            if not _keeps_alive(context, source, handler):
                continue
            for home, loop in _loops(context, source, node):
                result = _guarded(context, home, loop, source, handler)
                if result is not None:
                    return result
    return None


def _keeps_alive(context: Context, source: Source, handler: cst.ExceptHandler) -> bool:
    """It takes errors of any kind, and neither ends the rank at once nor passes them on."""
    kind = code(handler.type) if handler.type is not None else ""
    if kind not in ("", "Exception", "BaseException", "RuntimeError", "IndexError", "ValueError"):
        return False
    raises = any(True for _ in find(handler.body, cst.Raise)) or "exit" in code(handler.body)
    return not raises or any(
        code(call.func).rpartition(".")[2] in _STAYS
        or any(
            code(inner.func).rpartition(".")[2] in _STAYS
            for _, function in definitions(source, call, context.files)
            for inner in find(function.body, cst.Call)
        )
        for call in find(handler.body, cst.Call)
    )


def _loops(context: Context, source: Source, node: cst.Try) -> list[tuple[Source, Loop]]:
    """The training loops in the try, or in a function it calls."""
    found: list[tuple[Source, Loop]] = []
    inside = set(find(node.body, cst.For)) | set(find(node.body, cst.While))
    found += [(source, loop) for loop in step_loops(source) if loop in inside]
    for call in calls_here(node.body):
        for other, function in definitions(source, call, context.files):
            for loop in step_loops(other):
                if other.function_of(loop) is function:
                    found.append((other, loop))
    return found


def _guarded(
    context: Context, source: Source, loop: Loop, home: Source, handler: cst.ExceptHandler
) -> FixerResult | None:
    body = list(body_of(loop))
    at = next((i for i, s in enumerate(body) if _moves_weights(s)), 0)
    # The end of the data is no failed step: what takes the next batch stays outside.
    start = max((i + 1 for i, s in enumerate(body[:at]) if _takes_next(s)), default=0)
    if at <= start or any(collectives(source, s) for s in body[start:at]):
        return None
    if any(True for s in body[start:at] for _ in find(s, cst.Try)):
        return None
    edits = Edits(source)
    dist, torch = edits.module("torch.distributed", loop), edits.module("torch", loop)
    traceback = edits.module("traceback", loop)
    flag = free("worked", source.function_of(loop), source)
    device = device_of(context, source, cst.Name(flag))
    work = [body[start].with_changes(leading_lines=()), *body[start + 1 : at]]
    new = edits.statements(
        f"{flag} = {torch}.ones(1{device})\n"
        f"try:\n    __WORK__\nexcept Exception:\n    {flag}.zero_()\n"
        f"    {traceback}.print_exc()\n"
        f"{dist}.all_reduce({flag}, op={dist}.ReduceOp.MIN)\nif not {flag}.item():\n    continue\n",
        WORK=work,
    )
    edits.replace(body[start], new)
    for statement in body[start + 1 : at]:
        edits.remove(statement)
    return context.result(
        edits,
        why=f"{home.path}:{home.line(handler)} keeps a rank alive whose step failed, while the "
        f"others wait for it in {source.path}:{source.line(loop)}.",
        behaviour="A step that fails on one rank is reported and skipped on all; one small "
        "all-reduce more per step.",
        score=0.85 * max(context.closeness(home, handler), 0.6),
    )


def _takes_next(statement: cst.CSTNode) -> bool:
    return any(
        dotted(call.func).rpartition(".")[2] in ("next", "__next__")
        for call in find(statement, cst.Call)
    )


def _moves_weights(statement: cst.CSTNode) -> bool:
    return any(
        isinstance(c.func, cst.Attribute) and c.func.attr.value in ("backward", "step")
        for c in find(statement, cst.Call)
    )
