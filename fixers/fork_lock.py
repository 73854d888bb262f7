"""FRK001 Renew a lock in forked children.

## What it does
Registers `os.register_at_fork(after_in_child=...)` where the lock is made, so that loader workers
and other forked children start with a lock that is free.

## Why it hurts
`fork` copies a lock in the state it has at that moment, without the thread that would release it.
A worker forked while a thread held the lock waits for it for ever.

## When it is wrong
The lock guards something shared with the parent (a file, a pipe): then children need a lock
between processes. Forking before the thread starts, or `multiprocessing_context="forkserver"`, is
safer where the data set can be pickled.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Function, Source, Statement, code, dotted, find

CODE = "FRK001"
ANSWERS = frozenset({"fork_lock_deadlock", "thread_lock_deadlock"})
LABEL = "review"
FIXES = (
    Example(
        category="fork_lock_deadlock",
        before="""\
import threading

class Log:
    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()

    def write(self, text):
        with self.lock:  # <-- here
            print(text)
""",
        after="""\
import os
import threading

class Log:
    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self):
        self.lock = threading.Lock()

    def write(self, text):
        with self.lock:
            print(text)
""",
    ),
    Example(
        category="fork_lock_deadlock",
        before="""\
import os
import threading

LOCK = threading.Lock()

def write(text):
    with LOCK:  # <-- here
        print(text)
""",
        after="""\
import os
import threading

LOCK = threading.Lock()


def _renew_lock():
    global LOCK
    LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)

def write(text):
    with LOCK:
        print(text)
""",
    ),
)
KEEPS = (
    Example(
        category="fork_lock_deadlock",
        before="""\
import os
import threading

class Log:
    def __init__(self):
        self.lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self):
        self.lock = threading.Lock()

    def write(self, text):
        with self.lock:  # <-- here
            print(text)
""",
    ),
)
_KINDS = (
    "threading.Lock",
    "threading.RLock",
    "threading.Condition",
    "threading.Semaphore",
    "threading.BoundedSemaphore",
    "queue.Queue",
    "queue.SimpleQueue",
    "concurrent.futures.ThreadPoolExecutor",
    "concurrent.futures.thread.ThreadPoolExecutor",
    "multiprocessing.pool.ThreadPool",
    "multiprocessing.dummy.Pool",
)


def fix(context: Context) -> FixerResult | None:
    """Register the renewal; None where the named functions use no lock of the project."""
    if context.cause.category != "fork_lock_deadlock" and not _forks(context):
        return None
    wanted = _locks_used(context)
    for source in context.files:
        if "register_at_fork" in source.text:
            continue
        for target, value, node in source.assignments():
            kind = source.full_name(getattr(value, "func", None))
            if kind not in _KINDS or target.rpartition(".")[2] not in wanted:
                continue
            statement = source.statement_of(node)
            owner = source.function_of(node)
            if statement is None:
                continue
            if target.startswith("self.") and owner is not None and owner.name.value == "__init__":
                return _in_class(context, source, target, value, owner, statement)
            if owner is None and "." not in target and source.class_of(node) is None:
                return _in_module(context, source, target, value, statement)
    return None


def _forks(context: Context) -> bool:
    return any("num_workers" in s.text or "fork" in s.text.lower() for s in context.files)


def _locks_used(context: Context) -> set[str]:
    """The last names of what the named functions enter or acquire; any lock where they say none."""
    found: set[str] = set()
    for spot in context.scopes:
        for item in find(spot.scope, cst.WithItem):
            found.add(dotted(item.item).rpartition(".")[2])
        for call in find(spot.scope, cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in (
                "acquire",
                "put",
                "get",
                "submit",
                "map",
            ):
                found.add(dotted(call.func.value).rpartition(".")[2])
    found.discard("")
    made = {
        target.rpartition(".")[2]
        for source in context.files
        for target, value, _ in source.assignments()
        if source.full_name(getattr(value, "func", None)) in _KINDS
    }
    return (found & made) or made


def _in_class(
    context: Context,
    source: Source,
    target: str,
    value: cst.BaseExpression,
    init: Function,
    statement: Statement,
) -> FixerResult | None:
    edits = Edits(source)
    name = target.rpartition(".")[2].lstrip("_")
    os = edits.module("os", statement)
    edits.after(statement, f"{os}.register_at_fork(after_in_child=self._renew_{name})")
    edits.also_at_top(value)
    method = edits.statements(f"\ndef _renew_{name}(self):\n    {target} = {code(value)}\n")
    edits.replace(init, lambda node: cst.FlattenSentinel([node, *method]))  # type: ignore[arg-type]
    return _result(context, source, target, statement, edits)


def _in_module(
    context: Context, source: Source, target: str, value: cst.BaseExpression, statement: Statement
) -> FixerResult | None:
    edits = Edits(source)
    os = edits.module("os")
    edits.after(
        statement,
        f"""

def _renew_{target.lower().lstrip("_")}():
    global {target}
    {target} = {code(value)}


{os}.register_at_fork(after_in_child=_renew_{target.lower().lstrip("_")})
""",
    )
    return _result(context, source, target, statement, edits)


def _result(
    context: Context, source: Source, target: str, statement: Statement, edits: Edits
) -> FixerResult | None:
    return context.result(
        edits,
        why=f"`{target}` made at {source.path}:{source.line(statement)} is copied into forked "
        "workers as it is at that moment, held or not.",
        behaviour="Children get a new lock of their own; the parent's is untouched.",
        score=0.9 if context.cause.category == "fork_lock_deadlock" else 0.35,
    )
