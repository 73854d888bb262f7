"""UNE001 Let ranks run out of data at different steps.

## What it does
Wraps the training loop in `with model.join():` where the model is a DistributedDataParallel and
the loop has no other collectives; otherwise ends the loop on all ranks when the first has no
batch left.

## Why it hurts
The rank with the fewest batches leaves the loop, and the others wait for its gradients.

## When it is wrong
Batches should have been equal: then mend the sampler or the shards (`drop_last=True`), as
ranks that have finished idle until the last one is done.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import job_device, works
from eroica.fix.edits import Edits
from eroica.fix.facts import backward_call, collectives, definitions, wrapped_models
from eroica.fix.moves import leads_to_collective
from eroica.fix.tree import Loop, Source, code, dotted, find, names

CODE = "UNE001"
ANSWERS = frozenset({"uneven_inputs", "collective_count_mismatch", "divergent_control_flow"})
LABEL = "review"
FIXES = (
    Example(
        category="uneven_inputs",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, opt, batches):
    model = DDP(net)
    for x in batches:  # <-- here
        model(x).backward()
        opt.step()
""",
        after="""\
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, opt, batches):
    model = DDP(net)
    with model.join():
        for x in batches:
            model(x).backward()
            opt.step()
""",
    ),
    Example(
        category="uneven_inputs",
        before="""\
import torch
import torch.distributed as dist

def train(model, batches):
    for x in batches:  # <-- here
        loss = model(x)
        loss.backward()
        dist.all_reduce(loss)
""",
        after="""\
import torch
import torch.distributed as dist


def while_all_have(batches, device="cpu"):
    \"\"\"Yield batches until one rank has none left, so that all ranks make the same steps.\"\"\"
    iterator, end = iter(batches), object()
    while True:
        batch = next(iterator, end)
        have = torch.tensor(int(batch is not end), device=device)
        dist.all_reduce(have, op=dist.ReduceOp.MIN)
        if not have.item():
            return
        yield batch


def train(model, batches):
    for x in while_all_have(batches):
        loss = model(x)
        loss.backward()
        dist.all_reduce(loss)
""",
    ),
    Example(
        category="uneven_inputs",
        before="""\
from torch.nn.parallel import DistributedDataParallel

def train(net, opt, files):
    model = DistributedDataParallel(net)
    n = len(files)
    for i in range(n):  # <-- here
        model(read(files[i])).sum().backward()
        opt.step()
""",
        after="""\
from torch.nn.parallel import DistributedDataParallel

def train(net, opt, files):
    model = DistributedDataParallel(net)
    n = len(files)
    with model.join():
        for i in range(n):
            model(read(files[i])).sum().backward()
            opt.step()
""",
    ),
)
KEEPS = (
    Example(
        category="uneven_inputs",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, batches):
    model = DDP(net)
    with model.join():
        for x in batches:  # <-- here
            model(x).backward()
""",
    ),
)
HELPER = '''
def while_all_have(batches, device="cpu"):
    """Yield batches until one rank has none left, so that all ranks make the same steps."""
    iterator, end = iter(batches), object()
    while True:
        batch = next(iterator, end)
        have = {torch}.tensor(int(batch is not end), device=device)
        {dist}.all_reduce(have, op={dist}.ReduceOp.MIN)
        if not have.item():
            return
        yield batch
'''


def fix(context: Context) -> FixerResult | None:
    """Join the loop, or end it together; None where no loop over data trains."""
    for source in context.files:
        for loop in find(source.module, cst.For):
            if (
                not _trains(context, source, loop)
                or _is_counter(source, loop)
                or _is_joined(source, loop)
            ):
                continue
            if not _may(context, source, loop) or _is_pipeline(source, loop):
                continue
            return _join(context, source, loop) or _together(context, source, loop)
    return _by_hand(context)


def _by_hand(context: Context) -> FixerResult | None:
    """``it = iter(batches)`` and ``next(it)`` in a loop that trains: the iterator ends for all."""
    for source, loop in context.every(cst.While, 0.6):
        if backward_call(loop.body) is None and not works(context, source, loop.body):
            continue
        taken = [c for c in find(loop.body, cst.Call) if dotted(c.func) == "next" and c.args]
        names_taken = {dotted(call.args[0].value) for call in taken}
        if not taken or "StopIteration" not in code(loop):
            continue
        for target, value, _ in source.assignments():
            is_iterator = isinstance(value, cst.Call) and dotted(value.func) == "iter"
            if target in names_taken and is_iterator and len(value.args) == 1:  # type: ignore[attr-defined]
                inner = value.args[0].value  # type: ignore[attr-defined]
                if "while_all_have" not in code(inner):
                    return _wrapped(context, source, loop, inner)
    return None


def _trains(context: Context, source: Source, loop: cst.For) -> bool:
    """The innermost loop over batches with the backward pass in it, or in a function it calls."""
    if any(backward_call(inner.body) for inner in find(loop.body, cst.For)):
        return False
    if backward_call(loop.body) is not None:
        return True
    return any(
        backward_call(function.body) is not None
        and not any(
            isinstance(n, cst.For) and backward_call(n.body) for n in find(function.body, cst.For)
        )
        for call in find(loop.body, cst.Call)
        for _, function in definitions(source, call, context.files)
    )


def _is_pipeline(source: Source, loop: cst.For) -> bool:
    """Stages of a pipeline pass things on; they do not take batches side by side."""
    calls = find(loop.body, cst.Call)
    return any(
        re.fullmatch(r"torch\.distributed\.i?(?:send|recv)", source.full_name(c.func))
        for c in calls
    )


def _may(context: Context, source: Source, loop: cst.For) -> bool:
    """Under a looser category the cause must name the loop itself."""
    return (
        context.cause.category == "uneven_inputs"
        or context.is_near(source, loop, 0)
        or (
            context.cause.category == "collective_count_mismatch" and context.is_named(source, loop)
        )
    )


def _is_counter(source: Source, loop: cst.For) -> bool:
    """``for step in range(n)``: the same on all ranks, unless n is this rank's own length."""
    text = code(loop.iter)
    if not text.startswith("range(") or "len(" in text:
        return False
    counts = names(loop.iter)
    made = source.assignments(source.function_of(loop))
    return not any(target in counts and "len(" in code(value) for target, value, _ in made)


def _is_joined(source: Source, loop: cst.For) -> bool:
    return any(
        isinstance(above, cst.With) and "join" in names(above.items[0].item)
        for above in source.ancestors(loop)
    ) or "while_all_have" in names(loop.iter)


def _join(context: Context, source: Source, loop: cst.For) -> FixerResult | None:
    models = [
        name for name in wrapped_models(source) if name.rpartition(".")[2] in names(loop.body)
    ]
    if len(models) != 1 or collectives(source, loop.body):
        return None
    if any(leads_to_collective(source, context.files)(s) for s in loop.body.body):
        return None
    if models[0] not in {dotted(c.func) for c in find(loop.body, cst.Call)} | {code(loop.iter)}:
        return None
    edits = Edits(source)
    edits.replace_text(
        loop, f"with {models[0]}.join():\n    __LOOP__", LOOP=[loop.with_changes(leading_lines=())]
    )
    return context.result(
        edits,
        why=f"{source.path}:{source.line(loop)} runs as often as this rank has batches, and ranks "
        "have different numbers of them.",
        behaviour="Ranks that are done answer the others' gradient reductions with zeros; "
        "gradients "
        "are still divided by the world size.",
        score=_score(context, source, loop),
    )


def _together(context: Context, source: Source, loop: cst.For) -> FixerResult | None:
    if "enumerate" == dotted(getattr(loop.iter, "func", None)):
        assert isinstance(loop.iter, cst.Call)
        inner = loop.iter.args[0].value
    else:
        inner = loop.iter
    return _wrapped(context, source, loop, inner)


def _wrapped(
    context: Context, source: Source, loop: Loop, inner: cst.BaseExpression
) -> FixerResult | None:
    """Take batches only while all ranks have one."""
    edits = Edits(source)
    torch, dist = edits.module("torch"), edits.module("torch.distributed")
    device = job_device(context, source)
    edits.replace_text(inner, f"while_all_have({code(inner)}{device})")
    if not source.functions_named("while_all_have"):
        edits.add_helper(HELPER.format(torch=torch, dist=dist))
    return context.result(
        edits,
        why=f"{source.path}:{source.line(loop)} runs as often as this rank has batches, and ranks "
        "have different numbers of them.",
        behaviour="The epoch ends for all when the first rank has no batch left; one small "
        "all-reduce more per step.",
        score=_score(context, source, loop) - 0.1,
    )


def _score(context: Context, source: Source, loop: Loop) -> float:
    exact = context.cause.category == "uneven_inputs"
    if context.is_near(source, loop, 0):
        return 0.8 if exact else 0.5
    return 0.6 if exact else 0.35
