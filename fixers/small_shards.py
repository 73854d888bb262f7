"""COM003 Do not shard small layers one by one.

## What it does
Where a loop gives each layer to `fully_shard` or `FSDP`, leaves out those with few parameters:
they are gathered together with the module around them. Raises a tiny `min_num_params`.

## Why it hurts
Each sharded module is gathered in forward and backward and reduced once, in collectives of its
own. For a few hundred numbers the latency is all of the cost.

## When it is wrong
Memory is so tight that even small layers must not be held together.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, called, code, find

CODE = "COM003"
ANSWERS = frozenset({"excessive_small_collectives", "redundant_gradient_sync"})
LABEL = "review"
LEAST = "1_000_000"  # parameters of a module that is worth collectives of its own
FIXES = (
    Example(
        category="excessive_small_collectives",
        before="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

def shard(net, mesh):
    for m in list(net.modules()):
        if isinstance(m, nn.Linear):
            fully_shard(m, mesh=mesh)  # <-- here
    return fully_shard(net, mesh=mesh)
""",
        after="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

def shard(net, mesh):
    for m in list(net.modules()):
        if isinstance(m, nn.Linear) and sum(p.numel() for p in m.parameters()) >= 1_000_000:
            fully_shard(m, mesh=mesh)
    return fully_shard(net, mesh=mesh)
""",
    ),
    Example(
        category="excessive_small_collectives",
        before="""\
from torch.distributed.fsdp import fully_shard

def wrap(net):
    for block in net.blocks:
        for layer in block.children():
            fully_shard(layer)  # <-- here
    fully_shard(net)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

def wrap(net):
    for block in net.blocks:
        for layer in block.children():
            if sum(p.numel() for p in layer.parameters()) >= 1_000_000:
                fully_shard(layer)
    fully_shard(net)
""",
    ),
    Example(
        category="excessive_small_collectives",
        before="""\
import functools
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)

def wrap(net):
    return FSDP(net, auto_wrap_policy=policy)  # <-- here
""",
        after="""\
import functools
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

policy = functools.partial(size_based_auto_wrap_policy, min_num_params=1_000_000)

def wrap(net):
    return FSDP(net, auto_wrap_policy=policy)
""",
    ),
)
KEEPS = (
    Example(
        category="excessive_small_collectives",
        before="""\
from torch.distributed.fsdp import fully_shard

def shard(net):
    return fully_shard(net)  # <-- here
""",
    ),
    Example(
        category="excessive_small_collectives",
        before="""\
import torch.distributed as dist

def average(net):
    for layer in net.layers:
        dist.all_reduce(layer.weight.grad)  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Ask for a size; None where nothing shards layers in a loop, and the root as well."""
    return _loops(context) or _policy(context)


def _shards(source: Source, call: cst.Call) -> bool:
    return source.full_name(call.func).rpartition(".")[2] in (
        "fully_shard",
        "FullyShardedDataParallel",
        "FSDP",
    )


def _loops(context: Context) -> FixerResult | None:
    for source, line in context.every(cst.SimpleStatementLine, 0.3):
        call = called(line)
        loops = [loop for loop in source.loops(line) if isinstance(loop, cst.For)]
        if call is None or not loops or not _shards(source, call) or not call.args:
            continue
        function = source.function_of(line)
        name = code(call.args[0].value)
        if name != code(loops[0].target) or function is None or "numel" in code(function):
            continue
        if not _shards_root(source, function, name):
            continue
        edits = Edits(source)
        large = f"sum(p.numel() for p in {name}.parameters()) >= {LEAST}"
        above = source.enclosing(line, cst.If)
        if isinstance(above, cst.If) and any(n is loops[0] for n in source.ancestors(above)):
            edits.replace_text(above.test, f"{_grouped(above.test)} and {large}")
        else:
            edits.replace(
                line,
                edits.statements(
                    f"if {large}:\n    __S__", S=[line.with_changes(leading_lines=())]
                ),
            )
        return _result(context, source, line, edits)
    return None


def _grouped(test: cst.BaseExpression) -> str:
    is_or = isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or)
    return f"({code(test)})" if is_or else code(test)


def _shards_root(source: Source, function: cst.FunctionDef, layer: str) -> bool:
    """What is left out of the loop is sharded with something around it."""
    return any(
        _shards(source, call) and call.args and code(call.args[0].value) != layer
        for call in find(function.body, cst.Call)
    )


def _policy(context: Context) -> FixerResult | None:
    for source in context.files:
        for call in find(source.module, cst.Call):
            least = argument(call, "min_num_params")
            if least is None or not isinstance(least.value, cst.Integer):
                continue
            if least.value.evaluated_value >= 100_000:
                continue
            edits = Edits(source)
            edits.set_argument(call, "min_num_params", LEAST)
            return _result(context, source, call, edits)
    return None


def _result(
    context: Context, source: Source, node: cst.CSTNode, edits: Edits
) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(node)} shards layers one by one, and each needs "
        "collectives of its own in every step.",
        behaviour=f"Modules of fewer than {LEAST} parameters are gathered with the one around "
        "them: fewer collectives, a little more memory.",
        score=0.9 * max(context.closeness(source, node), 0.75),
    )
