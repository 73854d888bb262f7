"""EXC001 Let all ranks skip a step that failed on one.

## What it does
Keeps the part of the `try` that can fail on bad data, notes whether it worked, and reduces that
over the ranks: the backward pass and the optimizer step run on all ranks or on none. Where the
`try` has no such part, the handler raises again, so that the job fails at once and says why.

## Why it hurts
The handler hides the error from the other ranks, which wait for the collectives that the failed
rank left out.

## When it is wrong
The error leaves the rank unusable (a CUDA error, no memory): then the job must end.
"""

from collections.abc import Sequence

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import free, job_device
from eroica.fix.edits import Edits
from eroica.fix.facts import backward_call, collectives, ends_early
from eroica.fix.tree import Source, code, find

CODE = "EXC001"
ANSWERS = frozenset(
    {"exception_swallowed", "divergent_control_flow", "collective_count_mismatch", "rank_exited"}
)
LABEL = "review"
FIXES = (
    Example(
        category="exception_swallowed",
        before="""\
import torch
import torch.distributed as dist

def step(model, opt, x):
    try:
        loss = model(x)
        loss.backward()
        opt.step()
    except RuntimeError:  # <-- here
        loss = torch.tensor(0.0)
    return loss
""",
        after="""\
import torch
import torch.distributed as dist

def step(model, opt, x):
    worked = torch.ones(1)
    try:
        loss = model(x)
    except RuntimeError:
        worked.zero_()
        loss = torch.tensor(0.0)
    dist.all_reduce(worked, op=dist.ReduceOp.MIN)
    if worked.item():
        loss.backward()
        opt.step()
    return loss
""",
    ),
    Example(
        category="exception_swallowed",
        before="""\
import torch
import torch.distributed as dist

def train(model, opt, data):
    for x in data:
        try:
            loss = model(x)
            loss.backward()
        except Exception as error:  # <-- here
            print("skipped", error)
            continue
        opt.step()
""",
        after="""\
import torch
import torch.distributed as dist

def train(model, opt, data):
    for x in data:
        worked = torch.ones(1)
        try:
            loss = model(x)
        except Exception as error:
            worked.zero_()
            print("skipped", error)
        dist.all_reduce(worked, op=dist.ReduceOp.MIN)
        if not worked.item():
            continue
        loss.backward()
        opt.step()
""",
    ),
    Example(
        category="exception_swallowed",
        before="""\
import torch.distributed as dist

def exchange(x):
    try:
        y = prepare(x)
        dist.all_reduce(y)
    except ValueError as error:  # <-- here
        print("skipped", error)
""",
        after="""\
import torch.distributed as dist

def exchange(x):
    try:
        y = prepare(x)
        dist.all_reduce(y)
    except ValueError as error:
        print("skipped", error)
        raise
""",
    ),
)
KEEPS = (
    Example(
        category="exception_swallowed",
        before="""\
import torch.distributed as dist

def exchange(x):
    try:
        dist.all_reduce(x)
    except ValueError:  # <-- here
        cleanup()
        raise
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Split the try, or raise again; None where no handler hides an error from the others."""
    for source, node in context.every(cst.Try, 0.5):
        hiding = [h for h in node.handlers if _hides(h)]
        if not hiding or node.orelse is not None or node.finalbody is not None:
            continue
        score = 0.9 * context.closeness(source, node)
        result = None
        if len(node.handlers) == 1 and backward_call(node.body) is not None:
            result = _split(context, source, node, score)
        if result is None and (
            backward_call(node.body) is not None or collectives(source, node.body)
        ):
            result = _raise(context, source, hiding, score)
        if result is not None:
            return result
    return None


def _hides(handler: cst.ExceptHandler) -> bool:
    return not any(True for _ in find(handler.body, cst.Raise)) and "exit" not in code(handler.body)


def _split(context: Context, source: Source, node: cst.Try, score: float) -> FixerResult | None:
    """Divide the try at the first statement that changes gradients."""
    body = list(node.body.body)
    at = next((i for i, s in enumerate(body) if _changes_gradients(s)), 0)
    if at == 0 or any(collectives(source, s) for s in body):
        return None
    edits = Edits(source)
    dist, torch = edits.module("torch.distributed", node), edits.module("torch", node)
    handler = node.handlers[0]
    flag = free("worked", source.function_of(node), source)
    device = _device(body[:at]) or job_device(context, source)
    inner = [*edits.statements(f"{flag}.zero_()"), *handler.body.body]
    leave = ends_early(handler.body)
    if leave is not None:  # taken behind the reduction instead, by all ranks
        inner = inner[:-1]
    inner = [statement for statement in inner if code(statement) != "pass"]
    handler = handler.with_changes(body=handler.body.with_changes(body=inner))
    short = node.with_changes(
        body=node.body.with_changes(body=body[:at]), handlers=[handler], leading_lines=()
    )
    rest = (
        f"if {flag}.item():\n    __REST__"
        if leave is None
        else f"if not {flag}.item():\n    {code(leave)}\n__REST__"
    )
    new = edits.statements(
        f"{flag} = {torch}.ones(1{device})\n__TRY__\n"
        f"{dist}.all_reduce({flag}, op={dist}.ReduceOp.MIN)\n{rest}",
        TRY=[short],
        REST=body[at:],
    )
    edits.replace(node, new)
    return context.result(
        edits,
        why=f"{source.path}:{source.line(node)} catches an error of this rank alone and goes on "
        "without the backward pass the other ranks wait in.",
        behaviour="A step that fails on one rank is skipped on all; one small all-reduce more "
        "per step.",
        score=score,
    )


def _changes_gradients(statement: cst.CSTNode) -> bool:
    return any(
        isinstance(c.func, cst.Attribute) and c.func.attr.value in ("backward", "step", "zero_grad")
        for c in find(statement, cst.Call)
    )


def _device(body: Sequence[cst.CSTNode]) -> str:
    """The device of the batch, where the code moves it to one by name."""
    for statement in body:
        for call in find(statement, cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "to" and call.args:
                if code(call.args[0].value) in (
                    "device",
                    "self.device",
                    "local_rank",
                    "args.device",
                ):
                    return f", device={code(call.args[0].value)}"
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "cuda":
                return ', device="cuda"'
    return ""


def _raise(
    context: Context, source: Source, handlers: list[cst.ExceptHandler], score: float
) -> FixerResult | None:
    edits = Edits(source)
    for handler in handlers:
        last = handler.body.body[-1]
        if code(last) in ("pass", "continue", "return", "break"):
            edits.replace_text(last, "raise")
        else:
            edits.after(last, "raise")
    return context.result(
        edits,
        why=f"{source.path}:{source.line(handlers[0])} hides an error from the ranks that wait for "
        "this one's collectives.",
        behaviour="The error ends the rank, and the launcher ends the job with its message.",
        score=0.7 * score,
    )
