"""DDP005 Leave the size of DDP's buckets to torch.

## What it does
Removes `bucket_cap_mb` from the DistributedDataParallel constructor where it is less than 1 MB.

## Why it hurts
DDP reduces gradients bucket by bucket. With buckets of a few kilobytes a step sends dozens of
little messages, each as slow as the network's latency, where one would carry them all.

## When it is wrong
Small buckets were chosen to begin the exchange early, on a network of low latency, and measured.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import wrapping_calls
from eroica.fix.tree import Source, argument

CODE = "DDP005"
ANSWERS = frozenset({"excessive_small_collectives", "redundant_gradient_sync"})
LABEL = "review"
FIXES = (
    Example(
        category="excessive_small_collectives",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

def build(net):
    return DDP(net, bucket_cap_mb=0.01)  # <-- here
""",
        after="""\
from torch.nn.parallel import DistributedDataParallel as DDP

def build(net):
    return DDP(net)
""",
    ),
    Example(
        category="excessive_small_collectives",
        before="""\
import torch

BUCKET_MB = 1 / 1024

class Trainer:
    def __init__(self, net):
        self.model = torch.nn.parallel.DistributedDataParallel(  # <-- here
            net,
            bucket_cap_mb=BUCKET_MB,
            static_graph=True,
        )
""",
        after="""\
import torch

BUCKET_MB = 1 / 1024

class Trainer:
    def __init__(self, net):
        self.model = torch.nn.parallel.DistributedDataParallel(
            net,
            static_graph=True,
        )
""",
    ),
)
KEEPS = (
    Example(
        category="excessive_small_collectives",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(net, bucket_cap_mb=50)  # <-- here
""",
    ),
)

_SMALL_MB = 1.0


def fix(context: Context) -> FixerResult | None:
    """Drop the argument; None where it is usual, or its value cannot be told."""
    for source in context.files:
        for call in wrapping_calls(source):
            cap = argument(call, "bucket_cap_mb")
            size = _number(source, cap.value) if cap is not None else None
            if size is None or size >= _SMALL_MB:
                continue
            edits = Edits(source)
            edits.drop_argument(call, "bucket_cap_mb")
            return context.result(
                edits,
                why=f"{source.path}:{source.line(call)} makes buckets of {size:.3g} MB: DDP sends "
                "one message for each of them in every step.",
                behaviour="Gradients go in buckets of 25 MB, and the first ones later.",
                score=0.9 if context.is_near(source, call) else 0.6,
            )
    return None


def _number(source: Source, value: cst.BaseExpression) -> float | None:
    """The value of a literal, a quotient of literals, or a name bound to one once."""
    if isinstance(value, cst.Integer | cst.Float):
        return float(value.evaluated_value)
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide):
        parts = (_number(source, value.left), _number(source, value.right))
        return parts[0] / parts[1] if parts[0] is not None and parts[1] else None
    if isinstance(value, cst.Name):
        bound = [given for target, given, _ in source.assignments() if target == value.value]
        return _number(source, bound[0]) if len(bound) == 1 else None
    return None
