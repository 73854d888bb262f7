"""BAR001 Take a barrier out of the training step.

## What it does
Removes `dist.barrier()` from the body of a training loop, and from the helper - a timer, say - that
the cause names, with the switch that it stands under.

## Why it hurts
The gradient reduction already holds the ranks together once a step. A barrier holds them again,
for the slowest one, and keeps them from running ahead between reductions.

## When it is wrong
It orders something outside torch: files that one rank writes and others read in the same step.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import calls_here, definitions, is_barrier
from eroica.fix.loops import step_loops
from eroica.fix.ranks import ranked
from eroica.fix.tree import Source, body_of, called, code, find, walk

CODE = "BAR001"
ANSWERS = frozenset({"excessive_barriers", "host_sync", "excessive_small_collectives"})
LABEL = "review"
FIXES = (
    Example(
        category="excessive_barriers",
        before="""\
import torch.distributed as dist

def train(model, data):
    for x in data:
        dist.barrier()  # <-- here
        model(x).backward()
        dist.barrier()
""",
        after="""\
import torch.distributed as dist

def train(model, data):
    for x in data:
        model(x).backward()
""",
    ),
    Example(
        category="host_sync",
        before="""\
import torch

def train(model, data):
    for x in data:
        model(x).backward()
        torch.cuda.synchronize()  # <-- here
""",
        after="""\
import torch

def train(model, data):
    for x in data:
        model(x).backward()
""",
    ),
    Example(
        category="excessive_barriers",
        before="""\
import time
import torch.distributed as dist

class Clock:
    def now(self):
        if self.in_step:
            dist.barrier()  # <-- here
        return time.perf_counter()

    def start(self, name):
        self.began[name] = self.now()
""",
        after="""\
import time
import torch.distributed as dist

class Clock:
    def now(self):
        return time.perf_counter()

    def start(self, name):
        self.began[name] = self.now()
""",
    ),
)
KEEPS = (
    Example(
        category="excessive_barriers",
        before="""\
import torch.distributed as dist

def train(model, data):
    for x in data:
        model(x).backward()
    dist.barrier()  # <-- here
""",
    ),
    Example(
        category="excessive_barriers",
        before="""\
import torch.distributed as dist

def train(model, data, rank):
    for x in data:
        model(x).backward()
        if rank == 0:
            save(model)
        dist.barrier()  # <-- here
""",
    ),
)
_FILES = re.compile(
    r"\b(save|write|dump|open|unlink|rename|replace|mkdir|makedirs|rmtree|copy)\b\w*\("
)
_SYNC = re.compile(r"torch\.(cuda|xpu|mps|npu)\.(synchronize|empty_cache|ipc_collect)")


def fix(context: Context) -> FixerResult | None:
    """Remove them; None where no training loop waits without need."""
    edits: dict[str, Edits] = {}
    lines: list[str] = []
    score = 0.0
    for source in context.files:
        for loop in step_loops(source, context.files):
            for home, line in _waits(context, source, loop.body):
                edits.setdefault(home.path, Edits(home)).remove(line)
                lines.append(f"{home.path}:{home.line(line)}")
                score = max(score, context.closeness(home, line))
    if not lines and context.cause.category == "excessive_barriers":
        for home, line in _named(context):
            edits.setdefault(home.path, Edits(home)).remove(line)
            lines.append(f"{home.path}:{home.line(line)}")
            score = max(score, context.closeness(home, line))
    if not lines or score < 0.6:
        return None
    return context.result(
        *edits.values(),
        why=f"{', '.join(dict.fromkeys(lines))} waits for all ranks or the device in every step.",
        behaviour="Ranks may run ahead of each other up to the next collective; times measured "
        "between barriers change their meaning.",
        score=0.9 * score,
    )


def _named(context: Context) -> list[tuple[Source, cst.CSTNode]]:
    """Barriers in the functions that the cause names, each with a switch that holds only it."""
    found: list[tuple[Source, cst.CSTNode]] = []
    for source, line in context.every(cst.SimpleStatementLine, 0.8):
        call = called(line)
        function = source.function_of(line)
        if call is None or function is None or not is_barrier(source, call) or call.args:
            continue
        if any(isinstance(n, cst.For | cst.While) for n in walk(function.body)):
            continue  # it stands beside a loop, not in a step
        if _FILES.search(code(function.body)):
            continue
        above = source.enclosing(line, cst.If)
        if above is None:
            found.append((source, line))
        elif isinstance(above, cst.If) and above.orelse is None and len(body_of(above)) == 1:
            if not ranked(source, above.test):
                found.append((source, above))
    return found


def _waits(
    context: Context, source: Source, body: cst.CSTNode, depth: int = 1
) -> list[tuple[Source, cst.CSTNode]]:
    """Barrier and synchronize lines of a step that no file depends on."""
    found: list[tuple[Source, cst.CSTNode]] = []
    for line in find(body, cst.SimpleStatementLine):
        call = called(line)
        if call is None:
            continue
        wanted = (
            _SYNC.fullmatch(source.full_name(call.func))
            if (context.cause.category != "excessive_barriers")
            else None
        )
        if wanted or (is_barrier(source, call) and context.cause.category != "host_sync"):
            around = [code(s) for s in source.siblings(line) if s is not line]
            if (
                not any(_FILES.search(text) for text in around)
                and source.enclosing(line, cst.If) is None
            ):
                found.append((source, line))
    if depth:
        for call in calls_here(body):
            for other, function in definitions(source, call, context.files):
                found += _waits(context, other, function.body, depth - 1)
    return found
