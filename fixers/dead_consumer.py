"""THR003 Keep a consumer thread alive after an error.

## What it does
In a thread that takes items from a queue, replaces the `return` or `break` of an error handler
by a line in the log, so that the queue keeps draining.

## Why it hurts
Producers block in `put()` once the bounded queue of a dead consumer is full, and with them the
training loop and all ranks that wait for it.

## When it is wrong
Items must not be lost: then hand the error to the producer, and fail the job.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import ends_early
from eroica.fix.tree import code, find

CODE = "THR003"
ANSWERS = frozenset({"thread_lock_deadlock", "exception_swallowed", "blocked_io", "polling_wait"})
LABEL = "review"
FIXES = (
    Example(
        category="thread_lock_deadlock",
        before="""\
import threading

class Writer:
    def run(self):
        while True:
            item = self.q.get()
            try:
                store(item)
            except OSError:  # <-- here
                return
""",
        after="""\
import logging
import threading

class Writer:
    def run(self):
        while True:
            item = self.q.get()
            try:
                store(item)
            except OSError:
                logging.getLogger(__name__).exception("one item is lost")
""",
    ),
)
KEEPS = (
    Example(
        category="thread_lock_deadlock",
        before="""\
class Writer:
    def run(self):
        while True:
            item = self.q.get()
            if item is None:
                return
            store(item)  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Log and go on; None where no handler in a consumer's loop ends it."""
    for source, handler in context.every(cst.ExceptHandler, 0.4):
        exit_ = ends_early(handler.body)
        if not isinstance(exit_, cst.Return | cst.Break) or "queue.Empty" in code(handler):
            continue
        loop = next((above for above in source.loops(handler)), None)
        if loop is None or not _consumes(loop):
            continue
        line = source.statement_of(exit_)
        if line is None or (isinstance(exit_, cst.Return) and exit_.value is not None):
            continue
        edits = Edits(source)
        logging = edits.module("logging", handler)
        new = f'{logging}.getLogger(__name__).exception("one item is lost")'
        edits.replace(line, edits.statements(new))
        return context.result(
            edits,
            why=f"{source.path}:{source.line(handler)} ends the only reader of a queue on the "
            "first error; writers then block when it is full.",
            behaviour="The item that failed is lost and logged; later ones are still taken.",
            score=0.9 * context.closeness(source, handler),
        )
    return None


def _consumes(loop: cst.For | cst.While) -> bool:
    return any(
        node.attr.value in ("get", "get_nowait", "recv", "popleft")
        for node in find(loop, cst.Attribute)  # also iter(q.get, None)
    )
