"""DIV001 Take a decision on local data together.

## What it does
Before a `break`, `continue` or `return` that depends on this rank's loss, data or clock, reduces
the decision over all ranks. A value that feeds a decision object (`stopper.update(val)`) is
averaged over the ranks instead, so that all of them decide by the same number.

## Why it hurts
A rank that skips a step or leaves the loop alone makes fewer collectives than the others. They
wait for it, or their gradients are averaged across different steps.

## When it is wrong
The value was made equal on all ranks before, or the loop has no collectives in it.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import device_of, differs, free, job_device, works
from eroica.fix.edits import Edits
from eroica.fix.facts import agreed_names, ends_early, is_local
from eroica.fix.ranks import ranked
from eroica.fix.tree import Function, Source, Statement, code, dotted, find, names

CODE = "DIV001"
ANSWERS = frozenset(
    {
        "divergent_control_flow",
        "collective_count_mismatch",
        "uneven_inputs",
        "rank_conditional_collective",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="divergent_control_flow",
        before="""\
import torch
import torch.distributed as dist

def train(model, batches):
    for x in batches:
        loss = model(x)
        if not torch.isfinite(loss):  # <-- here
            continue
        loss.backward()
""",
        after="""\
import torch
import torch.distributed as dist

def train(model, batches):
    for x in batches:
        loss = model(x)
        decision = torch.tensor(int(not torch.isfinite(loss)), device=loss.device)
        dist.all_reduce(decision, op=dist.ReduceOp.MAX)
        if decision.item():
            continue
        loss.backward()
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import torch
import torch.distributed as dist

def train(model, stopper, data):
    for epoch in range(10):
        step(model, data).backward()
        val = validate(model, data)
        if stopper.update(val):  # <-- here
            break
""",
        after="""\
import torch
import torch.distributed as dist

def train(model, stopper, data):
    for epoch in range(10):
        step(model, data).backward()
        val = validate(model, data)
        mean = torch.as_tensor(val, dtype=torch.float32)
        dist.all_reduce(mean)
        val = mean.item() / dist.get_world_size()
        if stopper.update(val):
            break
""",
    ),
    Example(
        category="collective_count_mismatch",
        before="""\
import torch
import torch.distributed as dist

def train(model, opt, data):
    for x in data:
        if len(x) < 4:  # <-- here
            continue
        model(x).mean().backward()
        opt.step()
""",
        after="""\
import torch
import torch.distributed as dist

def train(model, opt, data):
    for x in data:
        decision = torch.tensor(int(len(x) < 4))
        dist.all_reduce(decision, op=dist.ReduceOp.MAX)
        if decision.item():
            continue
        model(x).mean().backward()
        opt.step()
""",
    ),
    Example(
        category="divergent_control_flow",
        before="""\
import torch
import torch.distributed as dist

class Rollouts:
    def generate(self, tokens, done):
        for _ in range(64):
            new = self.policy(tokens).argmax(-1)
            tokens = torch.cat([tokens, new], 1)
            done |= new == 0
            if done.all():  # <-- here
                break
        return tokens
""",
        after="""\
import torch
import torch.distributed as dist

class Rollouts:
    def generate(self, tokens, done):
        for _ in range(64):
            new = self.policy(tokens).argmax(-1)
            tokens = torch.cat([tokens, new], 1)
            done |= new == 0
            decision = torch.tensor(int(done.all()))
            dist.all_reduce(decision, op=dist.ReduceOp.MIN)
            if decision.item():
                break
        return tokens
""",
    ),
)
KEEPS = (
    Example(
        category="divergent_control_flow",
        before="""\
import torch
import torch.distributed as dist

