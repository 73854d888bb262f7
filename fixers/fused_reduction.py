"""COM001 Reduce many scalars in one collective.

## What it does
Where a loop reduces one small tensor per turn, stacks them, reduces once, and lets the rest of
the loop read its part of the result.

## Why it hurts
A small collective costs its latency whatever it carries; forty of them cost forty latencies, and
each waits for the slowest rank.

## When it is wrong
The tensors differ in shape or type, or a later turn depends on the result of an earlier one.
"""

import re
from collections.abc import Sequence

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import free
from eroica.fix.edits import Edits
from eroica.fix.facts import collectives, short
from eroica.fix.tree import Source, assigned, called, code, dotted, find, names

CODE = "COM001"
ANSWERS = frozenset(
    {
        "excessive_small_collectives",
        "logging_overhead",
        "host_sync",
        "redundant_gradient_sync",
        "excessive_object_collectives",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="excessive_small_collectives",
        before="""\
import torch.distributed as dist

def average(metrics):
    world, out = dist.get_world_size(), {}
    for name, value in metrics.items():
        t = value.detach().clone()
        dist.all_reduce(t)  # <-- here
        out[name] = t.item() / world
    return out
""",
        after="""\
import torch
import torch.distributed as dist

def average(metrics):
    world, out = dist.get_world_size(), {}
    stacked = torch.stack([value.detach().clone() for name, value in metrics.items()])
    dist.all_reduce(stacked)
    for (name, value), t in zip(metrics.items(), stacked.cpu()):
        out[name] = t.item() / world
    return out
""",
    ),
    Example(
        category="excessive_small_collectives",
        before="""\
import torch
import torch.distributed as dist

def average_gradients(model):
    size = dist.get_world_size()
    for p in model.parameters():
        dist.all_reduce(p.grad)  # <-- here
        p.grad /= size
""",
        after="""\
import torch
import torch.distributed as dist

def average_gradients(model):
    size = dist.get_world_size()
    parts = [p.grad for p in model.parameters()]
    flat = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(flat)
    for part, new in zip(parts, flat.split([part.numel() for part in parts])):
        part.copy_(new.view_as(part))
    for p in model.parameters():
        p.grad /= size
""",
    ),
)
KEEPS = (
    Example(
        category="excessive_small_collectives",
        before="""\
import torch
import torch.distributed as dist

def settle(rows, total):
    for row in rows:
        value = torch.tensor([row.sum().item() + total])
        dist.all_reduce(value)  # <-- here
        total = value.item()
    return total
""",
    ),
    Example(
        category="excessive_small_collectives",
        before="""\
import torch.distributed as dist

def roll(x, n):
    for i in range(n):
        x = x * 2
        dist.all_reduce(x)  # <-- here
    return x
""",
    ),
)
_AGAIN = re.compile(
    r"[\w.]+(?:\(\))?(?:\.(?:items|values|parameters|named_parameters|buffers)\(\))?"
)


def fix(context: Context) -> FixerResult | None:
    """Fuse the loop; None where no loop reduces independent tensors one by one."""
    for source, loop in context.loops():
        if not isinstance(loop, cst.For) or not _AGAIN.fullmatch(code(loop.iter)):
            continue
        made = collectives(source, loop.body)
        if len(made) != 1 or short(source, made[0]) not in ("all_reduce", "reduce"):
            continue
        result = _metrics(context, source, loop, made[0]) or _in_place(
            context, source, loop, made[0]
        )
        if result is not None:
            return result
    return None


def _rest(call: cst.Call) -> str:
    """The arguments after the tensor, as text."""
    return "".join(
        ", " + (f"{a.keyword.value}=" if a.keyword else "") + code(a.value) for a in call.args[1:]
    )


