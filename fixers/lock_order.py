"""THR001 Take two locks in one order.

## What it does
Where one function holds lock A and then takes B, while other code holds B and then takes A,
takes both in the other code's order: `with b, a:`.

## Why it hurts
Two threads that each hold one of the locks wait for each other for ever, and with them every
thread and rank that waits for their work.

## When it is wrong
The first lock must be released before the second is taken, e.g. because the work under it is
slow: then copy what is needed first.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import calls_here, definitions
from eroica.fix.tree import Source, code, dotted, find, walk

CODE = "THR001"
ANSWERS = frozenset({"thread_lock_deadlock"})
LABEL = "review"
FIXES = (
    Example(
        before="""\
class Feed:
    def fetch(self):
        with self.stats_lock:
            self.log.line("slow")

class Log:
    def line(self, text):
        with self.lock:
            print(text)

    def report(self):
        with self.lock:
            print("served")
            with self.feed.stats_lock:  # <-- here
                print(self.feed.served)
""",
        after="""\
class Feed:
    def fetch(self):
        with self.stats_lock:
            self.log.line("slow")

class Log:
    def line(self, text):
        with self.lock:
            print(text)

    def report(self):
        with self.feed.stats_lock, self.lock:
            print("served")
            print(self.feed.served)
""",
    ),
)
KEEPS = (
    Example(
        before="""\
class Log:
    def one(self):
        with self.a_lock:
            with self.b_lock:  # <-- here
                print(1)

    def two(self):
        with self.a_lock:
            with self.b_lock:
                print(2)
"""
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Reorder the nested pair; None where no two locks are taken in both orders."""
    orders = _orders(context)
    for source, outer in context.every(cst.With, 0.4):
        if not _is_lock(outer):
            continue
        for inner in find(outer.body, cst.With):
            if not _is_lock(inner) or source.parent(inner) is not outer.body:
                continue
            first, second = _lock(outer), _lock(inner)
            if first == second or (second, first) not in orders:
                continue
            return _swap(context, source, outer, inner)
    return None


def _is_lock(node: cst.With) -> bool:
    text = _lock(node).lower()
    return (
        len(node.items) == 1
        and bool(text)
        and any(w in text for w in ("lock", "mutex", "cond", "sem"))
    )


def _lock(node: cst.With) -> str:
    return dotted(node.items[0].item).rpartition(".")[2]


def _key(source: Source, node: cst.With) -> str:
    return _lock(node)


def _orders(context: Context) -> set[tuple[str, str]]:
    """Pairs (held, taken) anywhere in the project, also through one call."""
    found: set[tuple[str, str]] = set()
    for source in context.files:
        for outer in find(source.module, cst.With):
            if not _is_lock(outer):
                continue
            for node in walk(outer.body):
                if isinstance(node, cst.With) and _is_lock(node):
                    found.add((_lock(outer), _lock(node)))
            for call in calls_here(outer.body):
                for _, function in definitions(source, call, context.files):
                    for node in find(function.body, cst.With):
                        if _is_lock(node):
                            found.add((_lock(outer), _lock(node)))
    return found


def _swap(context: Context, source: Source, outer: cst.With, inner: cst.With) -> FixerResult | None:
    edits = Edits(source)
    item = inner.items[0].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    edits.replace(inner, list(inner.body.body))
    edits.replace(outer, lambda node: node.with_changes(items=[item, *node.items]))
    first, second = code(outer.items[0].item), code(inner.items[0].item)
    return context.result(
        edits,
        why=f"{source.path}:{source.line(outer)} takes {first}, then {second}; other code holds "
        f"{second} when it takes {first}.",
        behaviour=f"{second} is held for the whole block; both locks are always taken in one "
        "order.",
        score=0.95 * context.closeness(source, inner),
    )
