"""THR002 Use a lock that its holder may take again.

## What it does
Replaces `threading.Lock()` by `threading.RLock()` where a method that holds the lock calls
another that takes it.

## Why it hurts
A plain lock does not know who holds it: the thread waits for itself.

## When it is wrong
The inner call must not see the state in the middle of the outer one's change.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import calls_here, definitions
from eroica.fix.tree import Source, code, dotted, find

CODE = "THR002"
ANSWERS = frozenset({"thread_lock_deadlock"})
LABEL = "review"
FIXES = (
    Example(
        before="""\
import threading

class Table:
    def __init__(self):
        self.lock = threading.Lock()

    def add(self, row):
        with self.lock:
            self.flush()

    def flush(self):
        with self.lock:  # <-- here
            self.rows = []
""",
        after="""\
import threading

class Table:
    def __init__(self):
        self.lock = threading.RLock()

    def add(self, row):
        with self.lock:
            self.flush()

    def flush(self):
        with self.lock:
            self.rows = []
""",
    ),
)
KEEPS = (
    Example(
        before="""\
import threading

class Table:
    def __init__(self):
        self.lock = threading.Lock()

    def add(self, row):
        with self.lock:  # <-- here
            self.rows.append(row)
"""
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Change the constructor; None where no holder of a lock takes it again."""
    for source in context.files:
        for outer in find(source.module, cst.With):
            lock = dotted(outer.items[0].item)
            if not lock or not _retaken(context, source, outer, lock):
                continue
            for target, value, _ in source.assignments():
                is_plain = source.full_name(getattr(value, "func", None)) == "threading.Lock"
                if target == lock and is_plain:
                    edits = Edits(source)
                    assert isinstance(value, cst.Call)
                    edits.replace_text(value.func, _reentrant(code(value.func)))
                    if "." not in code(value.func):
                        edits.add_import("from threading import RLock")
                    return context.result(
                        edits,
                        why=f"{source.path}:{source.line(outer)} holds {lock} and calls code that "
                        "takes it again.",
                        behaviour="The same thread may enter again; other threads wait as before.",
                        score=0.9 * context.closeness(source, outer),
                    )
    return None


def _reentrant(text: str) -> str:
    return text.removesuffix("Lock") + "RLock"


def _retaken(context: Context, source: Source, outer: cst.With, lock: str) -> bool:
    """Does the block, or a function it calls directly, take the lock (of the same object) again?"""
    if any(dotted(i.item) == lock for i in find(outer.body, cst.WithItem)):
        return True
    for call in calls_here(outer.body):
        if lock.startswith("self.") and not dotted(call.func).startswith("self."):
            continue
        for other, function in definitions(source, call, context.files):
            same = other is source and source.class_of(function) is source.class_of(outer)
            if same and any(dotted(i.item) == lock for i in find(function.body, cst.WithItem)):
                return True
    return False