def _metrics(context: Context, source: Source, loop: cst.For, call: cst.Call) -> FixerResult | None:
    """``t = f(value); all_reduce(t); use(t)`` for each entry of a table."""
    body = list(loop.body.body)
    at = next((i for i, s in enumerate(body) if called(s) is call), None)
    made = assigned(body[0])
    if at != 1 or made is None or not body[2:]:
        return None
    name, value = dotted(made[0]), made[1]
    if not name or name != dotted(call.args[0].value) or name in names(value):
        return None
    if any(_carries(s, names(value) - names(loop.target)) for s in body[2:]):
        return None
    edits = Edits(source)
    stacked = free("stacked", source.function_of(loop), source)
    torch = edits.module("torch", loop)
    target, table = code(loop.target), code(loop.iter)
    edits.before(
        loop,
        f"""\
{stacked} = {torch}.stack([{code(value)} for {target} in {table}])
{code(call.func)}({stacked}{_rest(call)})
""",
    )
    edits.remove(body[0])
    edits.remove(body[1])
    copied = f"{stacked}.cpu()" if f"{name}.item()" in code(loop.body) else stacked
    left = f"({target})" if isinstance(loop.target, cst.Tuple) and not loop.target.lpar else target
    new_target = cst.parse_expression(f"{left}, {name}")
    edits.replace(loop.target, new_target)
    edits.replace_text(loop.iter, f"zip({table}, {copied})")
    return _result(context, source, loop, edits)


def _carries(statement: cst.CSTNode, read: set[str]) -> bool:
    """True where a statement ends the loop, or could feed the next turn's tensor."""
    if isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(s, cst.Break | cst.Return) for s in statement.body
    ):
        return True
    targets = [code(node.target) for node in find(statement, cst.AssignTarget)]
    targets += [code(node.target) for node in find(statement, cst.AugAssign)]
    return any(target in read for target in targets)


def _in_place(
    context: Context, source: Source, loop: cst.For, call: cst.Call
) -> FixerResult | None:
    """``all_reduce(p.grad)`` for each parameter, perhaps behind a test of None."""
    value = code(call.args[0].value)
    owner = target = code(loop.target)
    if isinstance(loop.target, cst.Tuple) and ".named_parameters(" in code(loop.iter):
        owner = code(loop.target.elements[-1].value)
    if not re.fullmatch(rf"{re.escape(owner)}(\.grad|\.data|\.grad\.data)?", value):
        return None
    line = source.statement_of(call)
    body = list(loop.body.body)
    guard = _guard(body, owner)
    if line is None or called(line) is not call:
        return None
    inside = next((s for s in body if s is line), None)
    within = next(
        (s for s in body if isinstance(s, cst.If) and any(x is line for x in s.body.body)), None
    )
    if inside is None and (within is None or "is not None" not in code(within.test)):
        return None
    edits = Edits(source)
    torch = edits.module("torch", loop)
    table = code(loop.iter)
    tested = value.removesuffix(".data")  # of ``p.grad.data`` it is the gradient that may be None
    condition = f" if {tested} is not None" if guard or within is not None else ""
    function = source.function_of(loop)
    parts, flat = free("parts", function, source), free("flat", function, source)
    part, new_part = free("part", function, source), free("new", function, source)
    new = edits.statements(f"""\
{parts} = [{value} for {target} in {table}{condition}]
{flat} = {torch}.cat([{part}.reshape(-1) for {part} in {parts}])
{code(call.func)}({flat}{_rest(call)})
for {part}, {new_part} in zip({parts}, {flat}.split([{part}.numel() for {part} in {parts}])):
    {part}.copy_({new_part}.view_as({part}))
""")
    remaining = [
        s for s in body if s is not line and not (s is within and len(within.body.body) == 1)
    ]
    if any(not isinstance(s, cst.If) or s is within for s in remaining):
        edits.remove(line)
        edits.before(loop, "__NEW__", NEW=new)
    else:
        edits.replace(loop, new)
    return _result(context, source, loop, edits)


def _guard(body: Sequence[cst.CSTNode], owner: str) -> bool:
    return any(
        isinstance(s, cst.If)
        and ".grad is None" in code(s.test)
        and any(True for _ in find(s.body, cst.Continue))
        for s in body
    )


def _result(context: Context, source: Source, loop: cst.For, edits: Edits) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(loop)} makes one small collective per turn; one carries "
        "them all.",
        behaviour="The same sums, from one collective; tensors must agree in type"
        " and, where they are stacked, in shape.",
        score=0.9 * context.closeness(source, loop),
    )
