"""THR006 Let one bad item not end a thread.

## What it does
In a thread that fills or drains a queue in a loop, puts the work on one item into a `try` that
reports the error and goes on with the next.

## Why it hurts
An error ends the thread without a word to the others. Who waits for its next item, or for room in
its queue, waits for ever, and with that rank all ranks.

## When it is wrong
No item must be lost: then hand the error to the waiting side, and let the job fail.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.threads import in_threads
from eroica.fix.tree import Loop, Source, body_of, code, dotted, find, names

CODE = "THR006"
ANSWERS = frozenset(
    {"exception_swallowed", "thread_lock_deadlock", "blocked_io", "polling_wait", "rank_exited"}
)
LABEL = "review"
FIXES = (
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
import threading

class Feed:
    def start(self):
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self):
        for path in self.paths:
            rows = read(path)  # <-- here
            self.queue.put(rows)

    def next(self):
        return self.queue.get()
""",
        after="""\
import logging
import threading

class Feed:
    def start(self):
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self):
        for path in self.paths:
            try:
                rows = read(path)
                self.queue.put(rows)
            except Exception:
                logging.getLogger(__name__).exception("one item is lost")

    def next(self):
        return self.queue.get()
""",
    ),
    Example(
        category="thread_lock_deadlock",
        symptom="stuck",
        before="""\
import threading

class Writer(threading.Thread):
    def run(self):
        while True:
            item = self.todo.get()
            if item is None:
                break
            store(item)

    def write(self, item):
        self.todo.put(item)  # <-- here
""",
        after="""\
import logging
import threading

class Writer(threading.Thread):
    def run(self):
        while True:
            item = self.todo.get()
            try:
                if item is None:
                    break
                store(item)
            except Exception:
                logging.getLogger(__name__).exception("one item is lost")

    def write(self, item):
        self.todo.put(item)
""",
    ),
)
KEEPS = (
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
import threading

class Feed:
    def start(self):
        threading.Thread(target=self._fill).start()

    def _fill(self):
        for path in self.paths:
            try:
                self.queue.put(read(path))  # <-- here
            except OSError as error:
                self.queue.put(error)
""",
    ),
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
def fill(paths, queue):
    for path in paths:
        queue.put(read(path))  # <-- here
""",
    ),
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
import threading

class Feed:
    def start(self):
        threading.Thread(target=self._fill).start()

    def _fill(self):
        records = self._records()
        for _ in range(self.batches):
            self.queue.put(next(records))  # <-- here
""",
    ),
)
_GET = re.compile(r"\.(?:get|get_nowait|recv|popleft)\(")
_PUT = re.compile(r"\.(?:put|put_nowait|send)\(")


def fix(context: Context) -> FixerResult | None:
    """Guard the item; None where no loop of a thread works on items unguarded."""
    if context.symptom not in ("stuck", "failed"):
        return None
    for source, loop in context.loops(0.4):
        function = source.function_of(loop)
        if function is None or function.name.value not in in_threads(source):
            continue
        work = _work(loop)
        if _counts(loop):
            continue  # who takes them counts as well: with one item lost it waits for the last
        if not work or any(isinstance(n, cst.Try) for s in work for n in find(s, cst.Try)):
            continue
        edits = Edits(source)
        logging = edits.module("logging", loop)
        block = [work[0].with_changes(leading_lines=()), *work[1:]]
        text = (
            "try:\n    __WORK__\nexcept Exception:\n"
            f'    {logging}.getLogger(__name__).exception("one item is lost")'
        )
        edits.replace(work[0], edits.statements(text, WORK=block))
        for statement in work[1:]:
            edits.remove(statement)
        return context.result(
            edits,
            why=f"{source.path}:{source.line(loop)} works in a thread, and the first error ends it "
            "for good.",
            behaviour="An item that fails is lost and reported; the thread goes on with the next.",
            score=0.75 * max(_closeness(context, source, loop), 0.6),
        )
    return None


def _counts(loop: Loop) -> bool:
    """Whether a loop makes a given number of items: its variable is used for nothing."""
    return (
        isinstance(loop, cst.For)
        and isinstance(loop.iter, cst.Call)
        and dotted(loop.iter.func) == "range"
        and code(loop.target) not in names(loop.body)
    )


def _closeness(context: Context, source: Source, loop: Loop) -> float:
    return max(context.closeness(source, statement) for statement in body_of(loop))


def _work(loop: Loop) -> list[cst.BaseStatement]:
    """What is done to one item: all of a loop that puts, what follows the get of one that takes.

    A loop without an end is left alone where it only puts: it could fail for ever.
    """
    body = list(body_of(loop))
    at = next((i for i, s in enumerate(body) if _GET.search(code(s))), None)
    if at is not None and isinstance(body[at], cst.SimpleStatementLine):
        return body[at + 1 :]
    inner = any(isinstance(n, cst.For) for s in body for n in find(s, cst.For))
    if isinstance(loop, cst.For) and not inner and any(_PUT.search(code(s)) for s in body):
        return body
    return []
