"""DAT005 Send arrays between processes, not lists.

## What it does
Replaces `x.tolist()` in what is put into a queue by `x.numpy()`.

## Why it hurts
A nested list is pickled number by number and built again on the other side; an array is one copy.

## When it is wrong
The consumer needs lists.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import code, find

CODE = "DAT005"
ANSWERS = frozenset({"dataloader_bottleneck", "python_overhead", "straggler_data_loading"})
LABEL = "review"
FIXES = (
    Example(
        category="dataloader_bottleneck",
        before="""\
import torch

def produce(q, x, y):
    q.put((x.tolist(), y.tolist()))  # <-- here

def consume(q):
    x, y = q.get()
    return torch.as_tensor(x), torch.tensor(y)
""",
        after="""\
import torch

def produce(q, x, y):
    q.put((x.numpy(), y.numpy()))

def consume(q):
    x, y = q.get()
    return torch.as_tensor(x), torch.tensor(y)
""",
    ),
)
KEEPS = (
    Example(
        category="dataloader_bottleneck",
        before="""\
def produce(q, x):
    q.put(x)  # <-- here
""",
    ),
)


_BUILDS = re.compile(r"\b(?:as_tensor|tensor|FloatTensor|LongTensor)\(")


def fix(context: Context) -> FixerResult | None:
    """Send arrays; None where no list of a tensor is put into a queue, or nobody builds tensors."""
    for source, call in context.every(cst.Call, 0.4):
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in (
            "put",
            "put_nowait",
            "send",
        ):
            continue
        lists = [
            c
            for a in call.args
            for c in find(a.value, cst.Call)
            if isinstance(c.func, cst.Attribute) and c.func.attr.value == "tolist"
        ]
        if not lists or not any(_BUILDS.search(file.text) for file in context.files):
            continue
        edits = Edits(source)
        for item in lists:
            assert isinstance(item.func, cst.Attribute)
            edits.replace(item.func.attr, cst.Name("numpy"))
        return context.result(
            edits,
            why=f"{source.path}:{source.line(call)} `{code(call)}` pickles every number by itself.",
            behaviour="The consumer gets arrays of the same numbers in their own precision.",
            score=0.9 * context.closeness(source, call),
        )
    return None
