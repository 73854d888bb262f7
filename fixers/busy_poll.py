"""POL001 Wait for work instead of asking for it in a circle.

## What it does
Replaces a test of `queue.empty()` with `continue` by a `get` that waits; puts a short sleep into
other loops that spin.

## Why it hurts
A thread that spins takes the interpreter lock again and again; the training thread of that rank
runs slower, and all ranks wait for it.

## When it is wrong
The loop must react within microseconds.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.loops import asked_if_empty
from eroica.fix.threads import in_threads
from eroica.fix.tree import Source, assigned, body_of, called, code, dotted, find, single

CODE = "POL001"
ANSWERS = frozenset(
    {
        "polling_wait",
        "straggler_compute",
        "python_overhead",
        "cpu_oversubscription",
        "straggler_rank_logging",
        "logging_overhead",
        "dataloader_bottleneck",
        "straggler_data_loading",
        "thread_lock_deadlock",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="polling_wait",
        before="""\
import queue

def run(q, sink):
    while True:
        if q.empty():  # <-- here
            continue
        item = q.get()
        sink(item)
""",
        after="""\
import queue

def run(q, sink):
    while True:
        try:
            item = q.get(timeout=0.2)
        except queue.Empty:
            continue
        sink(item)
""",
    ),
    Example(
        category="polling_wait",
        before="""\
def wait(flag):
    while not flag.done:  # <-- here
        pass
""",
        after="""\
import time

def wait(flag):
    while not flag.done:
        time.sleep(0.001)
""",
    ),
    Example(
        category="straggler_compute",
        before="""\
import threading

class Beat:
    def start(self):
        threading.Thread(target=self._spin, daemon=True).start()

    def _spin(self):
        while not self.stop:
            self.count += 1  # <-- here
""",
        after="""\
import threading
import time

class Beat:
    def start(self):
        threading.Thread(target=self._spin, daemon=True).start()

    def _spin(self):
        while not self.stop:
            self.count += 1
            time.sleep(0.001)
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
        time.sleep(0.001)
""",
    ),
)
_WAITS = (
    "sleep",
    "wait",
    "get(",
    "join(",
    "acquire",
    "recv",
    "select",
    "poll(",
    "barrier",
    "next(",
)


def fix(context: Context) -> FixerResult | None:
    """Make the loop wait; None where no loop near the cause spins."""
    for source, loop in context.every(cst.While, 0.6):
        body = list(loop.body.body)
        if not body:
            continue
        result = _queue(context, source, loop) or _spin(context, source, loop)
        if result is not None:
            return result
    return None


def _queue(context: Context, source: Source, loop: cst.While) -> FixerResult | None:
    for node in find(loop.body, cst.If):
        queue = asked_if_empty(node.test)
        if not queue or node.orelse is not None or not _goes_round(source, node):
            continue
        after = source.following(node)
        made = assigned(after[0]) if after else None
        small = single(after[0]) if after else None
        value = made[1] if made is not None else getattr(small, "value", None)
        call = value if isinstance(value, cst.Call) else None
        if call is None or dotted(call.func) not in (f"{queue}.get", f"{queue}.get_nowait"):
            continue
        edits = Edits(source)
        module = edits.module("queue", node)
        target = f"{code(made[0])} = " if made is not None else ""
        target = "return " if isinstance(small, cst.Return) else target
        edits.replace(
            node,
            edits.statements(
                f"try:\n    {target}{queue}.get(timeout=0.2)\nexcept {module}.Empty:\n    continue"
            ),
        )
        edits.remove(after[0])
        return _result(context, source, loop, edits, "The thread sleeps until an item comes.")
    return None


def _goes_round(source: Source, node: cst.If) -> bool:
    """The block only goes on to the next look, after a sleep perhaps."""
    *before, last = body_of(node)
    calls = [called(statement) for statement in before]
    return code(last) == "continue" and all(
        call is not None and source.full_name(call.func) == "time.sleep" for call in calls
    )


def _spin(context: Context, source: Source, loop: cst.While) -> FixerResult | None:
    """A loop, or a branch that goes round at once, without anything that waits."""
    if context.cause.category not in (
        "polling_wait",
        "straggler_compute",
        "python_overhead",
        "cpu_oversubscription",
    ):
        return None
    text = code(loop)
    if any(word in text for word in _WAITS):
        return None
    edits = Edits(source)
    pause = f"{edits.module('time', loop)}.sleep(0.001)"
    if code(loop.body).strip() == "pass":
        edits.replace_text(loop.body.body[0], pause)
        return _result(context, source, loop, edits, "It looks a thousand times a second at most.")
    for node in find(loop.body, cst.If):
        if code(node.body).strip() == "continue" and source.parent(node) is loop.body:
            edits.before(node.body.body[0], pause)
            return _result(
                context, source, loop, edits, "It looks a thousand times a second at most."
            )
    function = source.function_of(loop)
    if function is None or function.name.value not in in_threads(source) or "open(" in text:
        return None
    edits.after(loop.body.body[-1], pause)  # a thread of its own that never rests
    return _result(context, source, loop, edits, "It goes round a thousand times a second at most.")


def _result(
    context: Context, source: Source, loop: cst.While, edits: Edits, behaviour: str
) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(loop)} asks without a pause and keeps a core and the "
        "interpreter lock busy.",
        behaviour=behaviour,
        score=0.9 * context.closeness(source, loop),
    )
