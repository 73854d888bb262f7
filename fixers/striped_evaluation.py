"""SER002 Let each rank evaluate every n-th batch.

## What it does
Where one rank alone evaluates and returns a ratio of counts, lets each rank take every `world`-th
turn of the loop, adds the counts up over the ranks, and makes the call on all of them.

## Why it hurts
One rank works while all others wait in the next collective.

## When it is wrong
The ranks do not hold the same data to evaluate, or the metric is no ratio of sums.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import free, job_device
from eroica.fix.edits import Edits
from eroica.fix.facts import conjuncts, joined
from eroica.fix.moves import call_sites
from eroica.fix.ranks import ranked
from eroica.fix.steps import ratio_of
from eroica.fix.tree import Function, Source, code, dotted, find, main_block, single

CODE = "SER002"
ANSWERS = frozenset({"serialized_on_rank0", "straggler_compute", "straggler_data_loading"})
LABEL = "review"
FIXES = (
    Example(
        category="serialized_on_rank0",
        before="""\
import torch
import torch.distributed as dist

class Trainer:
    def evaluate(self):
        total, n = 0.0, 0
        for x, y in self.held_out:
            total += (self.net(x) - y).pow(2).sum().item()  # <-- here
            n += len(x)
        return total / n

    def fit(self, data):
        for step, x in enumerate(data):
            self.model(x).mean().backward()
            if self.rank == 0 and step % 20 == 0:
                print(step, self.evaluate())
""",
        after="""\
import itertools
import torch
import torch.distributed as dist

class Trainer:
    def evaluate(self):
        total, n = 0.0, 0
        for x, y in itertools.islice(self.held_out, dist.get_rank(), None, dist.get_world_size()):
            total += (self.net(x) - y).pow(2).sum().item()
            n += len(x)
        counts = torch.tensor([float(total), float(n)], dtype=torch.float64)
        dist.all_reduce(counts)
        total, n = counts.tolist()
        return total / n

    def fit(self, data):
        for step, x in enumerate(data):
            self.model(x).mean().backward()
            if step % 20 == 0:
                evaluate_of_all = self.evaluate()
            if self.rank == 0 and step % 20 == 0:
                print(step, evaluate_of_all)
""",
    ),
)
KEEPS = (
    Example(
        category="serialized_on_rank0",
        before="""\
import torch.distributed as dist

def evaluate(net, rows):
    total, n = 0.0, 0
    for x in rows:
        total += net(x).item()  # <-- here
        n += 1
    return total / n

def fit(net, rows, data):
    for step, x in enumerate(data):
        net(x).backward()
        if step % 20 == 0:
            print(evaluate(net, rows))
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Divide the turns; None where no rank evaluates a ratio of counts alone."""
    for source, function in context.every(cst.FunctionDef, 0.6):
        ratio = ratio_of(function)
        sites = call_sites(function, context.files) if ratio is not None else []
        if ratio is None or len(sites) != 1:
            continue
        home, call = sites[0]
        guard = next(
            (a for a in home.ancestors(call) if isinstance(a, cst.If) and _is_on_rank(home, a)),
            None,
        )
        loops = [n for n in main_block(function) if isinstance(n, cst.For)] or [
            loop for loop in find(function.body, cst.For) if not source.loops(loop)
        ]
        if guard is None or guard.orelse is not None or len(loops) != 1:
            continue
        result = _divide(context, source, function, ratio, loops[0], home, call, guard)
        if result is not None:
            return result
    return None


def _is_on_rank(source: Source, node: cst.If) -> bool:
    return any(ranked(source, part) for part in conjuncts(node.test))


def _divide(
    context: Context,
    source: Source,
    function: Function,
    ratio: tuple[cst.CSTNode, str, str],
    loop: cst.For,
    home: Source,
    call: cst.Call,
    guard: cst.If,
) -> FixerResult | None:
    if dotted(getattr(loop.iter, "func", None)) == "range":
        return None
    there, here = Edits(source), Edits(home)
    if home is source:
        here = there
    itertools, dist = there.module("itertools", loop), there.module("torch.distributed", loop)
    torch, device = there.module("torch", loop), job_device(context, source)
    last, first, second = ratio
    there.replace_text(
        loop.iter,
        f"{itertools}.islice({code(loop.iter)}, {dist}.get_rank(), None, {dist}.get_world_size())",
    )
    there.before(
        last,
        f"counts = {torch}.tensor([float({first}), float({second})], dtype={torch}.float64"
        f"{device})\n{dist}.all_reduce(counts)\n{first}, {second} = counts.tolist()\n",
    )
    _call_on_all(here, home, function, call, guard)
    return context.result(
        *{id(e): e for e in (there, here)}.values(),
        why=f"{home.path}:{home.line(call)} evaluates on one rank while the others wait.",
        behaviour="Each rank evaluates its share of the batches; the ratio is over all of them.",
        score=0.8 if context.cause.category == "serialized_on_rank0" else 0.7,
    )


def _call_on_all(
    edits: Edits, home: Source, function: Function, call: cst.Call, guard: cst.If
) -> None:
    """Make the call before the guard, under what of its condition is the same on all ranks."""
    statement = home.statement_of(call)
    small = single(statement) if statement is not None else None
    if isinstance(small, cst.Assign) and small.value is call and statement is not None:
        line = code(statement)
        edits.remove(statement)
    else:
        name = free(f"{function.name.value}_of_all", home.function_of(guard), home)
        line = f"{name} = {code(call)}"
        edits.replace(call, cst.Name(name))
    alike = [part for part in conjuncts(guard.test) if not ranked(home, part)]
    edits.before(guard, f"if {joined(alike)}:\n    {line}" if alike else line)
