"""SER001 Let all ranks evaluate their share.

## What it does
Moves the evaluation out of the condition on the rank, gives its loader a `DistributedSampler`, and
adds up the counts of all ranks in the function that returns their ratio.

## Why it hurts
One rank works while all others wait in the barrier behind it.

## When it is wrong
The data set cannot be divided, or the metric is no ratio of sums.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import job_device
from eroica.fix.edits import Edits
from eroica.fix.facts import conjuncts, definitions
from eroica.fix.moves import call_sites, regroup
from eroica.fix.ranks import ranked
from eroica.fix.steps import ratio_of
from eroica.fix.tree import Function, Source, argument, code, dotted, find, names

CODE = "SER001"
ANSWERS = frozenset({"serialized_on_rank0", "straggler_data_loading", "straggler_compute"})
LABEL = "review"
FIXES = (
    Example(
        category="serialized_on_rank0",
        before="""\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

def evaluate(model, loader):
    good = total = 0
    for x, y in loader:  # <-- here
        good += (model(x) == y).sum().item()
        total += len(y)
    return good / total

def train(rank, model, ds):
    val = DataLoader(ds, 50)
    for step in range(100):
        if step % 20 == 0:
            if rank == 0:
                score = evaluate(model, val)
                print(score)
            dist.barrier()
""",
        after="""\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

def evaluate(model, loader):
    good = total = 0
    for x, y in loader:
        good += (model(x) == y).sum().item()
        total += len(y)
    counts = torch.tensor([float(good), float(total)], dtype=torch.float64)
    dist.all_reduce(counts)
    good, total = counts.tolist()
    return good / total

def train(rank, model, ds):
    val = DataLoader(ds, 50, sampler=DistributedSampler(ds, shuffle=False))
    for step in range(100):
        if step % 20 == 0:
            score = evaluate(model, val)
            if rank == 0:
                print(score)
            dist.barrier()
""",
    ),
)
KEEPS = (
    Example(
        category="serialized_on_rank0",
        before="""\
def evaluate(model, loader):
    best = 0
    for x, y in loader:  # <-- here
        best = max(best, model(x))
    return best

def train(rank, model, val):
    if rank == 0:
        print(evaluate(model, val))
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Share the evaluation; None where it is no ratio of counts over a loader."""
    for source in context.files:
        for function in find(source.module, cst.FunctionDef):
            ratio = ratio_of(function)
            sites = call_sites(function, context.files) if ratio is not None else []
            if ratio is None or len(sites) != 1:
                continue
            home, call = sites[0]
            if not any(s.function is function for s in context.spots) and not context.is_named(
                home, call
            ):
                continue
            result = _share(context, source, function, ratio, home, call)
            if result is not None:
                return result
    return None


def _share(
    context: Context,
    source: Source,
    function: Function,
    ratio: tuple[cst.CSTNode, str, str],
    home: Source,
    call: cst.Call,
) -> FixerResult | None:
    guard = next(
        (
            a
            for a in home.ancestors(call)
            if isinstance(a, cst.If) and any(ranked(home, p) for p in conjuncts(a.test))
        ),
        None,
    )
    loader = _loader(context, home, function, call)
    if guard is None or loader is None:
        return None
    where, made = loader
    edits = {path: Edits(context.sources[path]) for path in {source.path, home.path, where.path}}
    last, first, second = ratio
    dist = edits[source.path].module("torch.distributed", last)
    torch = edits[source.path].module("torch", last)
    device = job_device(context, source)
    edits[source.path].before(
        last,
        f"""\
counts = {torch}.tensor([float({first}), float({second})], dtype={torch}.float64{device})
{dist}.all_reduce(counts)
{first}, {second} = counts.tolist()
""",
    )
    if not _divide(edits[where.path], made):
        return None
    name = function.name.value
    if not regroup(
        edits[home.path],
        guard,
        "rank",
        lambda s: any(
            f is function
            for c in find(s, cst.Call)
            if name in code(c.func)
            for _, f in definitions(home, c, context.files)
        ),
    ):
        return None
    return context.result(
        *edits.values(),
        why=f"{home.path}:{home.line(call)} evaluates on one rank while the others wait.",
        behaviour="Each rank evaluates its share; samples that pad the last batch count twice.",
        score=0.9 if context.cause.category == "serialized_on_rank0" else 0.75,
    )


def _loader(
    context: Context, home: Source, function: Function, call: cst.Call
) -> tuple[Source, cst.Call] | None:
    """The constructor of the DataLoader that the call passes for the function's loop."""
    params = [p.name.value for p in function.params.params]
    if params[:1] == ["self"] and isinstance(call.func, cst.Attribute):
        params = params[1:]
    over = {n for loop in find(function.body, cst.For) for n in names(loop.iter)}
    for number, param in enumerate(params):
        if param not in over:
            continue
        arg = argument(call, param, number)
        name = dotted(arg.value) if arg is not None else ""
        for target, value, _ in home.assignments():
            if target == name and isinstance(value, cst.Call) and value.args:
                if home.full_name(value.func).rpartition(".")[2] == "DataLoader" and (
                    argument(value, "sampler") is None and argument(value, "shuffle") is None
                ):
                    return home, value
    return None


def _divide(edit: Edits, made: cst.Call) -> bool:
    """Give the loader a sampler over its own data set."""
    edit.add_import("from torch.utils.data import DistributedSampler")
    data = made.args[0].value
    if dotted(data):
        edit.set_argument(made, "sampler", f"DistributedSampler({code(data)}, shuffle=False)")
        return True
    statement = edit.source.statement_of(made)
    if statement is None:
        return False
    name = "evaluated" if "evaluated" not in names(edit.source.module) else "evaluated_set"
    edit.before(statement, f"{name} = {code(data)}")
    edit.replace_text(data, name)
    edit.set_argument(made, "sampler", f"DistributedSampler({name}, shuffle=False)")
    return True
