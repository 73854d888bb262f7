"""UNE002 Leave out the last, smaller batch.

## What it does
Ends `range(0, rows, batch_size)` before the part that is not a whole batch, and gives a
`DataLoader` `drop_last=True`.

## Why it hurts
Ranks or pipeline stages that reckon with whole batches wait for parts of the last one that never
come, or exchange tensors of another size.

## When it is wrong
The last rows must be seen in each epoch, or the data is smaller than one batch.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import works
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, code, dotted, find, walk

CODE = "UNE002"
ANSWERS = frozenset(
    {
        "collective_count_mismatch",
        "collective_shape_mismatch",
        "collective_order_mismatch",
        "uneven_inputs",
        "divergent_control_flow",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="collective_count_mismatch",
        before="""\
import torch.distributed as dist

class Stage:
    def take(self):
        dist.recv(self.buffer, self.index - 1)

    def train(self, batch):
        for _ in range(self.parts):
            self.take().backward()  # <-- here

def main(stage, data, batch_size):
    for at in range(0, len(data), batch_size):
        stage.train(data[at:at + batch_size])
""",
        after="""\
import torch.distributed as dist

class Stage:
    def take(self):
        dist.recv(self.buffer, self.index - 1)

    def train(self, batch):
        for _ in range(self.parts):
            self.take().backward()

def main(stage, data, batch_size):
    for at in range(0, len(data) - batch_size + 1, batch_size):
        stage.train(data[at:at + batch_size])
""",
    ),
    Example(
        category="collective_shape_mismatch",
        before="""\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

def train(model, data):
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    for x in loader:
        out = model(x)
        out.sum().backward()
        parts = [torch.empty_like(out) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, out.detach())  # <-- here
""",
        after="""\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

def train(model, data):
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data), drop_last=True)
    for x in loader:
        out = model(x)
        out.sum().backward()
        parts = [torch.empty_like(out) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, out.detach())
""",
    ),
)
KEEPS = (
    Example(
        category="collective_count_mismatch",
        before="""\
def show(data, batch_size):
    for at in range(0, len(data), batch_size):
        print(data[at:at + batch_size])  # <-- here
""",
    ),
    Example(
        category="collective_shape_mismatch",
        before="""\
from torch.utils.data import DataLoader

def train(model, data):
    for x in DataLoader(data, batch_size=32, drop_last=True):
        model(x).backward()  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Drop the tail; None where no loop that trains takes batches with one."""
    return _ranges(context) or _loaders(context)


def _ranges(context: Context) -> FixerResult | None:
    """``for at in range(0, n, size)`` whose body cuts ``data[at:at + size]``."""
    for source, loop in context.every(cst.For, 0.4):
        call = loop.iter
        if not isinstance(call, cst.Call) or dotted(call.func) != "range" or len(call.args) != 3:
            continue
        first, end, size = (code(arg.value) for arg in call.args)
        at = code(loop.target)
        cut = rf"\[\s*{re.escape(at)}\s*:\s*{re.escape(at)}\s*\+\s*{re.escape(size)}\s*\]"
        if first != "0" or size in end or not re.search(cut, code(loop.body)):
            continue
        if not works(context, source, loop.body):
            continue
        edits = Edits(source)
        edits.replace_text(call.args[1].value, f"{end} - {size} + 1")
        return _result(context, source, loop, edits, 0.6)
    return None


def _loaders(context: Context) -> FixerResult | None:
    for source, call in context.every(cst.Call, 0.4):
        if not source.full_name(call.func).endswith("DataLoader"):
            continue
        given = {a.keyword.value for a in call.args if a.keyword is not None}
        if {"batch_sampler", "drop_last"} & given or argument(call, "drop_last", 8) is not None:
            continue
        if argument(call, "batch_size", 1) is None or not _feeds_training(context, source, call):
            continue
        edits = Edits(source)
        edits.set_argument(call, "drop_last", "True")
        exact = context.cause.category == "collective_shape_mismatch"
        return _result(context, source, call, edits, 0.65 if exact else 0.4)
    return None


def _feeds_training(context: Context, source: Source, call: cst.Call) -> bool:
    """The loader, by name, is gone through by a loop that trains."""
    named = {target for target, value, _ in source.assignments() if value is call}
    return any(
        works(context, source, loop.body)
        and any(dotted(node) in named for node in walk(loop.iter) if dotted(node))
        for loop in find(source.module, cst.For)
    )


def _result(
    context: Context, source: Source, node: cst.CSTNode, edits: Edits, score: float
) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(node)} ends an epoch with a batch that is not whole; "
        "ranks that count on whole ones wait for the rest.",
        behaviour="The rows of the last, smaller batch are left out of each epoch.",
        score=score,
    )
