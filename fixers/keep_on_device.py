"""SYN001 Add losses up without waiting for the device.

## What it does
Replaces `.item()` by `.detach()` where a running sum takes the value of every step, and in what
is appended to a list.

## Why it hurts
`.item()` waits until the device has finished everything before it; then the next kernels start
late.

## When it is wrong
The sum is formatted or compared in every step: then it waits there.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import backward_call
from eroica.fix.nodes import find_each
from eroica.fix.tree import assigned, code, find, names

CODE = "SYN001"
ANSWERS = frozenset({"host_sync", "growing_state"})
LABEL = "review"
FIXES = (
    Example(
        category="host_sync",
        before="""\
def train(model, data):
    total = 0.0
    for x in data:
        loss = model(x)
        loss.backward()
        total += loss.item()  # <-- here
    print(f"{total:.3f}")
""",
        after="""\
def train(model, data):
    total = 0.0
    for x in data:
        loss = model(x)
        loss.backward()
        total += loss.detach()
    print(f"{total:.3f}")
""",
    ),
    Example(
        category="growing_state",
        before="""\
def train(model, data):
    losses = []
    for x in data:
        loss = model(x)
        loss.backward()
        losses.append(loss)  # <-- here
""",
        after="""\
def train(model, data):
    losses = []
    for x in data:
        loss = model(x)
        loss.backward()
        losses.append(loss.detach())
""",
    ),
    Example(
        category="growing_state",
        before="""\
def train(model, data):
    total = 0.0
    for x in data:
        loss = model(x).mean()
        loss.backward()
        total = total + loss  # <-- here
    return total
""",
        after="""\
def train(model, data):
    total = 0.0
    for x in data:
        loss = model(x).mean()
        loss.backward()
        total = total + loss.detach()
    return total
""",
    ),
)
KEEPS = (
    Example(
        category="host_sync",
        before="""\
def train(model, data):
    for x in data:
        loss = model(x)
        loss.backward()
        if loss.item() > 3:  # <-- here
            break
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Keep the numbers on the device; None where no sum or list takes one each step."""
    for source, loop in context.loops(0.6):
        if backward_call(loop.body) is None:
            continue
        edits = Edits(source)
        lines = (
            _host_sync(edits, loop)
            if context.cause.category == "host_sync"
            else _graphs(edits, loop)
        )
        if lines:
            return context.result(
                edits,
                why=f"{source.path}:{source.line(lines[0])} "
                + (
                    "waits for the device in every step."
                    if context.cause.category == "host_sync"
                    else "keeps every step's tensor with the graph behind it."
                ),
                behaviour="The number stays a tensor without a graph; print and format as before.",
                score=0.8 * context.closeness(source, lines[0]),
            )
    return None


def _host_sync(edits: Edits, loop: cst.CSTNode) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = []
    for aug in find(loop, cst.AugAssign):
        for call in find(aug.value, cst.Call):
            if (
                isinstance(call.func, cst.Attribute)
                and call.func.attr.value == "item"
                and not call.args
            ):
                edits.replace(call.func.attr, cst.Name("detach"))
                found.append(call)
    for node in find(loop, cst.SimpleStatementLine):  # smooth = 0.9 * smooth + 0.1 * loss.item()
        made = assigned(node)
        if made is None or not isinstance(made[1], cst.BinaryOperation):
            continue
        if any(code(part) == code(made[0]) for part in find_each(made[1], cst.Name, cst.Attribute)):
            for call in find(made[1], cst.Call):
                if isinstance(call.func, cst.Attribute) and code(call).endswith(".item()"):
                    edits.replace(call.func.attr, cst.Name("detach"))
                    found.append(call)
    for call in find(loop, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "append" and call.args:
            value = call.args[0].value
            if code(value).endswith(".item()") and isinstance(value, cst.Call):
                assert isinstance(value.func, cst.Attribute)
                edits.replace(value.func.attr, cst.Name("detach"))
                found.append(call)
    return found


def _graphs(edits: Edits, loop: cst.CSTNode) -> list[cst.CSTNode]:
    """``losses.append(loss)`` and ``total += loss`` of what ``loss.backward()`` was called on."""
    backward = backward_call(loop)
    if backward is None or not isinstance(backward.func, cst.Attribute):
        return []
    loss = code(backward.func.value)
    found: list[cst.CSTNode] = []
    for call in find(loop, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "append" and call.args:
            if code(call.args[0].value) == loss:
                edits.replace_text(call.args[0].value, f"{loss}.detach()")
                found.append(call)
    for aug in find(loop, cst.AugAssign):
        if code(aug.value) == loss:
            edits.replace_text(aug.value, f"{loss}.detach()")
            found.append(aug)
    for node in find(loop, cst.SimpleStatementLine):  # total = total + loss
        made = assigned(node)
        if made is None:
            continue
        target, value = code(made[0]), made[1]
        if isinstance(value, cst.BinaryOperation) and target != loss:
            for part, other in ((value.right, value.left), (value.left, value.right)):
                if code(part) == loss and target in names(other):
                    edits.replace_text(part, f"{loss}.detach()")
                    found.append(node)
                    break
    return found
