"""DBG002 Take out hooks that check every tensor.

## What it does
Removes `register_forward_hook(check)` and its like where `check` does nothing but look for NaN,
print or assert.

## Why it hurts
The hook runs for each module or parameter in each step, and each look at a value waits for it.

## When it is wrong
The search for the NaN is still going on.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import definitions
from eroica.fix.tree import Source, body_of, called, code, dotted, find

CODE = "DBG002"
ANSWERS = frozenset(
    {
        "debug_setting_left_on",
        "host_sync",
        "python_overhead",
        "straggler_compute",
        "logging_overhead",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="debug_setting_left_on",
        before="""\
import torch

def check(module, inputs, output):
    if not torch.isfinite(output).all():
        raise ValueError(module)  # <-- here

def main(model, data):
    for m in model.modules():
        m.register_forward_hook(check)
    for x in data:
        model(x).mean().backward()
""",
        after="""\
import torch

def check(module, inputs, output):
    if not torch.isfinite(output).all():
        raise ValueError(module)

def main(model, data):
    for x in data:
        model(x).mean().backward()
""",
    ),
)
KEEPS = (
    Example(
        category="debug_setting_left_on",
        before="""\
import torch

def keep(module, inputs, output):
    module.seen = output.detach()  # <-- here

def main(model, data):
    for m in model.modules():
        m.register_forward_hook(keep)
""",
    ),
    Example(
        category="debug_setting_left_on",
        before="""\
import torch

def scale(grad):
    if torch.isfinite(grad).all():
        return grad * 2  # <-- here

def main(model):
    for p in model.parameters():
        p.register_hook(scale)
""",
    ),
)
_HOOKS = re.compile(
    r"register_(?:full_backward_|forward_|forward_pre_|full_backward_pre_|post_accumulate_grad_)?hook"
)
_CHECKS = re.compile(r"isfinite|isnan|isinf|\bassert\b|print\(|\.debug\(|\.warning\(")


def fix(context: Context) -> FixerResult | None:
    """Remove the registrations; None where no hook only checks."""
    edits: dict[str, Edits] = {}
    places: list[str] = []
    score = 0.0
    for source in context.files:
        for line in find(source.module, cst.SimpleStatementLine):
            call = called(line)
            if call is None or not isinstance(call.func, cst.Attribute) or not call.args:
                continue
            if not _HOOKS.fullmatch(call.func.attr.value):
                continue
            near = _only_checks(context, source, call)
            if near < 0.6:
                continue
            loops = source.loops(line)
            whole = loops[0] if loops and len(body_of(loops[0])) == 1 else line
            edits.setdefault(source.path, Edits(source)).remove(whole)
            places.append(f"{source.path}:{source.line(line)}")
            score = max(score, near)
    if not places:
        return None
    return context.result(
        *edits.values(),
        why=f"{', '.join(places)} hangs a check on every module or tensor, in every step.",
        behaviour="The program computes the same; a NaN is no longer caught where it arises.",
        score=0.9 * score,
    )


def _only_checks(context: Context, source: Source, call: cst.Call) -> float:
    """How close the cause is to a hook that returns and keeps nothing; 0 for any other."""
    hook = call.args[0].value
    if isinstance(hook, cst.Lambda) or not dotted(hook):
        return 0.0
    found = definitions(source, cst.Call(hook), context.files)
    if len(found) != 1:
        return 0.0
    home, function = found[0]
    text = code(function.body)
    returns = any(r.value is not None for r in find(function.body, cst.Return))
    keeps = any(
        "." in code(t.target) or "[" in code(t.target)
        for t in find(function.body, cst.AssignTarget)
    )
    keeps = keeps or re.search(r"\.(?:append|add|update|put|extend)\(|\+=", text) is not None
    if returns or keeps or not _CHECKS.search(text):
        return 0.0
    return max(context.closeness(home, s) for s in (function, *body_of(function)))
