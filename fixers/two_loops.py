"""COM002 Make the tensors of a loop first, and reduce them once.

## What it does
Splits a loop that makes a small tensor, reduces it and uses the sum into one that makes the
tensors and one that uses the sums, with a single collective in between.

## Why it hurts
A small collective costs its latency whatever it carries, and each turn of the loop waits for it.

## When it is wrong
The tensors differ in shape or type from turn to turn.
"""

import re
from collections.abc import Sequence

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import free
from eroica.fix.edits import Edits
from eroica.fix.facts import collectives, short
from eroica.fix.tree import Source, body_of, called, code, dotted, names, walk

CODE = "COM002"
ANSWERS = frozenset(
    {"excessive_small_collectives", "logging_overhead", "host_sync", "redundant_gradient_sync"}
)
LABEL = "review"
FIXES = (
    Example(
        category="excessive_small_collectives",
        before="""\
import torch
import torch.distributed as dist

class Meter:
    def update(self, losses, parts):
        for i, name in enumerate(NAMES):
            picked = losses[parts == i]
            value = torch.tensor([picked.sum().item(), float(len(picked))])
            dist.all_reduce(value)  # <-- here
            self.sums[name] = (value[0] / value[1]).item()
""",
        after="""\
import torch
import torch.distributed as dist

class Meter:
    def update(self, losses, parts):
        values = []
        for i, name in enumerate(NAMES):
            picked = losses[parts == i]
            value = torch.tensor([picked.sum().item(), float(len(picked))])
            values.append(value)
        stacked = torch.stack(values)
        dist.all_reduce(stacked)
        for (i, name), value in zip(enumerate(NAMES), stacked):
            self.sums[name] = (value[0] / value[1]).item()
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
import torch
import torch.distributed as dist

def share(rows):
    for i, row in enumerate(rows):
        value = torch.tensor(row.tolist())
        dist.all_reduce(value)  # <-- here
        print(i, value)
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Split the loop; None where a turn depends on the one before it."""
    for source, loop in context.loops():
        made = collectives(source, loop.body)
        if not isinstance(loop, cst.For) or loop.orelse is not None or len(made) != 1:
            continue
        if short(source, made[0]) not in ("all_reduce", "reduce"):
            continue
        result = _in_two(context, source, loop, made[0])
        if result is not None:
            return result
    return None


def _rest(call: cst.Call) -> str:
    """The arguments after the tensor, as text."""
    return "".join(
        ", " + (f"{a.keyword.value}=" if a.keyword else "") + code(a.value) for a in call.args[1:]
    )


def _in_two(context: Context, source: Source, loop: cst.For, call: cst.Call) -> FixerResult | None:
    """Any loop over the same things twice: what makes the tensors, then what uses the sums."""
    body = list(body_of(loop))
    at = next((i for i, s in enumerate(body) if called(s) is call), None)
    name = dotted(call.args[0].value) if call.args else ""
    if not at or not name or "." in name or not body[at + 1 :] or not _TWICE.match(code(loop.iter)):
        return None
    before, after = body[:at], body[at + 1 :]
    if not _is_small(source, before, name) or _leaves(loop):
        return None
    made = {n for s in before for n in _bound(s)} - {name}
    used_again = {n for s in after for n in names(s)}
    own = names(loop.target)
    if (made & used_again) - own or (_bound_all(after) & {n for s in before for n in names(s)}):
        return None
    edits = Edits(source)
    torch = edits.module("torch", loop)
    function = source.function_of(loop)
    rows, stacked = free(f"{name}s", function, source), free("stacked", function, source)
    target, table = code(loop.target), code(loop.iter)
    left = f"({target})" if isinstance(loop.target, cst.Tuple) and not loop.target.lpar else target
    first = loop.with_changes(
        body=cst.IndentedBlock(body=[*before, *edits.statements(f"{rows}.append({name})")]),
        leading_lines=(),
    )
    copied = f"{stacked}.cpu()" if f"{name}.item()" in code(loop.body) else stacked
    new = edits.statements(
        f"{rows} = []\n__FIRST__\n{stacked} = {torch}.stack({rows})\n"
        f"{code(call.func)}({stacked}{_rest(call)})\n"
        f"for {left}, {name} in zip({table}, {copied}):\n    __AFTER__\n",
        FIRST=[first],
        AFTER=[after[0].with_changes(leading_lines=()), *after[1:]],
    )
    edits.replace(loop, new)
    return context.result(
        edits,
        why=f"{source.path}:{source.line(loop)} makes one small collective per turn; one carries "
        "them all.",
        behaviour="The same sums, from one collective; the tensors must agree in shape and type.",
        score=0.85 * context.closeness(source, loop),
    )


_TWICE = re.compile(
    r"(?:enumerate|range|sorted|zip|reversed|list|tuple)\(|[\w.]+$|[\w.]+\.(?:items|values|keys)\(\)$"
)


def _is_small(source: Source, before: Sequence[cst.CSTNode], name: str) -> bool:
    """The tensor is made in the loop, from numbers whose count is written there."""
    for statement in before:
        for target, value, _ in source.assignments(statement):
            if target == name and isinstance(value, cst.Call):
                func = source.full_name(value.func)
                text = code(value)
                if func in ("torch.tensor", "torch.as_tensor", "torch.stack"):
                    return " for " not in text and "tolist" not in text
                return bool(re.search(r"\.(?:mean|sum|norm|max|min)\(\)[\w.()]*$", text))
    return False


def _leaves(loop: cst.For) -> bool:
    return any(isinstance(n, cst.Break | cst.Continue | cst.Return) for n in walk(loop.body))


def _bound(statement: cst.CSTNode) -> set[str]:
    """The plain names that a statement gives a value to."""
    found: set[str] = set()
    for node in walk(statement):
        if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.For):
            target = node.target
            found |= names(target) if isinstance(target, cst.Name | cst.Tuple) else set()
    return found


def _bound_all(statements: Sequence[cst.CSTNode]) -> set[str]:
    return {name for statement in statements for name in _bound(statement)}
