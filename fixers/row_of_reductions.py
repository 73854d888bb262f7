"""COM005 Reduce a row of tensors in one collective.

## What it does
Where several tensors are reduced one after the other by the same collective, puts them into one,
reduces that, and writes the results back.

## Why it hurts
Each call costs its latency, and waits for the slowest rank, whatever it carries.

## When it is wrong
The tensors differ in type, or one of them is made from the result of another.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import free
from eroica.fix.edits import Edits
from eroica.fix.facts import is_collective, short
from eroica.fix.tree import Source, called, code, dotted

CODE = "COM005"
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

def share(loss, right, seen):
    dist.all_reduce(loss)  # <-- here
    dist.all_reduce(right)
    dist.all_reduce(seen)
    return loss / seen, right / seen
""",
        after="""\
import torch
import torch.distributed as dist

def share(loss, right, seen):
    parts = [loss, right, seen]
    flat = torch.cat([part.detach().reshape(-1) for part in parts])
    dist.all_reduce(flat)
    for part, new in zip(parts, flat.split([part.numel() for part in parts])):
        part.detach().copy_(new.view_as(part))
    return loss / seen, right / seen
""",
    ),
)
KEEPS = (
    Example(
        category="excessive_small_collectives",
        before="""\
import torch
import torch.distributed as dist

def share(loss, seen):
    dist.all_reduce(loss)  # <-- here
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return loss / seen
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Join them; None where no three calls of one kind stand in a row."""
    for source, line in context.every(cst.SimpleStatementLine, 0.6):
        row = _row(source, line)
        if len(row) < 3:
            continue
        calls = [called(item) for item in row]
        first = calls[0]
        assert first is not None
        function = source.function_of(line)
        parts, flat = free("parts", function, source), free("flat", function, source)
        part, new_part = free("part", function, source), free("new", function, source)
        rest = "".join(f", {code(a).rstrip(', ')}" for a in first.args[1:])
        tensors = ", ".join(code(call.args[0].value) for call in calls if call is not None)
        edits = Edits(source)
        torch = edits.module("torch", line)
        new = edits.statements(f"""\
{parts} = [{tensors}]
{flat} = {torch}.cat([{part}.detach().reshape(-1) for {part} in {parts}])
{code(first.func)}({flat}{rest})
for {part}, {new_part} in zip({parts}, {flat}.split([{part}.numel() for {part} in {parts}])):
    {part}.detach().copy_({new_part}.view_as({part}))
""")
        edits.replace(row[0], new)
        for item in row[1:]:
            edits.remove(item)
        return context.result(
            edits,
            why=f"{source.path}:{source.line(row[0])} makes {len(row)} collectives in a row; one "
            "carries them all.",
            behaviour="The same sums, from one collective; the tensors must agree in type.",
            score=0.85 * max(context.closeness(source, item) for item in row),
        )
    return None


def _row(source: Source, line: cst.SimpleStatementLine) -> list[cst.BaseStatement]:
    """The longest run of like reductions that begins with a line."""
    row: list[cst.BaseStatement] = []
    like = ""
    for item in (line, *source.following(line)):
        call = called(item)
        if call is None or not is_collective(source, call) or not call.args:
            break
        name = short(source, call) + "".join(code(a).rstrip(", ") for a in call.args[1:])
        if short(source, call) != "all_reduce" or (like and name != like) or "async_op" in name:
            break
        if not dotted(call.args[0].value):
            break
        like = name
        row.append(item)
    return row
