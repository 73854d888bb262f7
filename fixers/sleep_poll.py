"""POL002 Wait for an event instead of sleeping and looking.

## What it does
Turns a boolean attribute that a loop polls with `time.sleep` into a `threading.Event`: it is set,
cleared and waited for. Where that is not possible, shortens the sleep.

## Why it hurts
What is ready right after a look is noticed one sleep later, in every step.

## When it is wrong
The flag is set in another process: an event of threads does not cross that border. What never
comes is not helped by looking more often: of a stuck job nothing is changed.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.loops import asked_if_empty
from eroica.fix.tree import Source, Statement, called, code, dotted, find, pairs

CODE = "POL002"
ANSWERS = frozenset(
    {"polling_wait", "dataloader_bottleneck", "straggler_data_loading", "python_overhead"}
)
LABEL = "review"
SHORT_S = 0.0005
FIXES = (
    Example(
        category="polling_wait",
        before="""\
import threading
import time

class Buffer:
    def __init__(self):
        self.ready = False

    def fill(self):
        self.batch, self.ready = make(), True

    def next(self):
        while not self.ready:  # <-- here
            time.sleep(0.03)
        self.ready = False
        return self.batch
""",
        after="""\
import threading
import time

class Buffer:
    def __init__(self):
        self.ready = threading.Event()

    def fill(self):
        self.batch = make()
        self.ready.set()

    def next(self):
        self.ready.wait()
        self.ready.clear()
        return self.batch
""",
    ),
    Example(
        category="polling_wait",
        before="""\
import time

def wait(q):
    while q.empty():  # <-- here
        time.sleep(0.05)
    return q.get()
""",
        after="""\
import time

def wait(q):
    return q.get()
""",
    ),
)
KEEPS = (
    Example(
        category="polling_wait",
        before="""\
import time

def wait(flag):
    while not flag.done:  # <-- here
        time.sleep(0.0001)
""",
    ),
    Example(
        category="polling_wait",
        symptom="stuck",
        before="""\
import os
import time

def wait(path):
    while not os.path.exists(path):  # <-- here
        time.sleep(0.1)
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Wait for the event; None where no loop near the cause sleeps and looks."""
    if context.symptom in ("stuck", "failed"):
        return None
    for source, loop in context.every(cst.While, 0.6):
        body = list(loop.body.body)
        call = called(body[0]) if len(body) == 1 else None
        if call is None or not source.full_name(call.func).endswith("sleep"):
            continue
        result = (
            _event(context, source, loop)
            or _blocking_get(context, source, loop)
            or _shorter(context, source, loop, call)
        )
        if result is not None:
            return result
    return None


def _event(context: Context, source: Source, loop: cst.While) -> FixerResult | None:
    """``while not self.flag`` where the class only ever assigns True and False to it."""
    if not isinstance(loop.test, cst.UnaryOperation) or not isinstance(loop.test.operator, cst.Not):
        return None
    flag = dotted(loop.test.expression)
    owner = source.class_of(loop)
    if not flag.startswith("self.") or owner is None or not source.uses("threading"):
        return None
    lines = _assigning_lines(source, owner, flag)
    reads = [
        n for n in find(owner, cst.Attribute) if dotted(n) == flag and not _is_target(source, n)
    ]
    if lines is None or source.text.count("." + flag.removeprefix("self.")) != len(reads) + len(
        lines
    ):
        return None
    edits = Edits(source)
    threading = edits.module("threading", loop)
    for line, function in lines:
        edits.replace(line, edits.statements("\n".join(_split(line, flag, threading, function))))
    for read in reads:
        if read is not loop.test.expression:
            edits.replace_text(read, f"{flag}.is_set()")
    edits.replace(loop, edits.statements(f"{flag}.wait()"))
    return _result(
        context, source, loop, edits, "The waiting thread wakes at once when the flag is set."
    )


def _is_target(source: Source, node: cst.Attribute) -> bool:
    for above in source.ancestors(node):
        if isinstance(above, cst.AssignTarget):
            return True
        if isinstance(above, cst.SimpleStatementLine | cst.Subscript | cst.Call):
            return False
    return False


def _assigning_lines(
    source: Source, owner: cst.ClassDef, flag: str
) -> list[tuple[Statement, str]] | None:
    """The lines that set the flag, once in ``__init__`` to False, else to a literal."""
    found: list[tuple[Statement, str]] = []
    for assign in find(owner, cst.Assign):
        parts = [p for t in assign.targets for p in pairs(t.target, assign.value)]
        mine = [right for left, right in parts if dotted(left) == flag]
        if not mine:
            continue
        statement, function = source.statement_of(assign), source.function_of(assign)
        if len(mine) != 1 or code(mine[0]) not in ("True", "False") or len(assign.targets) != 1:
            return None
        if (
            function is None
            or statement is None
            or (function.name.value == "__init__" and code(mine[0]) != "False")
        ):
            return None
        found.append((statement, function.name.value))
    inits = [name for _, name in found if name == "__init__"]
    return found if len(inits) == 1 else None


def _split(line: Statement, flag: str, threading: str, function: str) -> list[str]:
    """A (tuple) assignment as single lines, in order."""
    assign = next(find(line, cst.Assign))
    out = []
    for left, right in pairs(assign.targets[0].target, assign.value):
        if dotted(left) != flag:
            out.append(f"{code(left)} = {code(right)}")
        elif function == "__init__":
            out.append(f"{flag} = {threading}.Event()")
        else:
            out.append(f"{flag}.{'set' if code(right) == 'True' else 'clear'}()")
    if any(text == f"{flag}.set()" for text in out):  # readers wake here: all else must be in place
        out.sort(key=lambda text: text == f"{flag}.set()")
    else:  # cleared before the others learn that there is room
        out.sort(key=lambda text: text != f"{flag}.clear()")
    return out


def _blocking_get(context: Context, source: Source, loop: cst.While) -> FixerResult | None:
    """``while q.empty(): sleep`` right before ``q.get()``: get waits by itself."""
    queue = asked_if_empty(loop.test)
    after = source.following(loop)
    if not queue or not after or f"{queue}.get()" not in code(after[0]):
        return None
    edits = Edits(source)
    edits.remove(loop)
    return _result(context, source, loop, edits, "get() returns as soon as there is an item.")


def _shorter(
    context: Context, source: Source, loop: cst.While, call: cst.Call
) -> FixerResult | None:
    """Sleep a hundredth of it, where the length is written here."""
    if not call.args or not isinstance(call.args[0].value, cst.Float | cst.Integer):
        return None
    if float(code(call.args[0].value)) <= 4 * SHORT_S:
        return None
    edits = Edits(source)
    edits.replace_text(call.args[0].value, str(SHORT_S))
    return _result(
        context, source, loop, edits, "It looks more often; a blocking wait would be better."
    )


def _result(
    context: Context, source: Source, loop: cst.While, edits: Edits, behaviour: str
) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(loop)} sleeps between looks, so what is ready waits for "
        "the end of the sleep.",
        behaviour=behaviour,
        score=0.9 * context.closeness(source, loop),
    )
