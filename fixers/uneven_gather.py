"""SHP001 Gather what differs in shape or type as objects.

## What it does
Replaces an `all_gather` of tensors into preallocated copies by `all_gather_object`, which carries
any shape and type; gives the operand of a reduction one floating type on all ranks.

## Why it hurts
A collective moves as many bytes as each rank's own operand says. Ranks whose operands differ in
shape or type read past each other, fail, or wait for bytes that never come.

## When it is wrong
The tensors are large: pad them to the longest and gather the lengths first.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import is_collective, short
from eroica.fix.tree import Source, assigned, called, code, dotted

CODE = "SHP001"
ANSWERS = frozenset({"collective_shape_mismatch", "collective_dtype_mismatch"})
LABEL = "review"
FIXES = (
    Example(
        category="collective_shape_mismatch",
        before="""\
import torch
import torch.distributed as dist

def gather(t):
    parts = [torch.zeros_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t)  # <-- here
    return torch.cat(parts)
""",
        after="""\
import torch
import torch.distributed as dist

def gather(t):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, t.cpu())
    parts = [part.to(t.device) for part in parts]
    return torch.cat(parts)
""",
    ),
    Example(
        category="collective_dtype_mismatch",
        before="""\
import torch.distributed as dist

def reduce(t):
    dist.all_reduce(t)  # <-- here
    return t
""",
        after="""\
import torch.distributed as dist

def reduce(t):
    t = t.float()
    dist.all_reduce(t)
    return t
""",
    ),
)
KEEPS = (
    Example(
        category="collective_dtype_mismatch",
        before="""\
import torch.distributed as dist

def reduce(t):
    t = t.float()
    dist.all_reduce(t)  # <-- here
    return t
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Carry the operands so that they may differ; None where the cause names no such call."""
    for source, line in context.every(cst.SimpleStatementLine, 0.6):
        call = called(line)
        if call is None or not is_collective(source, call) or not call.args:
            continue
        name = short(source, call)
        if name == "all_gather":
            result = _gather(context, source, line, call)
        elif name in ("all_reduce", "reduce", "broadcast") and (
            context.cause.category == "collective_dtype_mismatch"
        ):
            result = _cast(context, source, line, call)
        else:
            result = None
        if result is not None:
            return result
    return None


def _gather(
    context: Context, source: Source, line: cst.SimpleStatementLine, call: cst.Call
) -> FixerResult | None:
    if len(call.args) < 2 or not dotted(call.args[0].value):
        return None
    parts, value = dotted(call.args[0].value), code(call.args[1].value)
    block = list(source.siblings(line))
    made = next(
        (
            s
            for s in block[: block.index(line)]
            if (a := assigned(s)) is not None and dotted(a[0]) == parts
        ),
        None,
    )
    if made is None:
        return None
    rest = "".join(f", {code(a.keyword)}={code(a.value)}" for a in call.args[2:] if a.keyword)
    group = next((code(a.value) for a in call.args if a.keyword and a.keyword.value == "group"), "")
    edits = Edits(source)
    dist = edits.module("torch.distributed", line)
    edits.replace(made, edits.statements(f"{parts} = [None] * {dist}.get_world_size({group})"))
    owner = value.removesuffix(".detach()")
    edits.replace(
        line,
        edits.statements(
            f"{dist}.all_gather_object({parts}, {value}.cpu(){rest})\n"
            f"{parts} = [part.to({owner}.device) for part in {parts}]"
        ),
    )
    return context.result(
        edits,
        why=f"{source.path}:{source.line(line)} gathers into tensors shaped like this rank's own.",
        behaviour="The tensors are pickled: fine for small ones, slow for large ones.",
        score=0.85 * context.closeness(source, line),
    )


def _cast(
    context: Context, source: Source, line: cst.SimpleStatementLine, call: cst.Call
) -> FixerResult | None:
    name = dotted(call.args[0].value)
    block = list(source.siblings(line))
    before = code(block[block.index(line) - 1]) if block.index(line) else ""
    if not name or "." in name or before.endswith((".float()", ".double()")):
        return None
    edits = Edits(source)
    edits.before(line, f"{name} = {name}.float()")
    return context.result(
        edits,
        why=f"{source.path}:{source.line(line)} reduces `{name}`, whose type differs between "
        "ranks.",
        behaviour="It is reduced in float32; a caller that keeps the old tensor does not see the "
        "result.",
        score=0.7 * context.closeness(source, line),
    )
