"""DIV002 Enter a block with a collective together.

## What it does
Before an `if` whose block leads to a collective, or that goes back before one, reduces the decision
over all ranks: where one rank would enter, all do.

## Why it hurts
Each rank decides on its own loss, data, clock or chance. The one that enters waits in a collective
which the others never call.

## When it is wrong
Only some ranks reach the `if` itself, or the value was made equal on all ranks before.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import differs, free, score_of, together, works
from eroica.fix.edits import Edits
from eroica.fix.facts import agreed_names, calls_here, definitions, ends_early
from eroica.fix.moves import meets_all
from eroica.fix.tree import Source, code, find, names

CODE = "DIV002"
ANSWERS = frozenset(
    {
        "divergent_control_flow",
        "rank_conditional_collective",
        "checkpoint_collective_on_one_rank",
        "collective_count_mismatch",
        "collective_order_mismatch",
        "collective_shape_mismatch",
        "uneven_inputs",
    }
)
_RESIZING = re.compile(
    r"\b(?:cat|concat|repeat|pad|tile|expand|resize_|new_zeros|Linear|Embedding)\("
)
LABEL = "review"
FIXES = (
    Example(
        category="divergent_control_flow",
        before="""\
import torch
import torch.distributed as dist

def spread(model):
    for p in model.parameters():
        dist.broadcast(p.data, 0)

def train(model, watch, data):
    for step, x in enumerate(data):
        loss = model(x)
        loss.backward()
        if watch.update(loss.item()):  # <-- here
            spread(model)
        elif step % 20 == 0:
            watch.keep()
""",
        after="""\
import torch
import torch.distributed as dist

def spread(model):
    for p in model.parameters():
        dist.broadcast(p.data, 0)

def train(model, watch, data):
    for step, x in enumerate(data):
        loss = model(x)
        loss.backward()
        decision = torch.tensor(int(bool(watch.update(loss.item()))))
        dist.all_reduce(decision, op=dist.ReduceOp.MAX)
        if decision.item():
            spread(model)
        elif step % 20 == 0:
            watch.keep()
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import torch
import torch.distributed as dist

class Sharded:
    def step(self):
        self.inner.step()
        dist.broadcast(self.flat, 0)

class Scale:
    def apply(self, opt, loss):
        bad = not torch.isfinite(loss).item()
        if bad:
            self.scale /= 2
            return False  # <-- here
        opt.step()
        return True
""",
        after="""\
import torch
import torch.distributed as dist

class Sharded:
    def step(self):
        self.inner.step()
        dist.broadcast(self.flat, 0)

class Scale:
    def apply(self, opt, loss):
        bad = not torch.isfinite(loss).item()
        decision = torch.tensor(int(bool(bad)))
        dist.all_reduce(decision, op=dist.ReduceOp.MAX)
        if decision.item():
            self.scale /= 2
            return False
        opt.step()
        return True
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import random
import torch.distributed as dist

def maybe_mix(x, p):
    if random.random() < p:  # <-- here
        dist.all_reduce(x)
    return x
""",
        after="""\
import random
import torch
import torch.distributed as dist

def maybe_mix(x, p):
    decision = torch.tensor(int(random.random() < p))
    dist.broadcast(decision, src=0)
    if decision.item():
        dist.all_reduce(x)
    return x
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import torch.distributed as dist

class Engine:
    def after(self):
        if self.control.save:  # <-- here
            self.write()
            dist.barrier()
""",
        after="""\
import torch
import torch.distributed as dist

class Engine:
    def after(self):
        decision = torch.tensor(int(bool(self.control.save)))
        dist.all_reduce(decision, op=dist.ReduceOp.MAX)
        if decision.item():
            self.write()
            dist.barrier()
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import torch
import torch.distributed as dist

class Trainer:
    def training_step(self, batch):
        loss = self.model(batch).mean()
        if torch.isnan(loss):  # <-- here
            return None
        loss.backward()
        self.optimizer.step()
        return loss.item()
""",
        after="""\
import torch
import torch.distributed as dist

