"""THR001 Take two locks in one order.

## What it does
Where one function holds lock A and then takes B, while other code holds B and then takes A,
takes both in the other code's order: `with b, a:`. Where the two are locks of one kind that
arguments bring along (`source.lock`, `target.lock`), takes them in the order of their identity.

## Why it hurts
Two threads that each hold one of the locks wait for each other for ever, and with them every
thread and rank that waits for their work.

## When it is wrong
The first lock must be released before the second is taken, e.g. because the work under it is
slow: then copy what is needed first.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import free
from eroica.fix.edits import Edits
from eroica.fix.facts import calls_here, definitions
from eroica.fix.tree import Source, called, code, dotted, find, walk

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
    Example(
        before="""\
class Account:
    def pay(self, other, n):
        with self.mutex:
            self.rows -= n
            with other.mutex:  # <-- here
                other.rows += n
        return n
""",
        after="""\
class Account:
    def pay(self, other, n):
        first, second = sorted((self.mutex, other.mutex), key=id)
        with first, second:
            self.rows -= n
            other.rows += n
        return n
""",
    ),
    Example(
        before="""\
def exchange(left, right):
    with left.lock, right.lock:  # <-- here
        left.row, right.row = right.row, left.row
""",
        after="""\
def exchange(left, right):
    first, second = sorted((left.lock, right.lock), key=id)
    with first, second:
        left.row, right.row = right.row, left.row
""",
    ),
    Example(
        before="""\
def read():
    rows.acquire()
    log.acquire()  # <-- here
    work()
    log.release()
    rows.release()

def write():
    log.acquire()
    rows.acquire()
    work()
    rows.release()
    log.release()
""",
        after="""\
def read():
    rows.acquire()
    log.acquire()
    work()
    log.release()
    rows.release()

def write():
    rows.acquire()
    log.acquire()
    work()
    rows.release()
    log.release()
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
    Example(
        before="""\
def drain(pool):
    with pool.lock:
        rows = list(pool.rows)
    with pool.other.lock:  # <-- here
        print(rows)
"""
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Reorder the nested pair; None where no two locks are taken in both orders."""
    return _taken_by_with(context) or _acquired(context)


def _acquired(context: Context) -> FixerResult | None:
    """``a.acquire()`` and ``b.acquire()`` in a row, and the other way round elsewhere."""
    pairs: dict[tuple[str, str], tuple[Source, cst.BaseStatement, cst.BaseStatement]] = {}
    for source, line in context.every(cst.SimpleStatementLine, 0.4):
        after = source.following(line)
        first, second = _acquires(line), _acquires(after[0]) if after else ""
        if not first or not second or first == second:
            continue
        pairs.setdefault((first, second), (source, line, after[0]))
        if (second, first) not in pairs:
            continue
        edits = Edits(source)
        edits.replace(line, [after[0].with_changes(leading_lines=())])
        edits.replace(after[0], [line.with_changes(leading_lines=())])
        return context.result(
            edits,
            why=f"{source.path}:{source.line(line)} takes {first}, then {second}; other code takes "
            "them the other way round.",
            behaviour="Both locks are always taken in one order.",
            score=0.95,
        )
    return None


def _acquires(line: cst.CSTNode) -> str:
    """The lock that a line of its own takes."""
    call = called(line)
    name = dotted(call.func) if call is not None and not call.args else ""
    return name.removesuffix(".acquire") if name.endswith(".acquire") else ""


def _taken_by_with(context: Context) -> FixerResult | None:
    orders = _orders(context)
    for source, outer in context.every(cst.With, 0.4):
        if len(outer.items) == 2:
            result = _by_identity(context, source, outer, None)
            if result is not None:
                return result
            first, second = (dotted(item.item).rpartition(".")[2] for item in outer.items)
            if _are_locks(outer) and first != second and (second, first) in orders:
                return _turned(context, source, outer)
        if not _is_lock(outer):
            continue
        for inner in find(outer.body, cst.With):
            if not _is_lock(inner) or source.parent(inner) is not outer.body:
                continue
            first, second = _lock(outer), _lock(inner)
            if first == second:
                result = _by_identity(context, source, outer, inner)
                if result is not None:
                    return result
            elif (second, first) in orders:
                return _swap(context, source, outer, inner)
    return None


def _by_identity(
    context: Context, source: Source, outer: cst.With, inner: cst.With | None
) -> FixerResult | None:
    """Two locks of one kind, whose order is that of the arguments."""
    items = [item.item for item in (outer.items if inner is None else (*outer.items, *inner.items))]
    locks = [dotted(item) for item in items]
    function = source.function_of(outer)
    if function is None:
        return None
    first, second = free("first", function, source), free("second", function, source)
    if locks[0] == locks[1] or len({lock.rpartition(".")[2] for lock in locks}) != 1:
        return None
    owners = {lock.rpartition(".")[0] for lock in locks}
    given = {p.name.value for p in function.params.params}
    if not _sounds_like_lock(locks[0]) or not owners <= given:
        return None
    edits = Edits(source)
    if inner is not None:
        edits.replace(inner, list(inner.body.body))
    edits.before(outer, f"{first}, {second} = sorted(({', '.join(locks)}), key=id)")
    both = [cst.WithItem(cst.Name(name)) for name in (first, second)]
    edits.replace(outer, lambda node: node.with_changes(items=both))
    return context.result(
        edits,
        why=f"{source.path}:{source.line(outer)} takes {locks[0]}, then {locks[1]}; called with "
        "the two the other way round in another thread, each holds what the other wants.",
        behaviour="Both locks are held for the whole block, and always taken in one order.",
        score=0.95 * context.closeness(source, inner or outer),
    )


def _is_lock(node: cst.With) -> bool:
    return len(node.items) == 1 and _sounds_like_lock(_lock(node))


def _are_locks(node: cst.With) -> bool:
    return all(_sounds_like_lock(dotted(item.item)) for item in node.items)


def _turned(context: Context, source: Source, outer: cst.With) -> FixerResult | None:
    """``with a, b:`` -> ``with b, a:``."""
    one, two = outer.items
    edits = Edits(source)
    items = [two.with_changes(comma=one.comma), one.with_changes(comma=two.comma)]
    edits.replace(outer, lambda node: node.with_changes(items=items))
    first, second = code(one.item), code(two.item)
    return context.result(
        edits,
        why=f"{source.path}:{source.line(outer)} takes {first}, then {second}; other code holds "
        f"{second} when it takes {first}.",
        behaviour="Both locks are always taken in one order.",
        score=0.95 * context.closeness(source, outer),
    )


def _sounds_like_lock(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return any(word in last for word in ("lock", "mutex", "cond", "sem"))


def _lock(node: cst.With) -> str:
    return dotted(node.items[0].item).rpartition(".")[2]


def _orders(context: Context) -> set[tuple[str, str]]:
    """Pairs (held, taken) anywhere in the project, also through one call."""
    found: set[tuple[str, str]] = set()
    for source in context.files:
        for outer in find(source.module, cst.With):
            if len(outer.items) == 2 and _are_locks(outer):
                one, two = (dotted(item.item).rpartition(".")[2] for item in outer.items)
                found.add((one, two))
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
