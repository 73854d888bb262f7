"""COM004 Do not send what each rank can make, or already has.

## What it does
Where one rank makes an object from what all ranks have - a plan from a seed, say - and sends it in
each step, lets each rank make it. Sends an object that does not change in the loop once, before it.
Takes a part of what was broadcast instead of scattering it again.

## Why it hurts
Object collectives pickle, send lengths, send bytes and unpickle, and every rank waits for the one
that makes the object.

## When it is wrong
The object depends on something that only the sending rank has: a file, the clock, a result.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import definitions, is_collective, short
from eroica.fix.loops import step_loops
from eroica.fix.ranks import is_ranked, ranked
from eroica.fix.tree import Source, assigned, called, code, dotted, find, names

CODE = "COM004"
ANSWERS = frozenset(
    {
        "excessive_object_collectives",
        "serialized_on_rank0",
        "excessive_small_collectives",
        "python_overhead",
        "redundant_gradient_sync",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="excessive_object_collectives",
        before="""\
import random
import torch.distributed as dist

class Planner:
    def __init__(self, items, seed):
        self.items, self.rng = items, random.Random(seed)

    def plan(self, world, n):
        return [[self.rng.choice(self.items) for _ in range(n)] for _ in range(world)]

def take(planner, n):
    rank, world = dist.get_rank(), dist.get_world_size()
    all_plans = [planner.plan(world, n) if rank == 0 else None]
    dist.broadcast_object_list(all_plans, src=0)  # <-- here
    mine = [None]
    dist.scatter_object_list(mine, all_plans[0] if rank == 0 else None, src=0)
    return mine[0]

def main(items):
    return take(Planner(items, seed=7), 4)
""",
        after="""\
import random
import torch.distributed as dist

class Planner:
    def __init__(self, items, seed):
        self.items, self.rng = items, random.Random(seed)

    def plan(self, world, n):
        return [[self.rng.choice(self.items) for _ in range(n)] for _ in range(world)]

def take(planner, n):
    rank, world = dist.get_rank(), dist.get_world_size()
    all_plans = [planner.plan(world, n)]
    mine = [None]
    mine[0] = all_plans[0][rank]
    return mine[0]

def main(items):
    return take(Planner(items, seed=7), 4)
""",
    ),
    Example(
        category="excessive_object_collectives",
        before="""\
import torch.distributed as dist

def train(model, settings, data):
    for x in data:
        shared = [settings]
        dist.broadcast_object_list(shared, src=0)  # <-- here
        model(x, shared[0]).backward()
""",
        after="""\
import torch.distributed as dist

def train(model, settings, data):
    shared = [settings]
    dist.broadcast_object_list(shared, src=0)
    for x in data:
        model(x, shared[0]).backward()
""",
    ),
)
KEEPS = (
    Example(
        category="excessive_object_collectives",
        before="""\
import json
import torch.distributed as dist

class Planner:
    def plan(self, n):
        return json.load(open(self.path))[:n]

