"""DDP001 Let DDP look for parameters that a rank did not use.

## What it does
Adds `find_unused_parameters=True` to the DistributedDataParallel constructor, where `forward`
leaves out a part of the model depending on the batch.

## Why it hurts
DDP reduces a bucket when all its parameters have a gradient. A rank whose batch skips a branch
never completes that bucket, and the others wait for it.

## When it is wrong
The search costs a pass over the graph each step. Running the branch on a dummy input, or
multiplying its output by zero, is cheaper where the model allows it.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import ends_early, wrapping_calls
from eroica.fix.tree import Source, argument, code, find

CODE = "DDP001"
ANSWERS = frozenset(
    {"divergent_control_flow", "collective_count_mismatch", "rank_conditional_collective"}
)
LABEL = "review"
FIXES = (
    Example(
        category="divergent_control_flow",
        before="""\
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(nn.Module):
    def forward(self, x, image):
        h = self.text(x)
        if image.any():  # <-- here
            h = h + self.image(image)
        return h

model = DDP(Net())
""",
        after="""\
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(nn.Module):
    def forward(self, x, image):
        h = self.text(x)
        if image.any():
            h = h + self.image(image)
        return h

model = DDP(Net(), find_unused_parameters=True)
""",
    ),
)
KEEPS = (
    Example(
        category="divergent_control_flow",
        before="""\
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(nn.Module):
    def forward(self, x):
        return self.text(x)  # <-- here

model = DDP(Net())
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Set the flag; None where no forward depends on data or no DDP is built."""
    branch = _branch(context)
    if branch is None:
        return None
    for source in context.files:
        for call in wrapping_calls(source):
            flag = argument(call, "find_unused_parameters")
            if flag is not None and code(flag.value) == "True":
                continue
            edits = Edits(source)
            edits.set_argument(call, "find_unused_parameters", "True")
            where, line = branch
            return context.result(
                edits,
                why=f"{where.path}:{line} uses a part of the model on some batches only, so ranks "
                "differ in which gradients are ready.",
                behaviour="DDP walks the graph after each forward; unused parameters count as "
                "zero.",
                score=0.8
                if any(
                    s.source is where
                    and s.function is not None
                    and s.function.name.value == "forward"
                    for s in context.spots
                )
                else 0.4,
            )
    return None


def _branch(context: Context) -> tuple[Source, int] | None:
    """A forward that calls a submodule under a condition: a named one, else any."""
    found = []
    for source in context.files:
        for function in find(source.module, cst.FunctionDef):
            owner = source.class_of(function)
            if owner is None or not any("Module" in code(base.value) for base in owner.bases):
                continue
            named = any(s.source is source and s.function is function for s in context.spots)
            found += [
                (not named, source, source.line(node))
                for node in find(function.body, cst.If)
                if _leaves_out(source, node)
            ]
    if not found:
        return None
    _, source, line = min(found, key=lambda item: (item[0], item[2]))
    return source, line


def _leaves_out(source: Source, node: cst.If) -> bool:
    """A branch that calls a submodule, or skips one in a loop over submodules."""
    if any(code(c.func).startswith("self.") for c in find(node.body, cst.Call)):
        return True
    loops = source.loops(node)
    return (
        bool(loops)
        and isinstance(loops[0], cst.For)
        and "self." in code(loops[0].iter)
        and isinstance(ends_early(node.body), cst.Continue)
    )
