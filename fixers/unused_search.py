"""DDP003 Do not search for unused parameters.

## What it does
Removes `find_unused_parameters=True` from the DistributedDataParallel constructor where no
`forward` of the project leaves a part of the model out.

## Why it hurts
DDP walks the whole graph after each forward and adds a reduction of the bitmap of used
parameters.

## When it is wrong
Some parameters get no gradient in some steps: DDP then raises an error in the next step.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import wrapping_calls
from eroica.fix.tree import argument, code, find

CODE = "DDP003"
ANSWERS = frozenset({"redundant_gradient_sync", "debug_setting_left_on"})
LABEL = "review"
FIXES = (
    Example(
        category="redundant_gradient_sync",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

def build(net):
    model = DDP(net, find_unused_parameters=True)  # <-- here
    return model
""",
        after="""\
from torch.nn.parallel import DistributedDataParallel as DDP

def build(net):
    model = DDP(net)
    return model
""",
    ),
    Example(
        category="redundant_gradient_sync",
        before="""\
import torch

def build(net):
    return torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)  # <-- here
""",
        after="""\
import torch

def build(net):
    return torch.nn.parallel.DistributedDataParallel(net)
""",
    ),
)
KEEPS = (
    Example(
        category="redundant_gradient_sync",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

class Net:
    def forward(self, x):
        if x.any():
            x = self.branch(x)
        return x

model = DDP(Net(), find_unused_parameters=True)  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Drop the argument; None where it is needed or not given."""
    branches = any(
        code(call.func).startswith("self.")
        for source in context.files
        for function in source.functions_named("forward")
        for node in find(function.body, cst.If)
        for call in find(node.body, cst.Call)
    )
    for source in context.files:
        for call in wrapping_calls(source):
            flag = argument(call, "find_unused_parameters")
            if flag is None or code(flag.value) != "True" or branches:
                continue
            edits = Edits(source)
            edits.drop_argument(call, "find_unused_parameters")
            return context.result(
                edits,
                why=f"{source.path}:{source.line(call)} searches for unused parameters in every "
                "step; "
                "every forward uses them all.",
                behaviour="A parameter without a gradient becomes an error in the next step.",
                score=0.8 if context.is_near(source, call) else 0.6,
            )
    return None
