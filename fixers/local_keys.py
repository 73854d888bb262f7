"""CNT001 Reduce the same keys on every rank.

## What it does
Where a loop over a dictionary makes a collective per key, loops over the keys of all ranks
together, and gives a key this rank does not have the value it starts from.

## Why it hurts
Keys come from the data of a rank. A rank that has not seen one makes a collective less, pairs
the next with another rank's key, and in the end one side waits for ever.

## When it is wrong
All ranks always have the same keys: then the exchange of keys is wasted.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import collectives
from eroica.fix.tree import Source, code, dotted, find, names

CODE = "CNT001"
ANSWERS = frozenset(
    {
        "collective_count_mismatch",
        "divergent_control_flow",
        "collective_shape_mismatch",
        "collective_order_mismatch",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="collective_count_mismatch",
        before="""\
import torch
import torch.distributed as dist

def count(stats, name, value):
    stats[name] = stats.get(name, 0.0) + value

def report(stats):
    for name in sorted(stats):
        t = torch.tensor(stats[name])
        dist.all_reduce(t)  # <-- here
        print(name, t.item())
""",
        after="""\
import torch
import torch.distributed as dist

def count(stats, name, value):
    stats[name] = stats.get(name, 0.0) + value

def report(stats):
    all_keys = [None] * dist.get_world_size()
    dist.all_gather_object(all_keys, list(stats))
    for name in sorted({key for keys in all_keys for key in keys}):
        t = torch.tensor(stats.get(name, 0.0))
        dist.all_reduce(t)
        print(name, t.item())
""",
    ),
    Example(
        category="collective_count_mismatch",
        before="""\
import torch
import torch.distributed as dist

def log_all(metrics):
    out = {}
    for key, value in metrics.items():
        t = torch.tensor(value)
        dist.all_reduce(t)  # <-- here
        out[key] = t.item()
    return out
""",
        after="""\
import torch
import torch.distributed as dist

def log_all(metrics):
    out = {}
    all_keys = [None] * dist.get_world_size()
    dist.all_gather_object(all_keys, list(metrics))
    for key in sorted({key for keys in all_keys for key in keys}):
        value = metrics.get(key, 0.0)
        t = torch.tensor(value)
        dist.all_reduce(t)
        out[key] = t.item()
    return out
""",
    ),
)
KEEPS = (
    Example(
        category="collective_count_mismatch",
        before="""\
import torch
import torch.distributed as dist

NAMES = ["a", "b"]

def report(stats):
    for name in NAMES:
        t = torch.tensor(stats.get(name, 0.0))
        dist.all_reduce(t)  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Loop over everyone's keys; None where no loop over a dictionary holds a collective."""
    for source, loop in context.loops():
        if not isinstance(loop, cst.For) or not collectives(source, loop.body):
            continue
        table, has_items = _table(loop)
        if not table:
            continue
        default = _default(context, table) or _plain_default(source, loop, table, has_items)
        if default is None:
            continue
        edits = Edits(source)
        dist = edits.module("torch.distributed", loop)
        edits.before(
            loop,
            f"""\
all_keys = [None] * {dist}.get_world_size()
{dist}.all_gather_object(all_keys, list({table}))
""",
        )
        edits.replace_text(loop.iter, "sorted({key for keys in all_keys for key in keys})")
        if has_items:
            assert isinstance(loop.target, cst.Tuple)
            key, value = (code(element.value) for element in loop.target.elements)
            edits.replace(loop.target, cst.parse_expression(key))
            edits.before(loop.body.body[0], f"{value} = {table}.get({key}, {default})")
        else:
            key = code(loop.target)
            for use in find(loop.body, cst.Subscript):
                if re.fullmatch(re.escape(f"{table}[{key}]"), code(use)):
                    edits.replace_text(use, f"{table}.get({key}, {default})")
        return context.result(
            edits,
            why=f"{source.path}:{source.line(loop)} makes one collective for each key of "
            f"`{table}`, and each rank has its own keys.",
            behaviour="One exchange of the keys more; a rank without a key contributes its start "
            "value.",
            score=0.9 * context.closeness(source, loop),
        )
    return None


def _table(loop: cst.For) -> tuple[str, bool]:
    """The dictionary a loop runs over, and whether it takes items."""
    text = code(loop.iter)
    match = re.fullmatch(r"(?:sorted|list)\((.+)\)", text)
    text = match[1] if match else text
    match = re.fullmatch(r"([\w.]+)\.(items|keys)\(\)", text)
    if match and match[2] == "items":
        is_pair = isinstance(loop.target, cst.Tuple) and len(loop.target.elements) == 2
        return (match[1], True) if is_pair else ("", False)
    table = match[1] if match else text
    is_used = any(
        code(use) == f"{table}[{code(loop.target)}]" for use in find(loop.body, cst.Subscript)
    )
    return (table, False) if re.fullmatch(r"[\w.]+", table) and is_used else ("", False)


def _default(context: Context, table: str) -> str | None:
    """What the table's values start from, as some other line says it."""
    last = table.rpartition(".")[2]
    for source in context.files:
        for call in find(source.module, cst.Call):
            if (
                isinstance(call.func, cst.Attribute)
                and call.func.attr.value
                in (
                    "get",
                    "setdefault",
                )
                and dotted(call.func.value).rpartition(".")[2] == last
                and len(call.args) == 2
            ):
                return code(call.args[1].value)
        for target, value, _ in source.assignments():
            if target.rpartition(".")[2] == last and isinstance(value, cst.Call) and value.args:
                kind = code(value.args[0].value)
                if dotted(value.func).endswith("defaultdict") and kind in ("float", "int", "list"):
                    return {"float": "0.0", "int": "0", "list": "[]"}[kind]
            if target.rpartition(".")[2] == last and dotted(getattr(value, "func", None)).endswith(
                "Counter"
            ):
                return "0"
    return None


def _plain_default(source: Source, loop: cst.For, table: str, has_items: bool) -> str | None:
    """A value that goes straight into a tensor is a number."""
    value = f"{table}[{code(loop.target)}]"
    if has_items and isinstance(loop.target, cst.Tuple):
        value = code(loop.target.elements[1].value)
    for call in find(loop.body, cst.Call):
        func = source.full_name(call.func)
        if func in ("torch.tensor", "torch.as_tensor") and call.args:
            if names(call.args[0].value) and code(call.args[0].value) in (value, f"float({value})"):
                return "0.0"
    return None
