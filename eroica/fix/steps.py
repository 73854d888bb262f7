"""What belongs to every training step, whatever it costs."""

import re

import libcst as cst

from eroica.fix.context import Context
from eroica.fix.facts import backward_call, calls_here, collectives, definitions
from eroica.fix.tree import Function, Source, called, code, find, main_block

# What changes gradients or weights belongs to every step, whatever it costs.
_TRAINS = re.compile(
    r"\.grad\b[^=\n]*[-+*/]?=(?!=)|\.(?:grad|data)\.\w+_\(|clip_grad|\.(?:copy|mul|div|add|lerp)_\("
    r"|load_state_dict|(?:all_reduce|broadcast|reduce)\([^)]*\.(?:grad|data)\b"
)


def is_training(context: Context, source: Source, statement: cst.BaseStatement) -> bool:
    """True for a statement of which each step needs its own: gradients, weights, what is kept."""
    if backward_call(statement) is not None or _TRAINS.search(code(statement)):
        return True
    if called(statement) is not None and collectives(source, statement):
        return True
    for call in calls_here(statement):
        if any(_TRAINS.search(code(f.body)) for _, f in definitions(source, call, context.files)):
            return True
        last = code(call.func).rpartition(".")[2]
        if last in ("backward", "step", "zero_grad", "next", "update", "set_epoch"):
            return True
        if last == "print" and not context.is_near(source, call, 0):
            return True  # the program's own report stays, unless it is the very line named
        if any(backward_call(f.body) for _, f in definitions(source, call, context.files)):
            return True
        if last in ("add", "append", "extend"):  # keeps something of every step
            return True
    return False


def ratio_of(function: Function) -> tuple[cst.CSTNode, str, str] | None:
    """The last ``return a / b`` of a function that counts both in a loop over a loader."""
    body = main_block(function)
    last = body[-1] if body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    if (
        last is None
        or not isinstance(small, cst.Return)
        or not isinstance(small.value, cst.BinaryOperation)
    ):
        return None
    value = small.value
    if not isinstance(value.operator, cst.Divide):
        return None
    counted = {
        code(a.target)
        for a in find(function.body, cst.AugAssign)
        if isinstance(a.operator, cst.AddAssign)
    }
    first, second = code(value.left), code(value.right)
    if first not in counted or second not in counted or "all_reduce" in code(function.body):
        return None
    return last, first, second
