"""CMP001 Compile once for all shapes.

## What it does
Removes `dynamic=False` from `torch.compile` in favor of `dynamic=True`; passes a Python number
that changes from step to step to a compiled function as a tensor.

## Why it hurts
Each new shape, and each new value of a Python number, is compiled anew, on each rank at other
steps, while the other ranks wait.

## When it is wrong
There are few shapes and the specialized code is much faster: pad to these shapes instead.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, code, dotted, find, last_name

CODE = "CMP001"
ANSWERS = frozenset({"recompilation"})
LABEL = "review"
FIXES = (
    Example(
        before="""\
import torch

def build(model):
    return torch.compile(model, dynamic=False)  # <-- here
""",
        after="""\
import torch

def build(model):
    return torch.compile(model, dynamic=True)
""",
    ),
    Example(
        before="""\
import math
import torch

compiled = torch.compile(loss)

def train(steps):
    for step in range(steps):
        beta = math.cos(step / steps)
        compiled(step_input(), beta)  # <-- here
""",
        after="""\
import math
import torch

compiled = torch.compile(loss)

def train(steps):
    for step in range(steps):
        beta = math.cos(step / steps)
        compiled(step_input(), torch.tensor(beta))
""",
    ),
    Example(
        before="""\
import torch

def build(model):
    return torch.compile(model)  # <-- here
""",
        after="""\
import torch

def build(model):
    return torch.compile(model, dynamic=True)
""",
    ),
)
KEEPS = (
    Example(
        before="""\
import torch

def build(model):
    return torch.compile(model, dynamic=True)  # <-- here
"""
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Pass numbers as tensors, else compile for dynamic shapes; None where both are done."""
    return _numbers(context) or _shapes(context)


def _shapes(context: Context) -> FixerResult | None:
    for source in context.files:
        for call in source.calls(source.module, r"torch\.compile"):
            dynamic = argument(call, "dynamic")
            if dynamic is not None and code(dynamic.value) == "True":
                continue
            if dynamic is None and "torch.tensor(" in source.text:
                continue  # numbers are passed as tensors already: shapes are not what changes
            edits = Edits(source)
            edits.set_argument(call, "dynamic", "True")
            return context.result(
                edits,
                why=f"{source.path}:{source.line(call)} compiles for one shape; the inputs come "
                "in many.",
                behaviour="One compilation for sizes in general; its code may be a little slower.",
                score=0.7,
            )
        for call in find(source.module, cst.Call):
            dynamic = argument(call, "dynamic")
            if (
                dynamic is None
                or code(dynamic.value) != "False"
                or last_name(call.func) != "compile"
            ):
                continue
            edits = Edits(source)
            edits.set_argument(call, "dynamic", "True")
            return context.result(
                edits,
                why=f"{source.path}:{source.line(call)} compiles for one shape; the inputs come "
                "in many.",
                behaviour="One compilation for sizes in general; its code may be a little slower.",
                score=0.7,
            )
        for decorator in find(source.module, cst.Decorator):
            if source.full_name(decorator.decorator) == "torch.compile":
                edits = Edits(source)
                name = code(decorator.decorator)
                edits.replace_text(decorator.decorator, f"{name}(dynamic=True)")
                return context.result(
                    edits,
                    why=f"{source.path}:{source.line(decorator)} compiles for one shape; the "
                    "inputs come in many.",
                    behaviour="One compilation for sizes in general; it may be a little slower.",
                    score=0.65,
                )
    return None


def _compiled_names(source: Source) -> set[str]:
    found = {
        target
        for target, value, _ in source.assignments()
        if isinstance(value, cst.Call) and source.full_name(value.func) == "torch.compile"
    }
    for function in find(source.module, cst.FunctionDef):
        for decorator in function.decorators:
            inner = decorator.decorator
            node = inner.func if isinstance(inner, cst.Call) else inner
            if source.full_name(node) == "torch.compile":
                found.add(function.name.value)
    return found


def _numbers(context: Context) -> FixerResult | None:
    for source in context.files:
        compiled = _compiled_names(source)
        for call in find(source.module, cst.Call):
            if dotted(call.func) not in compiled or not source.loops(call):
                continue
            wanted = [a for a in call.args if dotted(a.value) in _changing_numbers(source, call)]
            if not wanted:
                continue
            edits = Edits(source)
            torch = edits.module("torch", call)
            for arg in wanted:
                edits.replace_text(arg.value, f"{torch}.tensor({code(arg.value)})")
            return context.result(
                edits,
                why=f"{source.path}:{source.line(call)} passes a Python number that changes every "
                "step; compiled code is specialized on its value.",
                behaviour="The number is a tensor inside the compiled function; values are the "
                "same "
                "in its precision.",
                score=0.9,
            )
    return None


def _changing_numbers(source: Source, call: cst.Call) -> set[str]:
    """Names set in the call's loop by arithmetic of Python numbers."""
    found = set()
    for target, value, _ in source.assignments(source.loops(call)[0].body):
        if "." not in target and _is_arithmetic(source, value):
            found.add(target)
    return found


def _is_arithmetic(source: Source, value: cst.BaseExpression) -> bool:
    calls = [source.full_name(c.func) for c in find(value, cst.Call)]
    if not isinstance(value, cst.BinaryOperation | cst.Call | cst.IfExp | cst.UnaryOperation):
        return False
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.MatrixMultiply):
        return False
    return all(
        name.startswith("math.") or name in ("min", "max", "float", "abs", "round")
        for name in calls
    ) and not any(True for _ in find(value, cst.Subscript))
