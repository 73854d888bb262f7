"""DIV003 Leave a training loop together.

## What it does
Turns `while` with a condition on this rank's clock, loss or data into a loop that goes on while all
ranks would.

## Why it hurts
Ranks leave at different steps: clocks start at different moments, data differs. Who is out first
waits in the next collective of all, the others in the gradients of one more step.

## When it is wrong
The condition is the same number on all ranks, for example an agreed count of steps.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import differs, free, score_of, together, works
from eroica.fix.edits import Edits
from eroica.fix.tree import code

CODE = "DIV003"
ANSWERS = frozenset(
    {
        "divergent_control_flow",
        "uneven_inputs",
        "collective_count_mismatch",
        "rank_conditional_collective",
        "rank_exited",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="divergent_control_flow",
        before="""\
import time
import torch
import torch.distributed as dist

class Run:
    def late(self):
        return time.monotonic() - self.start > self.budget

    def train(self):
        n = 0
        while n < 1000 and not self.late():  # <-- here
            n += 1
            self.model().backward()
        return n
""",
        after="""\
import time
import torch
import torch.distributed as dist

class Run:
    def late(self):
        return time.monotonic() - self.start > self.budget

    def train(self):
        n = 0
        while True:
            go_on = torch.tensor(int(n < 1000 and not self.late()))
            dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
            if not go_on.item():
                break
            n += 1
            self.model().backward()
        return n
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import time
import torch

def step(model):
    model().backward()

def train(model, seconds):
    end = time.time() + seconds
    while time.time() < end:  # <-- here
        step(model)
""",
        after="""\
import time
import torch

def step(model):
    model().backward()

def train(model, seconds):
    end = time.time() + seconds
    while True:
        go_on = torch.tensor(int(time.time() < end))
        torch.distributed.all_reduce(go_on, op=torch.distributed.ReduceOp.MIN)
        if not go_on.item():
            break
        step(model)
""",
    ),
)
KEEPS = (
    Example(
        category="divergent_control_flow",
        before="""\
import torch

def train(model, steps):
    n = 0
    while n < steps:
        n += 1
        model().backward()  # <-- here
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import time

def wait(path):
    end = time.time() + 5
    while time.time() < end:  # <-- here
        time.sleep(0.1)
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Agree on going on; None where no loop that trains has a condition of its own."""
    for source, loop in context.every(cst.While, 0.4):
        if loop.orelse is not None or code(loop.test) in ("True", "1"):
            continue
        if not works(context, source, loop.body) or not differs(context, source, loop.test):
            continue
        score = score_of(context, source, loop.test)
        if not score:
            continue
        edits = Edits(source)
        flag = free("go_on", source.function_of(loop), source)
        lines, held = together(context, edits, loop.test, flag, "MIN")
        edits.replace(loop.test, cst.Name("True"))
        edits.before(loop.body.body[0], f"{lines}if not {held}:\n    break\n")
        return context.result(
            edits,
            why=f"{source.path}:{source.line(loop)} `while {code(loop.test)}` ends at another step "
            "on each rank.",
            behaviour="All ranks leave when the first one would; one small all-reduce more a step.",
            score=0.95 * score,
        )
    return None
