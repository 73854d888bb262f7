"""EVL001 Evaluate on one rank with the module, not with its DDP wrapper.

## What it does
Where only some ranks run the model - `if rank == 0: evaluate(model)` - passes `model.module`.

## Why it hurts
The wrapper broadcasts the buffers of the module (batch norm has some) in its forward pass, and
answers `join`: one rank alone waits there for the others.

## When it is wrong
The forward pass of the module has collectives of its own, as one that is sharded does.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import backward_call, calls_here, definitions, wrapped_models
from eroica.fix.moves import call_sites
from eroica.fix.ranks import ranked
from eroica.fix.tree import Source, dotted, find

CODE = "EVL001"
ANSWERS = frozenset(
    {
        "rank_conditional_collective",
        "divergent_control_flow",
        "collective_count_mismatch",
        "collective_order_mismatch",
        "checkpoint_collective_on_one_rank",
        "serialized_on_rank0",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="rank_conditional_collective",
        symptom="stuck",
        before="""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def evaluate(model, x):
    with torch.no_grad():
        return model(x).mean().item()  # <-- here

def main(net, data, rank):
    model = DDP(net)
    for x in data:
        model(x).sum().backward()
        if rank == 0:
            print(evaluate(model, x))
    dist.barrier()
""",
        after="""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def evaluate(model, x):
    with torch.no_grad():
        return model(x).mean().item()

def main(net, data, rank):
    model = DDP(net)
    for x in data:
        model(x).sum().backward()
        if rank == 0:
            print(evaluate(model.module, x))
    dist.barrier()
""",
    ),
    Example(
        category="rank_conditional_collective",
        symptom="stuck",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, net, rank):
        self.rank, self.model = rank, DDP(net)

    def sample(self, x):
        if self.rank == 0:
            self.model.eval()
            print(self.model(x))  # <-- here
""",
        after="""\
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, net, rank):
        self.rank, self.model = rank, DDP(net)

    def sample(self, x):
        if self.rank == 0:
            self.model.eval()
            print(self.model.module(x))
""",
    ),
    Example(
        category="rank_conditional_collective",
        symptom="stuck",
        before="""\
from torch.nn.parallel import DistributedDataParallel

class Trainer:
    def __init__(self, net, rank):
        self.rank, self.model = rank, DistributedDataParallel(net)

    def validate(self, data):
        return sum(self.model(x).mean().item() for x in data)  # <-- here

    def fit(self, data, held_out):
        for x in data:
            self.model(x).sum().backward()
            if self.rank == 0:
                print(self.validate(held_out))
""",
        after="""\
from torch.nn.parallel import DistributedDataParallel

class Trainer:
    def __init__(self, net, rank):
        self.rank, self.model = rank, DistributedDataParallel(net)

    def validate(self, data):
        return sum(self.model.module(x).mean().item() for x in data)

    def fit(self, data, held_out):
        for x in data:
            self.model(x).sum().backward()
            if self.rank == 0:
                print(self.validate(held_out))
""",
    ),
)
KEEPS = (
    Example(
        category="rank_conditional_collective",
        symptom="stuck",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

def main(net, data, rank):
    model = DDP(net)
    for x in data:
        model(x).sum().backward()  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Take the module; None where no rank runs a wrapped model alone."""
    if context.symptom not in ("stuck", "failed"):
        return None
    for source, node in context.every(cst.If, 0.4):
        if not ranked(source, node.test) or backward_call(node.body) is not None:
            continue
        wrapped = set(wrapped_models(source))
        edits = Edits(source)
        changed = _uses(context, source, node.body, wrapped)
        for use in changed:
            edits.replace_text(use, f"{dotted(use)}.module")
        if not changed:
            continue
        return context.result(
            edits,
            why=f"{source.path}:{source.line(changed[0])} runs the wrapped model on some ranks; "
            "its forward pass broadcasts buffers to all.",
            behaviour="The same forward pass, without any exchange between ranks.",
            score=0.8 * max(context.closeness(source, node), 0.7),
        )
    return None


def _uses(
    context: Context, source: Source, body: cst.CSTNode, wrapped: set[str]
) -> list[cst.BaseExpression]:
    """Where a wrapped model is called, or handed to a function that calls what it is given."""
    found: list[cst.BaseExpression] = []
    for call in calls_here(body):
        if dotted(call.func) in wrapped:
            found.append(call.func)
        for number, arg in enumerate(call.args):
            if dotted(arg.value) in wrapped and _runs(context, source, call, number, arg):
                found.append(arg.value)
        for other, function in definitions(source, call, context.files):
            if other is source and len(call_sites(function, context.files)) == 1:
                own = [c for c in calls_here(function.body) if _is_member(c, wrapped)]
                if own and backward_call(function.body) is None:
                    found += [c.func for c in own]
    return found


def _runs(context: Context, source: Source, call: cst.Call, number: int, arg: cst.Arg) -> bool:
    for _, function in definitions(source, call, context.files):
        given = [p.name.value for p in function.params.params if p.name.value != "self"]
        name = arg.keyword.value if arg.keyword is not None else ""
        name = name or (given[number] if number < len(given) else "")
        if any(dotted(inner.func) == name for inner in find(function.body, cst.Call)):
            return True
    return False


def _is_member(call: cst.Call, wrapped: set[str]) -> bool:
    """``self.model(...)``: the same in all methods, as a plain name is not."""
    return dotted(call.func) in wrapped and "." in dotted(call.func)