def train(model, batches):
    for x in batches:
        loss = model(x)
        bad = (~torch.isfinite(loss)).int()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():  # <-- here
            continue
        loss.backward()
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Reduce the decision; None where no early exit of a training loop is local."""
    found = []
    for source in context.files:
        for node in find(source.module, cst.If):
            if _fits(context, source, node):
                score = (
                    0.9
                    if context.is_near(source, node, 1)
                    else (
                        0.6
                        if context.is_named(source, node)
                        else _from_callee(context, source, node)
                    )
                )
                if score:
                    found.append((score, source, node))
    for score, source, node in sorted(found, key=lambda item: -item[0]):
        result = _rewrite(context, source, node, score)
        if result is not None:
            return result
    return None


def _from_callee(context: Context, source: Source, node: cst.If) -> float:
    """The cause names the function whose result decides."""
    made = {spot.function.name.value for spot in context.spots if spot.function is not None}
    tested = names(node.test)
    if made & tested:
        return 0.6
    function = source.function_of(node)
    for target, value, _ in source.assignments(function.body if function else None):
        if target in tested and made & names(value):
            return 0.5
    return 0.0


def _fits(context: Context, source: Source, node: cst.If) -> bool:
    function = source.function_of(node)
    if function is None or ends_early(node.body) is None or node.orelse is not None:
        return False
    # A cause that names the very test has seen ranks part there; calls that the source does not
    # resolve (a model held by an attribute) may hide how.
    is_end = isinstance(ends_early(node.body), cst.Break)
    is_told = is_end and context.is_near(source, node.test, 0)
    if not source.loops(node) or not (is_told or works(context, source, function.body)):
        return False
    if ranked(source, node.test) or isinstance(source.parent(node), cst.If):
        return False
    if is_local(source, node.test, function) or _fed_value(source, node, function) is not None:
        return True
    return differs(context, source, node.test)


def _fed_value(source: Source, node: cst.If, function: Function) -> tuple[str, Statement] | None:
    """The local metric a decision object or comparison in the test is fed with."""
    wanted = {
        dotted(arg.value)
        for call in find(node.test, cst.Call)
        if isinstance(call.func, cst.Attribute)
        and not source.full_name(call.func).startswith("torch.")
        for arg in call.args
    }
    for part in find(node.test, cst.Comparison):
        wanted.add(dotted(part.left))
    block = source.siblings(node)
    before = block[: list(block).index(node)]
    for statement in reversed(before):
        for target, value, _ in source.assignments(statement):
            calls = list(find(value, cst.Call))
            if target in wanted and target in names(statement) and calls:
                if target in agreed_names(source, function) or _is_clock(value):
                    return None
                return target, statement  # type: ignore[return-value]
    return None


def _is_clock(value: cst.BaseExpression) -> bool:
    return any(
        "time" in code(call.func) or "perf_counter" in code(call.func)
        for call in find(value, cst.Call)
    )


def _rewrite(context: Context, source: Source, node: cst.If, score: float) -> FixerResult | None:
    function = source.function_of(node)
    assert function is not None
    edits = Edits(source)
    dist, torch = edits.module("torch.distributed", node), edits.module("torch", node)
    fed = None if _is_predicate(node.test) else _fed_value(source, node, function)
    if fed is not None:
        name, statement = fed
        mean = free("mean", function, source)
        device = job_device(context, source)
        edits.after(
            statement,
            f"""\
{mean} = {torch}.as_tensor({name}, dtype={torch}.float32{device})
{dist}.all_reduce({mean})
{name} = {mean}.item() / {dist}.get_world_size()
""",
        )
        what = f"`{name}` is averaged over all ranks before it decides"
    else:
        flag = free("decision", function, source)
        device = device_of(context, source, node.test)
        is_for_all = _is_for_all(node)
        edits.before(
            node,
            f"""\
{flag} = {torch}.tensor(int({code(node.test)}){device})
{dist}.all_reduce({flag}, op={dist}.ReduceOp.{"MIN" if is_for_all else "MAX"})
""",
        )
        edits.replace(node.test, cst.parse_expression(f"{flag}.item()"))
        what = "as soon as one rank would do it, all do"
        if is_for_all:
            what = "a rank that is done goes on with the others until all are"
    return context.result(
        edits,
        why=f"{source.path}:{source.line(node)} `{code(node.test)}` is decided by each rank alone, "
        "and the ranks that go on wait for the one that did not.",
        behaviour=f"One small all-reduce more per decision; {what}.",
        score=score,
    )


def _is_for_all(node: cst.If) -> bool:
    """Whether a loop ends once everything is done: the ranks that are not must not be cut off."""
    is_end = isinstance(ends_early(node.body), cst.Break)
    test = node.test
    is_all = isinstance(test, cst.Call) and dotted(test.func).rpartition(".")[2] == "all"
    return is_end and is_all


def _is_predicate(test: cst.BaseExpression) -> bool:
    """Tests of single values (is it finite?) are decided, not averaged: a mean of NaN is NaN."""
    text = code(test)
    return any(word in text for word in ("isfinite", "isnan", "isinf", "any(", "all(", "time"))
