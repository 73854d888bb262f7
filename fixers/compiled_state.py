"""CMP002 Keep what changes in a compiled module in a tensor.

## What it does
Turns a number that a module counts up in `forward` into a buffer, so that compiled code does not
depend on its value. Moves `torch.compile` out of a loop.

## Why it hurts
A Python number in a module is a constant to the compiler: each new value is compiled anew. A
module that is compiled again in each turn starts without what was compiled before.

## When it is wrong
The number decides which code runs, not only what it computes.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, assigned, code, dotted, find, names, single

CODE = "CMP002"
ANSWERS = frozenset({"recompilation"})
LABEL = "review"
FIXES = (
    Example(
        before="""\
import torch
import torch.nn as nn

class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * (1.0 + 0.01 * self.calls)

def build(width):
    return torch.compile(Gate(width))  # <-- here
""",
        after="""\
import torch
import torch.nn as nn

class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.register_buffer("calls", torch.tensor(0.0), persistent=False)

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * (1.0 + 0.01 * self.calls)

def build(width):
    return torch.compile(Gate(width))
""",
    ),
    Example(
        before="""\
import torch

def train(model, data):
    for x in data:
        fast = torch.compile(model, backend="eager")  # <-- here
        fast(x).backward()
""",
        after="""\
import torch

def train(model, data):
    fast = torch.compile(model, backend="eager")
    for x in data:
        fast(x).backward()
""",
    ),
)
KEEPS = (
    Example(
        before="""\
import torch
import torch.nn as nn

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls % 100 == 0:
            print(self.calls)
        return x

def build():
    return torch.compile(Gate())  # <-- here
""",
    ),
    Example(
        before="""\
import torch

def train(models, data):
    for model in models:
        fast = torch.compile(model)  # <-- here
        fast(data).backward()
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Make it a buffer, or compile once; None where neither is what is compiled again."""
    return _in_loop(context) or _counter(context)


def _in_loop(context: Context) -> FixerResult | None:
    for source, line in context.every(cst.SimpleStatementLine, 0.3):
        made, loops = assigned(line), source.loops(line)
        if made is None or not isinstance(made[1], cst.Call) or not loops:
            continue
        call = made[1]
        if source.full_name(call.func) != "torch.compile" or not call.args:
            continue
        outer = loops[-1]
        bound = {n for a in find(outer.body, cst.AssignTarget) for n in names(a.target)}
        bound |= {n for a in find(outer, cst.For) for n in names(a.target)}
        if {n for arg in call.args for n in names(arg.value)} & bound:
            continue
        edits = Edits(source)
        edits.remove(line)
        edits.before(outer, "__S__", S=[line])
        return context.result(
            edits,
            why=f"{source.path}:{source.line(line)} compiles anew in each turn of the loop.",
            behaviour="The compiled function is made once; what it computes is the same.",
            score=0.95,
        )
    return None


def _counter(context: Context) -> FixerResult | None:
    """``self.n = 0`` in the constructor, ``self.n += 1`` in forward, of a module."""
    if not any("compile(" in source.text or ".compile" in source.text for source in context.files):
        return None
    for source in context.files:
        for owner in find(source.module, cst.ClassDef):
            methods = {f.name.value: f for f in find(owner.body, cst.FunctionDef)}
            if not source.uses("torch") or "forward" not in methods or "__init__" not in methods:
                continue
            for target, value, node in source.assignments(methods["__init__"].body):
                statement = source.statement_of(node)
                if not isinstance(value, cst.Integer | cst.Float) or statement is None:
                    continue
                if single(statement) is not node or not _changes(methods["forward"], target):
                    continue
                if not _is_only_computed_with(source, owner, target):
                    continue
                return _as_buffer(context, source, target, value, statement)
    return None


def _changes(forward: cst.FunctionDef, target: str) -> bool:
    if not target.startswith("self."):
        return False
    changed = [code(n.target) for n in find(forward.body, cst.AugAssign)]
    changed += [code(n.target) for n in find(forward.body, cst.AssignTarget)]
    return target in changed


def _is_only_computed_with(source: Source, owner: cst.ClassDef, target: str) -> bool:
    """No condition, index, range or text depends on it."""
    for node in find(owner, cst.Attribute):
        if dotted(node) != target:
            continue
        for above in source.ancestors(node):
            if isinstance(above, cst.SimpleStatementLine):
                break
            if isinstance(above, cst.If | cst.While | cst.Subscript | cst.FormattedString):
                return False
            if isinstance(above, cst.IfExp | cst.Comparison):
                return False
            if isinstance(above, cst.Call) and re.match(r"range|int|str|print", code(above.func)):
                return False
        statement = source.statement_of(node)
        if isinstance(statement, cst.If | cst.While) and target in code(statement.test):
            return False
    return True


def _as_buffer(
    context: Context,
    source: Source,
    target: str,
    value: cst.BaseExpression,
    statement: cst.CSTNode,
) -> FixerResult | None:
    edits = Edits(source)
    torch = edits.module("torch", statement)
    name = target.removeprefix("self.")
    start = float(code(value).replace("_", ""))
    text = f'self.register_buffer("{name}", {torch}.tensor({start!r}), persistent=False)'
    edits.replace(statement, edits.statements(text))
    return context.result(
        edits,
        why=f"{source.path}:{source.line(statement)} `{target}` is a Python number that changes in "
        "forward(): compiled code is specialized on each of its values.",
        behaviour="It is a tensor on the module's device, with the same values in its precision.",
        score=0.9,
    )