class Trainer:
    def training_step(self, batch):
        loss = self.model(batch).mean()
        decision = torch.tensor(int(bool(torch.isnan(loss))), device=loss.device)
        dist.all_reduce(decision, op=dist.ReduceOp.MAX)
        if decision.item():
            return None
        loss.backward()
        self.optimizer.step()
        return loss.item()
""",
    ),
    Example(
        category="collective_shape_mismatch",
        before="""\
import torch
import torch.distributed as dist

class Table:
    def update(self, x):
        total = torch.zeros_like(self.rows).index_add_(0, self.find(x), x)
        dist.all_reduce(total)  # <-- here

    def grow(self):
        self.rows = torch.cat([self.rows, self.rows])

class Run:
    def extend(self, batch):
        used = int((batch.usage > 1).sum())
        if used > self.limit:
            self.table.grow()
""",
        after="""\
import torch
import torch.distributed as dist

class Table:
    def update(self, x):
        total = torch.zeros_like(self.rows).index_add_(0, self.find(x), x)
        dist.all_reduce(total)

    def grow(self):
        self.rows = torch.cat([self.rows, self.rows])

class Run:
    def extend(self, batch):
        used = int((batch.usage > 1).sum())
        decision = torch.tensor(int(used > self.limit))
        dist.all_reduce(decision, op=dist.ReduceOp.MAX)
        if decision.item():
            self.table.grow()
""",
    ),
)
KEEPS = (
    Example(
        category="divergent_control_flow",
        before="""\
import torch.distributed as dist

def train(model, data):
    for step, x in enumerate(data):
        model(x).backward()
        if step % 100 == 0:  # <-- here
            dist.barrier()
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import torch
import torch.distributed as dist

def train(model, watch, data):
    for x in data:
        loss = model(x)
        bad = torch.isnan(loss).int()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():  # <-- here
            dist.barrier()
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Reduce the decision; None where no test that may differ leads to, or past, a collective."""
    found = []
    for source, node in context.every(cst.If, 0.4):
        if isinstance(source.parent(node), cst.If) or source.function_of(node) is None:
            continue
        score = score_of(context, source, node.test)
        if _resizes(context, source, node):
            # Sizes that differ have shown that ranks part here, whatever the source tells of it.
            found.append((max(score, 0.7), source, node))
        elif score and _parts(context, source, node) and differs(context, source, node.test):
            found.append((score, source, node))
    for score, source, node in sorted(found, key=lambda item: -item[0]):
        edits = Edits(source)
        flag = free("decision", source.function_of(node), source)
        lines, held = together(context, edits, node.test, flag, "MAX")
        edits.before(node, lines)
        edits.replace(node.test, cst.parse_expression(held))
        return context.result(
            edits,
            why=f"{source.path}:{source.line(node)} `{code(node.test)}` is decided by each rank "
            "alone, and leads to a collective that needs all of them.",
            behaviour="One small collective more per decision; where one rank would, all do.",
            score=0.95 * score,
        )
    return None


def _resizes(context: Context, source: Source, node: cst.If) -> bool:
    """Whether a block makes anew, in another size, what the collective of the cause is given."""
    function = source.function_of(node)
    if context.cause.category != "collective_shape_mismatch" or function is None:
        return False
    if names(node.test) & agreed_names(source, function):
        return False
    bodies: list[tuple[Source, cst.CSTNode]] = [(source, node.body)]
    for call in calls_here(node.body):
        bodies += [(s, f.body) for s, f in definitions(source, call, context.files)]
    made = {
        target.rpartition(".")[2]
        for where, body in bodies
        for target, value, _ in where.assignments(body)
        if target.startswith("self.") and _RESIZING.search(code(value))
    }
    used = {
        attribute.attr.value
        for spot in context.spots
        if spot.function is not None
        for attribute in find(spot.function.body, cst.Attribute)
    }
    return bool(made & used)


def _parts(context: Context, source: Source, node: cst.If) -> bool:
    """Ranks meet in the block and not beside it, or behind a block that goes back."""
    inside = meets_all(source, node.body, context.files)
    beside = node.orelse is not None and meets_all(source, node.orelse, context.files)
    if inside or beside:
        return inside is not beside
    return isinstance(ends_early(node.body), cst.Return) and any(
        works(context, source, statement) for statement in source.following(node)
    )
