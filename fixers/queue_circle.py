"""THR007 Do not bound both queues of a circle.

## What it does
Takes the size off the queue that brings results back, where the thread that fills it also empties
a bounded queue.

## Why it hurts
One side blocks in `put()` because the other has not taken its results; the other blocks in its own
`put()` for the same reason.

## When it is wrong
Results are large and memory is short: then take results while work is handed out.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.threads import in_threads
from eroica.fix.tree import Source, code, dotted, find

CODE = "THR007"
ANSWERS = frozenset({"thread_lock_deadlock", "blocked_io", "polling_wait"})
LABEL = "review"
FIXES = (
    Example(
        category="thread_lock_deadlock",
        symptom="stuck",
        before="""\
import queue
import threading

class Pipe:
    def __init__(self):
        self.todo, self.done = queue.Queue(2), queue.Queue(maxsize=2)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        while True:
            self.done.put(decode(self.todo.get()))

    def feed(self, items):
        for item in items:
            self.todo.put(item)  # <-- here
        return [self.done.get() for _ in items]
""",
        after="""\
import queue
import threading

class Pipe:
    def __init__(self):
        self.todo, self.done = queue.Queue(2), queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        while True:
            self.done.put(decode(self.todo.get()))

    def feed(self, items):
        for item in items:
            self.todo.put(item)
        return [self.done.get() for _ in items]
""",
    ),
)
KEEPS = (
    Example(
        category="thread_lock_deadlock",
        symptom="stuck",
        before="""\
import queue
import threading

class Feed:
    def __init__(self):
        self.ready = queue.Queue(2)
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self):
        for item in self.items:
            self.ready.put(item)

    def next(self):
        return self.ready.get()  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Take the bound off; None where no thread takes from one bounded queue and fills another."""
    for source in context.files:
        made = {t: v for t, v, _ in source.assignments() if _is_bounded(source, v)}
        for function in find(source.module, cst.FunctionDef):
            if function.name.value not in in_threads(source):
                continue
            text = code(function.body)
            taken = [t for t in made if f"{_last(t)}.get(" in text]
            filled = [t for t in made if f"{_last(t)}.put(" in text and t not in taken]
            if not taken or not filled or not _is_put_elsewhere(source, function, taken):
                continue
            edits = Edits(source)
            call = made[filled[0]]
            assert isinstance(call, cst.Call)
            edits.replace_text(call, f"{code(call.func)}()")
            near = max(context.closeness(source, s) for s in function.body.body)
            return context.result(
                edits,
                why=f"{source.path}:{source.line(call)} {filled[0]} is bounded like {taken[0]}: "
                "both sides can wait for room at once.",
                behaviour=f"{filled[0]} takes any number of results; who feeds is never blocked by "
                "them.",
                score=0.8 * max(near, 0.8),
            )
    return None


def _last(target: str) -> str:
    return target.rpartition(".")[2]


def _is_bounded(source: Source, value: cst.BaseExpression) -> bool:
    if not isinstance(value, cst.Call) or not value.args:
        return False
    name = source.full_name(value.func) or dotted(value.func)
    return bool(re.fullmatch(r"(?:queue|multiprocessing|\w+)\.(?:Joinable|Lifo)?Queue", name))


def _is_put_elsewhere(source: Source, thread: cst.FunctionDef, taken: list[str]) -> bool:
    """Someone else fills the queue that the thread takes from."""
    return any(
        f"{_last(target)}.put(" in code(other.body)
        for other in find(source.module, cst.FunctionDef)
        if other is not thread
        for target in taken
    )
