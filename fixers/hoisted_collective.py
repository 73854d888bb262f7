"""CKP003 Make a collective before the branch of one rank, not in a function called from it.

## What it does
Takes a statement that only gathers state (the consolidation of a sharded optimizer) out of a
function that only one rank calls, through functions between, and makes it before the condition on
the rank, under what else stood around the call.

## Why it hurts
The function runs on rank 0 alone. The collective in it waits for ranks that went on.

## When it is wrong
What the function does before the collective has to come first.
"""

from collections.abc import Iterator

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import collectives, joined
from eroica.fix.moves import call_sites, split_test
from eroica.fix.tree import Function, Source, code, dotted, names, single

CODE = "CKP003"
ANSWERS = frozenset({"checkpoint_collective_on_one_rank", "rank_conditional_collective"})
LABEL = "review"
FIXES = (
    Example(
        category="checkpoint_collective_on_one_rank",
        before="""\
import torch

class Snapshots:
    def state(self, model, opt, step):
        opt.consolidate_state_dict(to=0)  # <-- here
        return {"model": model.state_dict(), "opt": opt.state_dict(), "step": step}

    def write(self, model, optimizer, step):
        torch.save(self.state(model, optimizer, step), self.path)
        return self.path

def train(rank, model, optimizer, snapshots):
    for step in range(100):
        optimizer.step()
        if rank == 0:
            if step % 20 == 0:
                print(f"saved {snapshots.write(model, optimizer, step)}")
""",
        after="""\
import torch

class Snapshots:
    def state(self, model, opt, step):
        return {"model": model.state_dict(), "opt": opt.state_dict(), "step": step}

    def write(self, model, optimizer, step):
        torch.save(self.state(model, optimizer, step), self.path)
        return self.path

def train(rank, model, optimizer, snapshots):
    for step in range(100):
        optimizer.step()
        if step % 20 == 0:
            optimizer.consolidate_state_dict(to=0)
        if rank == 0:
            if step % 20 == 0:
                print(f"saved {snapshots.write(model, optimizer, step)}")
""",
    ),
)
KEEPS = (
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist

def save(model, path):
    write(model, path)
    dist.barrier()  # <-- here

def train(rank, model):
    if rank == 0:
        save(model, "last.pt")
""",
    ),
    Example(
        category="checkpoint_collective_on_one_rank",
        before="""\
class Snapshots:
    def state(self, opt):
        opt.consolidate_state_dict(to=0)  # <-- here
        return opt.state_dict()

def train(optimizer, snapshots):
    return snapshots.state(optimizer)
""",
    ),
    Example(
        category="checkpoint_collective_on_one_rank",
        before="""\
class Snapshots:
    def state(self):
        self.opt.consolidate_state_dict(to=0)  # <-- here
        return self.opt.state_dict()

def train(rank, snapshots):
    if rank == 0:
        snapshots.state()
""",
    ),
)

_DEPTH = 4  # calls from the branch to the collective


def fix(context: Context) -> FixerResult | None:
    """Move the statement; None where it needs names that the caller does not have."""
    for spot in context.spots:
        statement, function = spot.statement, spot.function
        if not isinstance(statement, cst.SimpleStatementLine) or function is None:
            continue
        small = single(statement)
        if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call):
            continue
        # What is reduced in place, or waited for, has its place; a state that is gathered has not.
        is_plain = spot.source.full_name(small.value.func).startswith("torch.distributed")
        if is_plain or not collectives(spot.source, statement):
            continue
        found = _outside(context, spot.source, function, small.value)
        if found is None:
            continue
        source, branch, tests, text = found
        edits = Edits(source)
        there = edits if spot.source is source else Edits(spot.source)
        there.remove(statement)
        guard = f"if {joined(tests)}:\n    {text}" if tests else text
        edits.before(branch, guard)
        return context.result(
            *{id(e): e for e in (edits, there)}.values(),
            why=f"{spot.source.path}:{spot.source.line(statement)} is a collective in a function "
            f"that `if {code(branch.test)}` ({source.path}:{source.line(branch)}) lets one rank "
            "call.",
            behaviour="All ranks make the collective, before the one rank goes on alone.",
            score=0.85,
        )
    return None


def _outside(
    context: Context, source: Source, function: Function, call: cst.Call
) -> tuple[Source, cst.If, list[cst.BaseExpression], str] | None:
    """The branch of one rank, the other conditions of the call, and the collective as it reads
    there."""
    expression: cst.BaseExpression = call
    for _ in range(_DEPTH):
        sites = call_sites(function, context.files)
        if len(sites) != 1:
            return None
        source, site = sites[0]
        given = _arguments(function, site)
        if not _free(expression) <= given.keys() | source.imports.keys():
            return None
        expression = _renamed(expression, given)
        branch, tests = _branch(source, site)
        if branch is not None:
            return source, branch, tests, code(expression)
        caller = source.function_of(site)
        if caller is None or tests:
            return None
        function = caller
    return None


def _branch(source: Source, site: cst.Call) -> tuple[cst.If | None, list[cst.BaseExpression]]:
    """The outermost condition on the rank around a call, and the other conditions within it."""
    tests: list[cst.BaseExpression] = []
    branch: cst.If | None = None
    held: list[cst.BaseExpression] = []
    for node in _conditions(source, site):
        apart, alike = split_test(source, node, "rank")
        held = [*alike, *held]
        if apart:
            branch, tests = node, list(held)
    return branch, tests if branch is not None else held


def _conditions(source: Source, site: cst.Call) -> Iterator[cst.If]:
    function = source.function_of(site)
    for node in source.ancestors(site):
        if node is function or isinstance(node, cst.For | cst.While):
            return
        if isinstance(node, cst.If) and not isinstance(source.parent(node), cst.If):
            yield node


def _arguments(function: Function, site: cst.Call) -> dict[str, str]:
    """Parameter to the simple expression it is given at a call."""
    parameters = [p.name.value for p in function.params.params]
    if parameters[:1] == ["self"]:
        parameters = parameters[1:]
    found: dict[str, str] = {}
    for position, arg in enumerate(site.args):
        name = arg.keyword.value if arg.keyword is not None else None
        if name is None and position < len(parameters):
            name = parameters[position]
        if name is not None and not arg.star and dotted(arg.value):
            found[name] = dotted(arg.value)
    return found


def _free(expression: cst.BaseExpression) -> set[str]:
    """Names that an expression begins with: ``a`` of ``a.b``; names of keywords are none."""
    if isinstance(expression, cst.Call):
        parts = [expression.func, *(arg.value for arg in expression.args)]
        return {name for part in parts for name in _free(part)}
    text = dotted(expression)
    return {text.partition(".")[0]} if text else {n.partition(".")[0] for n in names(expression)}


def _renamed(expression: cst.BaseExpression, given: dict[str, str]) -> cst.BaseExpression:
    if isinstance(expression, cst.Call):
        args = [a.with_changes(value=_renamed(a.value, given)) for a in expression.args]
        return expression.with_changes(func=_renamed(expression.func, given), args=args)
    text = dotted(expression)
    first, dot, rest = text.partition(".")
    if not text or first not in given:
        return expression
    return cst.parse_expression(f"{given[first]}{dot}{rest}")
