"""COL004 Call a function that holds a collective on all ranks.

## What it does
Takes `@rank_zero_only` (or a decorator like it) off a function in which all ranks have to meet, and
puts what only one rank should do - writing, printing - under `if dist.get_rank() == 0:`.

## Why it hurts
Only the first rank enters; the others go on and wait in their next collective, the first one waits
in this.

## When it is wrong
The collective runs on a group of which the other ranks are no members.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import definitions
from eroica.fix.moves import hoist, in_groups, meets_all, shared_statements
from eroica.fix.ranks import ranked
from eroica.fix.tree import Function, Source, body_of, code, dotted, find, is_docstring

CODE = "COL004"
ANSWERS = frozenset(
    {
        "rank_conditional_collective",
        "checkpoint_collective_on_one_rank",
        "collective_count_mismatch",
        "divergent_control_flow",
        "collective_order_mismatch",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist
from helpers import rank_zero_only

class Card:
    @rank_zero_only
    def end(self, trainer):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, self.mean)  # <-- here
        with open(self.path, "a") as f:
            f.write(f"{sum(parts)}")
""",
        after="""\
import torch.distributed as dist
from helpers import rank_zero_only

class Card:
    def end(self, trainer):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, self.mean)
        if dist.get_rank() == 0:
            with open(self.path, "a") as f:
                f.write(f"{sum(parts)}")
""",
    ),
    Example(
        category="rank_conditional_collective",
        before="""\
import functools
import torch.distributed as dist

def chief_does(fn):
    @functools.wraps(fn)
    def inner(*args):
        if dist.get_rank() == 0:
            return fn(*args)
        return None
    return inner

def total(x):
    dist.all_reduce(x)
    return x.item()

@chief_does
def report(x, path):
    with open(path, "w") as f:
        f.write(f"{total(x)}")  # <-- here
""",
        after="""\
import functools
import torch.distributed as dist

def chief_does(fn):
    @functools.wraps(fn)
    def inner(*args):
        if dist.get_rank() == 0:
            return fn(*args)
        return None
    return inner

def total(x):
    dist.all_reduce(x)
    return x.item()

def report(x, path):
    total_of_all = total(x)
    if dist.get_rank() == 0:
        with open(path, "w") as f:
            f.write(f"{total_of_all}")
""",
    ),
    Example(
        category="rank_conditional_collective",
        before="""\
import torch
import torch.distributed as dist
from helpers import master_only

class Accuracy:
    @master_only
    def after_epoch(self, runner):
        if runner.epoch % self.every:
            return
        parts = [torch.zeros_like(self.hits) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.hits)  # <-- here
        right = torch.stack(parts).sum(0)
        print(right.tolist())
        self.hits.zero_()
""",
        after="""\
import torch
import torch.distributed as dist
from helpers import master_only

class Accuracy:
    def after_epoch(self, runner):
        if runner.epoch % self.every:
            return
        parts = [torch.zeros_like(self.hits) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.hits)
        if dist.get_rank() == 0:
            right = torch.stack(parts).sum(0)
            print(right.tolist())
        self.hits.zero_()
""",
    ),
)
KEEPS = (
    Example(
        category="rank_conditional_collective",
        before="""\
from helpers import rank_zero_only

@rank_zero_only
def report(step, loss):
    print(step, loss)  # <-- here
""",
    ),
)
_NAMES = re.compile(
    r"(?:on_?|only_?|run_on_?)?(?:rank_?(?:zero|0)|main|master|chief|primary)(?:_?(?:process|rank|proc))?"
    r"(?:_?only)?",
    re.I,
)


def fix(context: Context) -> FixerResult | None:
    """Take the decorator off; None where no decorated function leads to a collective."""
    for source, function in context.every(cst.FunctionDef, 0.6):
        for decorator in function.decorators:
            if _is_for_one(context, source, decorator) and meets_all(
                source, function.body, context.files
            ):
                return _open_up(context, source, function, decorator)
    return None


def _is_for_one(context: Context, source: Source, decorator: cst.Decorator) -> bool:
    """Known by its name, or by a condition on the rank in its wrapper."""
    node = decorator.decorator
    name = dotted(node.func if isinstance(node, cst.Call) else node)
    if _NAMES.fullmatch(name.rpartition(".")[2]):
        return True
    call = node if isinstance(node, cst.Call) else cst.Call(node)
    return any(
        ranked(other, test.test)
        for other, wrapper in definitions(source, call, context.files)
        for test in find(wrapper.body, cst.If)
    )


def _open_up(
    context: Context, source: Source, function: Function, decorator: cst.Decorator
) -> FixerResult | None:
    edits = Edits(source)
    body = list(body_of(function))
    dist = edits.module("torch.distributed", function)
    test = cst.parse_expression(f"{dist}.get_rank() == 0")
    lines = hoist(edits, body, context.files)
    if lines is None:
        return None
    leads = {s for s in body if isinstance(s, cst.SimpleStatementLine)}
    shared = {s for s in body[:1] if is_docstring(s)} | shared_statements(
        source, body, lambda s: s in leads and meets_all(source, s, context.files)
    )
    new: list[cst.BaseStatement] = [*edits.statements("\n".join(lines))] if lines else []
    for is_shared, statements in in_groups(body, shared):
        edited = [edits.edited(s) for s in statements]
        own = cst.If(test=test, body=cst.IndentedBlock(body=edited))
        new.extend(edited if is_shared or _is_text(statements) else [own])
    kept = [d for d in function.decorators if d is not decorator]
    lead = function.leading_lines or decorator.leading_lines
    edits.replace(
        function,
        lambda node: node.with_changes(
            decorators=kept, leading_lines=lead, body=function.body.with_changes(body=new)
        ),
    )
    return context.result(
        edits,
        why=f"{source.path}:{source.line(function)} {function.name.value}() runs on one rank "
        f"({code(decorator)}), and leads to a collective that needs all.",
        behaviour="All ranks enter it and take part in the collective; the rest stays on one rank.",
        score=0.95 * context.closeness(source, function),
    )


def _is_text(statements: list[cst.BaseStatement]) -> bool:
    return len(statements) == 1 and is_docstring(statements[0])