def take(planner, n):
    plans = [planner.plan(n) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(plans, src=0)  # <-- here
    return plans[0]
""",
    ),
    Example(
        category="excessive_object_collectives",
        before="""\
import torch.distributed as dist

def train(model, data):
    for x in data:
        shared = [pick(x)]
        dist.broadcast_object_list(shared, src=0)  # <-- here
        model(x, shared[0]).backward()
""",
    ),
)
# What differs from rank to rank, or is only there on one.
_OWN = re.compile(
    r"(?:\b|\.)(?:open|time|input|urandom|uuid\w*|getpid|getenv|listdir|glob|get_rank|hash|read\w*|"
    r"load|loads|recv|get|item|perf_counter|monotonic)\(|environ|\brank\b|\brandom\.(?!Random)|"
    r"np\.random|torch\.(?:rand\w*|normal)\((?![^)]*generator)"
)
_SEEDED = re.compile(r"random\.Random\(|\.manual_seed\(|default_rng\(|RandomState\(")


def fix(context: Context) -> FixerResult | None:
    """Make it on each rank, or send it once; None where the object is one rank's own."""
    for source, line in context.every(cst.SimpleStatementLine, 0.6):
        call = called(line)
        if call is None or not is_collective(source, call) or not call.args:
            continue
        if short(source, call) != "broadcast_object_list":
            continue
        result = _made_by_all(context, source, line, call) or _once(context, source, line, call)
        if result is not None:
            return result
    return None


def _assigned(source: Source, line: cst.CSTNode, name: str) -> cst.BaseStatement | None:
    """The line that makes a list of one entry, before its broadcast in the same block."""
    block = list(source.siblings(line))
    for statement in reversed(block[: block.index(line)]):  # type: ignore[arg-type]
        made = assigned(statement)
        if made is not None and code(made[0]) == name:
            value = made[1]
            return statement if isinstance(value, cst.List) and len(value.elements) == 1 else None
    return None


def _made_by_all(
    context: Context, source: Source, line: cst.CSTNode, call: cst.Call
) -> FixerResult | None:
    """``[make(...) if rank == 0 else None]`` with a ``make`` that all ranks can call."""
    name = code(call.args[0].value)
    made = _assigned(source, line, name)
    given = assigned(made) if made is not None else None
    if given is None or not isinstance(given[1], cst.List):
        return None
    value = given[1].elements[0].value
    if not isinstance(value, cst.IfExp) or not ranked(source, value.test):
        return None
    if code(value.orelse) != "None" or not _is_common(context, source, value.body):
        return None
    edits = Edits(source)
    edits.replace(value, value.body)
    edits.remove(line)
    _take_part(source, line, name, _rank(value.test), edits)
    return context.result(
        edits,
        why=f"{source.path}:{source.line(line)} sends in each step what every rank can make from "
        "what it has.",
        behaviour="Each rank makes the object itself; it is the same as long as all ranks make as "
        "many of them, in one order.",
        score=0.95 * context.closeness(source, line),
    )


def _rank(test: cst.BaseExpression) -> str:
    """The expression of the rank in ``rank == 0``."""
    return code(test.left) if isinstance(test, cst.Comparison) and is_ranked(test.left) else ""


def _is_common(context: Context, source: Source, value: cst.BaseExpression) -> bool:
    """A call of the project's whose result depends on arguments and a common seed only."""
    if not isinstance(value, cst.Call) or any(_OWN.search(code(arg)) for arg in value.args):
        return False
    found = definitions(source, value, context.files)
    if len(found) != 1:
        return False
    other, function = found[0]
    if _OWN.search(code(function.body)):
        return False
    owner = other.class_of(function)
    if owner is None:
        return True
    if any(is_ranked(n) for n in find(owner, cst.Name)):
        return False
    if "random" in code(owner) and not _SEEDED.search(code(owner)):
        return False
    made = [
        call
        for file in context.files
        for call in find(file.module, cst.Call)
        if dotted(call.func).rpartition(".")[2] == owner.name.value
    ]
    return bool(made) and not any(
        is_ranked(n) for c in made for a in c.args for n in find(a, cst.Name)
    )


def _take_part(source: Source, line: cst.CSTNode, name: str, rank: str, edits: Edits) -> None:
    """``scatter_object_list(mine, name[0] if rank == 0 else None)``: the part is at hand."""
    for later in source.following(line):
        call = called(later)
        if call is None or short(source, call) != "scatter_object_list" or len(call.args) < 2:
            continue
        out, parts = call.args[0].value, call.args[1].value
        whole = parts.body if isinstance(parts, cst.IfExp) else parts
        if rank and code(whole) == f"{name}[0]":
            edits.replace(later, edits.statements(f"{code(out)}[0] = {name}[0][{rank}]"))


def _once(
    context: Context, source: Source, line: cst.CSTNode, call: cst.Call
) -> FixerResult | None:
    """Nothing that the loop binds is in the object."""
    loops = source.loops(line)
    name = code(call.args[0].value)
    made = _assigned(source, line, name)
    if not loops or made is None or loops[0] not in step_loops(source, context.files):
        return None
    if source.parent(line) is not loops[0].body:
        return None
    given = assigned(made)
    assert given is not None
    bound = {n for a in find(loops[0], cst.AssignTarget) for n in names(a.target)}
    bound |= {n for a in find(loops[0], cst.For) for n in names(a.target)}
    if names(given[1]) & bound or any(True for _ in find(given[1], cst.Call)):
        return None
    edits = Edits(source)
    edits.remove(made)
    edits.remove(line)
    edits.before(loops[0], "__S__", S=[made, line])
    return context.result(
        edits,
        why=f"{source.path}:{source.line(line)} sends in each step what the loop does not change.",
        behaviour="It is sent once, before the loop; later changes of it on one rank stay there.",
        score=0.85 * context.closeness(source, line),
    )
