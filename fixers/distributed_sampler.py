"""SMP002 Give each rank its own part of the data.

## What it does
Replaces `shuffle=True` of a training DataLoader by a `DistributedSampler`, and tells it the epoch
at the start of each.

## Why it hurts
Without it every rank reads the whole data set: an epoch takes as many times as long as there are
ranks, and all see the same samples.

## When it is wrong
The data set is already cut for the rank, or it is meant to be read whole.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.ranks import is_ranked
from eroica.fix.tree import Source, argument, assigned, code, dotted, find, names, walk

CODE = "SMP002"
ANSWERS = frozenset(
    {
        "sampler_misconfiguration",
        "load_imbalance",
        "straggler_data_loading",
        "dataloader_bottleneck",
        "straggler_compute",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="sampler_misconfiguration",
        before="""\
from torch.utils.data import DataLoader

def train(ds, epochs):
    loader = DataLoader(ds, batch_size=8, shuffle=True)  # <-- here
    for epoch in range(epochs):
        for x in loader:
            step(x)
""",
        after="""\
from torch.utils.data import DataLoader, DistributedSampler

def train(ds, epochs):
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=8, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x in loader:
            step(x)
""",
    ),
    Example(
        category="load_imbalance",
        before="""\
from torch.utils.data import DataLoader

FOLDERS = ["a", "b"]

def train(rank):
    ds = Folder(FOLDERS[rank])
    loader = DataLoader(ds, batch_size=8, shuffle=True)  # <-- here
    return loader
""",
        after="""\
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler

FOLDERS = ["a", "b"]

def train(rank):
    ds = ConcatDataset([Folder(part) for part in FOLDERS])
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=8, sampler=sampler)
    return loader
""",
    ),
    Example(
        category="sampler_misconfiguration",
        before="""\
from torch.utils.data import DataLoader, DistributedSampler

def build(ds, rank):
    sampler = DistributedSampler(ds, num_replicas=1, rank=0, seed=rank)  # <-- here
    return DataLoader(ds, sampler=sampler)
""",
        after="""\
from torch.utils.data import DataLoader, DistributedSampler

def build(ds, rank):
    sampler = DistributedSampler(ds)
    return DataLoader(ds, sampler=sampler)
""",
    ),
    Example(
        category="sampler_misconfiguration",
        before="""\
import torch
import torch.distributed as dist

class Batches:
    def __iter__(self):
        order = torch.randperm(len(self.data))  # <-- here
        for i in range(0, len(order), self.size):
            yield self.data[order[i:i + self.size]]
""",
        after="""\
import torch
import torch.distributed as dist

class Batches:
    def __iter__(self):
        order = torch.randperm(len(self.data))[dist.get_rank()::dist.get_world_size()]
        for i in range(0, len(order), self.size):
            yield self.data[order[i:i + self.size]]
""",
    ),
)
KEEPS = (
    Example(
        category="sampler_misconfiguration",
        before="""\
from torch.utils.data import DataLoader, DistributedSampler

loader = DataLoader([1], sampler=DistributedSampler([1]))  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Add the sampler, or mend it; None where the loaders have one that is right."""
    mended = _same_for_all(context) or _plain_sampler(context) or _own_order(context)
    if mended is not None:
        return mended
    for source in context.files:
        found = source.calls(source.module, r"(?:torch\.utils\.data(?:\.dataloader)?\.)?DataLoader")
        for call in sorted(found, key=lambda c: -context.closeness(source, c)):
            if _has_sampler(call):
                continue
            if not call.args or not dotted(call.args[0].value):
                continue
            result = _add(context, source, call)
            if result is not None:
                return result
    return None


def _has_sampler(call: cst.Call) -> bool:
    given = [argument(call, "sampler", 3), argument(call, "batch_sampler", 4)]
    return any(arg is not None and code(arg.value) != "None" for arg in given)


def _same_for_all(context: Context) -> FixerResult | None:
    """``DistributedSampler(ds, num_replicas=1, rank=0)``, or shuffled by a seed of each rank."""
    for source, call in context.every(cst.Call, 0.4):
        if source.full_name(call.func).rpartition(".")[2] != "DistributedSampler":
            continue
        edits, wrong = Edits(source), []
        for name, position in (("num_replicas", 1), ("rank", 2)):
            arg = argument(call, name, position)
            if arg is not None and arg.keyword is not None and isinstance(arg.value, cst.Integer):
                edits.drop_argument(call, name)
                wrong.append(f"{name}={code(arg.value)}")
        seed = argument(call, "seed")
        if seed is not None and any(is_ranked(n) for n in find(seed.value, cst.Name)):
            edits.drop_argument(call, "seed")
            wrong.append(f"seed={code(seed.value)}")
        if wrong:
            return context.result(
                edits,
                why=f"{source.path}:{source.line(call)} {', '.join(wrong)}: ranks do not get parts "
                "of one and the same order.",
                behaviour="The sampler takes its rank and the number of ranks from the process "
                "group.",
                score=0.95 if context.cause.category == "sampler_misconfiguration" else 0.5,
            )
    return None


def _plain_sampler(context: Context) -> FixerResult | None:
    """``sampler=RandomSampler(ds)``: of all the data, on each rank."""
    if context.cause.category != "sampler_misconfiguration":
        return None
    for source, call in context.every(cst.Call, 0.4):
        kind = source.full_name(call.func).rpartition(".")[2]
        if kind not in ("RandomSampler", "SequentialSampler") or len(call.args) != 1:
            continue
        above = source.parent(source.parent(call))  # type: ignore[arg-type]
        if isinstance(above, cst.Call) and "BatchSampler" in code(above.func):
            continue
        edits = Edits(source)
        edits.add_import("from torch.utils.data import DistributedSampler")
        order = "" if kind == "RandomSampler" else ", shuffle=False"
        edits.replace_text(call, f"DistributedSampler({code(call.args[0].value)}{order})")
        return context.result(
            edits,
            why=f"{source.path}:{source.line(call)} draws from all of the data on every rank.",
            behaviour="Each rank reads its share; call set_epoch() for a new order each epoch.",
            score=0.9,
        )
    return None


def _own_order(context: Context) -> FixerResult | None:
    """``order = torch.randperm(n)`` in the project's own batches, of which no rank takes a part."""
    if context.cause.category != "sampler_misconfiguration":
        return None
    for source, node in context.every(cst.SimpleStatementLine, 0.6):
        made = assigned(node)
        if made is None:
            continue
        target, value = code(made[0]), made[1]
        if not isinstance(value, cst.Call) or not target.isidentifier():
            continue
        if source.full_name(value.func) not in ("torch.randperm", "numpy.random.permutation"):
            continue
        function = source.function_of(node)
        if function is None or any(is_ranked(n) for n in find(function, cst.Name)):
            continue
        if "DistributedSampler" in source.text or "get_rank" in code(function):
            continue
        edits = Edits(source)
        dist = edits.module("torch.distributed", node)
        part = f"{code(value)}[{dist}.get_rank()::{dist}.get_world_size()]"
        edits.replace(value, cst.parse_expression(part))
        return context.result(
            edits,
            why=f"{source.path}:{source.line(node)} goes through all of the data on every rank.",
            behaviour="Each rank takes its part of the order; parts are disjoint where all ranks "
            "shuffle by one seed.",
            score=0.85,
        )
    return None


