"""COL002 Call the collective before the early return of some ranks.

## What it does
Moves a guard such as `if rank != 0: return` (or `sys.exit()`) behind the last collective that
follows it in the same block, also one in a function that is called there. A call deeper inside of
what follows is made before the guard, and its value used.

## Why it hurts
The ranks that return early never make the call; those that stay wait for them for ever.

## When it is wrong
The statements between the guard and the collective must not run on the other ranks, for example
because only one rank has the data.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import backward_call, collectives, definitions, ends_early
from eroica.fix.moves import hoist, meets_all
from eroica.fix.ranks import ranked
from eroica.fix.tree import Source, called, code, find

CODE = "COL002"
ANSWERS = frozenset(
    {
        "rank_conditional_collective",
        "checkpoint_collective_on_one_rank",
        "divergent_control_flow",
        "collective_count_mismatch",
        "rank_exited",
        "polling_wait",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist

def gather(rank, x):
    if rank != 0:
        return None
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x)  # <-- here
    return parts
""",
        after="""\
import torch.distributed as dist

def gather(rank, x):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x)
    if rank != 0:
        return None
    return parts
""",
    ),
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist

def norms(model):
    return {name: p.full_tensor().norm() for name, p in model.named_parameters()}

class Book:
    def note(self, step, model):
        if not self.is_main:
            return
        with open(self.path, "a") as f:
            for name, value in norms(model).items():  # <-- here
                f.write(f"{step} {name} {value}")
""",
        after="""\
import torch.distributed as dist

def norms(model):
    return {name: p.full_tensor().norm() for name, p in model.named_parameters()}

class Book:
    def note(self, step, model):
        norms_of_all = norms(model)
        if not self.is_main:
            return
        with open(self.path, "a") as f:
            for name, value in norms_of_all.items():
                f.write(f"{step} {name} {value}")
""",
    ),
    Example(
        category="rank_exited",
        before="""\
import sys
import torch.distributed as dist

def main(files, model):
    if not files:
        print("nothing to do")
        sys.exit(0)  # <-- here
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, len(files))
    members = dist.new_group([r for r, n in enumerate(counts) if n])
    tune(model, files, members)
""",
        after="""\
import sys
import torch.distributed as dist

def main(files, model):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, len(files))
    members = dist.new_group([r for r, n in enumerate(counts) if n])
    if not files:
        print("nothing to do")
        sys.exit(0)
    tune(model, files, members)
""",
    ),
)
KEEPS = (
    Example(
        category="rank_conditional_collective",
        before="""\
import torch.distributed as dist

def gather(rank, x):
    dist.all_reduce(x)  # <-- here
    if rank != 0:
        return None
    return x
""",
    ),
    Example(
        category="rank_exited",
        before="""\
import sys
import torch.distributed as dist

def main(args):
    if args.help:
        sys.exit(0)
    dist.barrier()  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Move the guard, or the call; None where none stands before a collective."""
    for source, node in context.every(cst.If, 0.6):
        if node.orelse is not None or not _leaves(node) or not _parts_ranks(context, source, node):
            continue
        following = list(source.following(node))
        last = _last_meeting(context, source, following)
        edits = Edits(source)
        lines = hoist(edits, following, context.files) if last is None and following else None
        if last is not None:
            edits.remove(node)
            edits.replace(last, [last, node.with_changes(leading_lines=())])
        elif lines:
            edits.before(node, "\n".join(lines))
        else:
            continue
        where = source.line(last if last is not None else following[0])
        return context.result(
            edits,
            why=f"{source.path}:{source.line(node)} `{code(node.test)}` sends ranks back before "
            f"the collective that line {where} leads to.",
            behaviour="All ranks run the lines up to the collective, then the guard applies.",
            score=0.9 if context.is_near(source, node, 4) else 0.7,
        )
    return None


def _leaves(node: cst.If) -> bool:
    """The block ends by going back, or by ending the process."""
    if ends_early(node.body) is not None:
        return True
    last = node.body.body[-1]
    call = called(last)
    exits = call is not None and code(call.func) in ("sys.exit", "exit", "quit", "os._exit")
    return exits or code(last).startswith("raise SystemExit")


def _parts_ranks(context: Context, source: Source, node: cst.If) -> bool:
    """The condition is on the rank, or the cause points at the guard itself."""
    if ranked(source, node.test):
        return True
    first, last = source.line(node), source.last_line(node)
    if context.cause.category not in _DIVERGE:
        return False
    if _SETTINGS.search(code(node.test)):
        return False
    if ends_early(node.body) is None:
        return True  # a rank that ends its process where others go on to meet
    return context.cause.category == "rank_exited" and any(
        s.source is source and s.line is not None and first <= s.line <= last for s in context.spots
    )


_DIVERGE = ("rank_exited", "rank_conditional_collective", "divergent_control_flow", "polling_wait")
_SETTINGS = re.compile(r"\b(?:args|cfg|config|conf|opts?|options|parser|sys|environ)\b")


def _last_meeting(
    context: Context, source: Source, following: list[cst.BaseStatement]
) -> cst.BaseStatement | None:
    """The last statement after the guard, before any training, where all ranks meet.

    Of a block that opens a file only the call is wanted on all ranks.
    """
    found = None
    for statement in following:
        if _trains(context, source, statement):
            break
        if isinstance(statement, cst.BaseCompoundStatement):
            meets = bool(collectives(source, statement)) and "open(" not in code(statement)
        else:
            meets = meets_all(source, statement, context.files)
        if meets:
            found = statement
    return found


def _trains(context: Context, source: Source, statement: cst.BaseStatement) -> bool:
    return backward_call(statement) is not None or any(
        backward_call(function.body) is not None
        for call in find(statement, cst.Call)
        for _, function in definitions(source, call, context.files)
    )
