"""THR005 Give the signal, or the lock, back in any case.

## What it does
Puts the last act of a thread's work - `event.set()`, `queue.task_done()`, a sentinel put into a
queue, `semaphore.release()` - into `finally`. Turns `lock.acquire()` ... `lock.release()` into
`with lock:`.

## Why it hurts
An error or an early return in between leaves it out. Who waits for the signal or the lock waits for
ever, and all ranks wait for that one.

## When it is wrong
The other side takes the signal for "done and right": then it has to be told of the error as well.
"""

import re
from collections.abc import Sequence

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.threads import in_threads
from eroica.fix.tree import Source, body_of, called, code, dotted, find, main_block, walk

CODE = "THR005"
ANSWERS = frozenset(
    {
        "exception_swallowed",
        "thread_lock_deadlock",
        "polling_wait",
        "blocked_io",
        "rank_exited",
        "fork_lock_deadlock",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="exception_swallowed",
        before="""\
import threading

class Writer:
    def submit(self, rows):
        self.free.wait()
        self.free.clear()
        threading.Thread(target=self._write, args=(rows,)).start()

    def _write(self, rows):
        data = encode(rows)
        store(data)  # <-- here
        self.free.set()
""",
        after="""\
import threading

class Writer:
    def submit(self, rows):
        self.free.wait()
        self.free.clear()
        threading.Thread(target=self._write, args=(rows,)).start()

    def _write(self, rows):
        try:
            data = encode(rows)
            store(data)
        finally:
            self.free.set()
""",
    ),
    Example(
        category="thread_lock_deadlock",
        before="""\
def work(q):
    while True:
        item = q.get()
        handle(item)  # <-- here
        q.task_done()
""",
        after="""\
import logging

def work(q):
    while True:
        item = q.get()
        try:
            handle(item)
        except Exception:
            logging.getLogger(__name__).exception("one item is lost")
        finally:
            q.task_done()
""",
    ),
    Example(
        category="thread_lock_deadlock",
        before="""\
class Table:
    def take(self, key):
        self.lock.acquire()  # <-- here
        if key not in self.rows:
            return None
        row = self.rows.pop(key)
        self.lock.release()
        return row
""",
        after="""\
class Table:
    def take(self, key):
        with self.lock:
            if key not in self.rows:
                return None
            row = self.rows.pop(key)
        return row
""",
    ),
)
KEEPS = (
    Example(
        category="thread_lock_deadlock",
        before="""\
def write(self, rows):
    try:
        store(rows)  # <-- here
    finally:
        self.free.set()
""",
    ),
    Example(
        category="thread_lock_deadlock",
        before="""\
def start(self):
    self.rows = load()  # <-- here
    self.ready.set()
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Signal in ``finally``, or hold the lock by ``with``; None where neither is at stake."""
    return _held(context) or _worker(context) or _signal(context)


def _held(context: Context) -> FixerResult | None:
    """``lock.acquire()`` and, further down in the block, ``lock.release()``."""
    for source, line in context.every(cst.SimpleStatementLine, 0.6):
        call = called(line)
        lock = dotted(call.func).removesuffix(".acquire") if call is not None else ""
        if call is None or call.args or not dotted(call.func).endswith(".acquire"):
            continue
        after = list(source.following(line))
        at = next((i for i, s in enumerate(after) if code(s) == f"{lock}.release()"), None)
        if not at or not _may_leave(after[:at]):
            continue
        edits = Edits(source)
        for inner in after[:at]:
            for other in find(inner, cst.SimpleStatementLine):
                if code(other) == f"{lock}.release()":
                    edits.remove(other)
        text = _edited(edits, after[:at])
        edits.replace(line, edits.statements(f"with {lock}:\n    __BODY__", BODY=text))
        for statement in after[: at + 1]:
            edits.remove(statement)
        return _result(context, source, line, edits, f"{lock} is given back")
    return None


def _edited(edits: Edits, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """The statements as they are after what was removed inside of them."""
    return [edits.edited(s) for s in body]


def _may_leave(body: Sequence[cst.CSTNode]) -> bool:
    """An error or an early way out lies between."""
    return any(
        isinstance(n, cst.Call | cst.Return | cst.Raise | cst.Subscript)
        for s in body
        for n in walk(s)
    )


def _is_signal(line: cst.CSTNode) -> bool:
    call = called(line)
    if call is None or not isinstance(call.func, cst.Attribute):
        return False
    name, given = call.func.attr.value, [code(a.value) for a in call.args]
    if name in ("set", "task_done", "release", "notify_all") and not given:
        return True
    return name in ("put", "put_nowait", "send") and bool(
        given and re.fullmatch(r"None|[A-Z_]{3,}|_?sentinel|_?done|_?end|_?stop", given[0], re.I)
    )


def _signal(context: Context) -> FixerResult | None:
    """The last line of a function that runs in a thread."""
    for source, function in context.every(cst.FunctionDef, 0.4):
        body = list(main_block(function))
        if function.name.value not in in_threads(source) or len(body) < 2:
            continue
        work = body[:-1]
        if not work or not _is_signal(body[-1]) or _is_in_order(work):
            continue
        edits = Edits(source)
        _wrap(edits, work, body[-1], "")
        what = f"{code(body[-1])} is reached"
        return _result(context, source, function, edits, what)
    return None


def _worker(context: Context) -> FixerResult | None:
    """``q.get()``, work, ``q.task_done()`` in the loop of a thread: it must outlive an error."""
    for source, loop in context.loops(0.4):
        body = list(body_of(loop))
        last = body[-1] if body else None
        if not isinstance(last, cst.SimpleStatementLine) or not code(last).endswith(".task_done()"):
            continue
        queue = code(last).removesuffix(".task_done()")
        at = next((i for i, s in enumerate(body) if f"{queue}.get(" in code(s)), None)
        if at is None or not body[at + 1 : -1] or isinstance(body[at], cst.Try):
            continue
        edits = Edits(source)
        logging = edits.module("logging", loop)
        text = f"except Exception:\n    {logging}.getLogger(__name__).exception('one item is lost')"
        _wrap(edits, body[at + 1 : -1], last, text.replace("'", '"') + "\n")
        return _result(context, source, loop, edits, f"{queue}.task_done() is reached")
    return None


def _is_in_order(work: Sequence[cst.CSTNode]) -> bool:
    return len(work) == 1 and isinstance(work[0], cst.Try)


def _wrap(
    edits: Edits, work: Sequence[cst.BaseStatement], signal: cst.BaseStatement, handler: str
) -> None:
    block = [work[0].with_changes(leading_lines=()), *work[1:]]
    text = f"try:\n    __WORK__\n{handler}finally:\n    __SIGNAL__"
    last = signal.with_changes(leading_lines=())
    edits.replace(work[0], edits.statements(text, WORK=block, SIGNAL=[last]))
    for statement in (*work[1:], signal):
        edits.remove(statement)


def _result(
    context: Context, source: Source, node: cst.CSTNode, edits: Edits, what: str
) -> FixerResult | None:
    return context.result(
        edits,
        why=f"{source.path}:{source.line(node)}: an error in between, and others wait for ever.",
        behaviour=f"{what} whatever happens; the error itself is reported as before.",
        score=0.85 * max(context.closeness(source, node), 0.6),
    )