def _add(context: Context, source: Source, call: cst.Call) -> FixerResult | None:
    data = dotted(call.args[0].value)
    statement = source.statement_of(call)
    made = next((v for t, v, _ in source.assignments() if t == data), None)
    per_rank = _rank_part(made) if isinstance(made, cst.Call) else None
    exact = context.cause.category == "sampler_misconfiguration"
    if statement is None or (not exact and per_rank is None):
        return None
    if per_rank is None and made is not None and _is_cut(source, made):
        return None
    shuffle = argument(call, "shuffle", 2)
    is_shuffled = shuffle is not None and code(shuffle.value) == "True"
    edits = Edits(source)
    edits.add_import("from torch.utils.data import DistributedSampler")
    name = "sampler" if "sampler" not in names(source.module) else "rank_sampler"
    order = "" if is_shuffled else ", shuffle=False"
    edits.before(statement, f"{name} = DistributedSampler({data}{order})")
    if shuffle is not None and shuffle.keyword is None:  # by position: others may stand behind it
        edits.replace(shuffle.value, cst.Name("False"))
    edits.drop_argument(call, "shuffle")
    edits.set_argument(call, "sampler", name)
    if per_rank is not None:
        assert isinstance(made, cst.Call)
        edits.add_import("from torch.utils.data import ConcatDataset")
        text = re.sub(re.escape(code(per_rank)), "part", code(made))
        edits.replace_text(made, f"ConcatDataset([{text} for part in {code(per_rank.value)}])")
    is_told = not is_shuffled or _set_epoch(edits, source, statement, call, name)
    return context.result(
        edits,
        why=f"{source.path}:{source.line(call)} "
        + (
            "gives this rank a part of its own kind, so ranks get unlike work."
            if per_rank is not None
            else "lets every rank read the whole data set."
        ),
        behaviour=(
            "Each rank reads its share of all samples; an epoch has fewer steps a rank."
            if per_rank is None
            else "All ranks read from all parts in equal shares."
        )
        + ("" if is_told else f" Call {name}.set_epoch(epoch) at each epoch for a new order."),
        score=0.9 if exact or per_rank is not None else 0.4,
    )


def _rank_part(made: cst.Call) -> cst.Subscript | None:
    """``PARTS[rank]`` in the constructor of the data set."""
    for part in find(made, cst.Subscript):
        if len(part.slice) == 1 and isinstance(part.slice[0].slice, cst.Index):
            if is_ranked(part.slice[0].slice.value):
                return part
    return None


def _is_cut(source: Source, made: cst.BaseExpression) -> bool:
    """The data set was made for this rank: by its number, or by a slice with a step."""
    return any(is_ranked(n) for n in find(made, cst.Name)) or "world" in code(made)


def _set_epoch(
    edits: Edits, source: Source, statement: cst.CSTNode, call: cst.Call, name: str
) -> bool:
    """Tell the sampler the epoch in the loop around the one over the loader, if it is found."""
    loader = next(
        (
            target
            for target, value, _ in source.assignments(statement)
            if any(inner is call for inner in find(value, cst.Call))
        ),
        "",
    )
    for loop in find(source.module, cst.For):
        if not loader or not any(dotted(node) == loader for node in walk(loop.iter)):
            continue
        around = [o for o in source.loops(loop) if isinstance(o, cst.For)]
        if around and isinstance(around[0].target, cst.Name):
            is_here = source.function_of(loop) is source.function_of(statement)
            sampler = name if is_here else f"{loader}.sampler"
            edits.before(around[0].body.body[0], f"{sampler}.set_epoch({around[0].target.value})")
            return True
    return False
