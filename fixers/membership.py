"""GRW002 Look up in a set, and take from the front of a deque.

## What it does
Turns a list that is only added to and searched with `in` into a set; one whose front is taken with
`pop(0)` into a deque. Puts what is sorted after each addition where it belongs.

## Why it hurts
`in` goes through the whole list, `pop(0)` moves all that is behind. Both get slower with each step
as the list grows.

## When it is wrong
What is added cannot be hashed (a list, a tensor), or the same thing must be in it twice.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, code, dotted, find, walk

CODE = "GRW002"
ANSWERS = frozenset(
    {
        "growing_state",
        "python_overhead",
        "dataloader_bottleneck",
        "straggler_data_loading",
        "straggler_compute",
        "logging_overhead",
        "load_imbalance",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="growing_state",
        before="""\
class Filter:
    def __init__(self, stream):
        self.stream, self.known = iter(stream), []

    def __next__(self):
        for key, row in self.stream:
            if key not in self.known:  # <-- here
                self.known.append(key)
                return row
""",
        after="""\
class Filter:
    def __init__(self, stream):
        self.stream, self.known = iter(stream), set()

    def __next__(self):
        for key, row in self.stream:
            if key not in self.known:
                self.known.add(key)
                return row
""",
    ),
    Example(
        category="growing_state",
        before="""\
def train(model, stream):
    waiting = []
    for batch in stream:
        waiting.append(batch)
        if len(waiting) > 8:
            model(waiting.pop(0)).backward()  # <-- here
""",
        after="""\
from collections import deque

def train(model, stream):
    waiting = deque()
    for batch in stream:
        waiting.append(batch)
        if len(waiting) > 8:
            model(waiting.popleft()).backward()
""",
    ),
    Example(
        category="growing_state",
        before="""\
class Median:
    def __init__(self):
        self.values = []

    def push(self, value):
        self.values.append(value)
        self.values.sort()  # <-- here
        return self.values[len(self.values) // 2]
""",
        after="""\
import bisect

class Median:
    def __init__(self):
        self.values = []

    def push(self, value):
        bisect.insort(self.values, value)
        return self.values[len(self.values) // 2]
""",
    ),
)
KEEPS = (
    Example(
        category="growing_state",
        before="""\
class Filter:
    def __init__(self):
        self.known = []

    def add(self, key):
        if key not in self.known:  # <-- here
            self.known.append(key)

    def last(self):
        return self.known[-1]
""",
    ),
    Example(
        category="growing_state",
        before="""\
def train(rows):
    seen = []
    for row in rows:
        ids = row.tolist()
        if ids not in seen:  # <-- here
            seen.append(ids)
""",
    ),
)
_UNHASHABLE = re.compile(r"tolist\(|\blist\(|\bdict\(|^\s*[\[{]|tensor|\.copy\(")


def fix(context: Context) -> FixerResult | None:
    """Change the container; None where no list near the cause is used only so."""
    for source in context.files:
        for target, value, _ in source.assignments():
            if code(value) in ("[]", "list()") and target:
                edits = (
                    _as_set(source, target, value)
                    or _as_deque(source, target, value)
                    or _kept_sorted(source, target)
                )
                near = _nearest(context, source, target)
                if edits is None or near < 0.6:
                    continue
                return context.result(
                    edits,
                    why=f"{source.path}:{source.line(value)} `{target}` is a list that is gone "
                    "through for each look-up, and it grows.",
                    behaviour="The same answers, in a time that does not depend on its length.",
                    score=0.95 * near,
                )
    return None


def _uses(source: Source, target: str) -> list[cst.CSTNode]:
    """The nodes that read or write a name or attribute, by its last part anywhere in the file."""
    last = target.rpartition(".")[2]
    kind = cst.Attribute if "." in target else cst.Name
    found: list[cst.CSTNode] = [
        n for n in walk(source.module) if isinstance(n, kind) and dotted(n) == target
    ]
    found += [
        n
        for n in find(source.module, cst.Attribute)
        if n.attr.value == last and dotted(n) != target
    ]
    return found


def _nearest(context: Context, source: Source, target: str) -> float:
    return max((context.closeness(source, n) for n in _uses(source, target)), default=0.0)


def _calls_on(source: Source, node: cst.CSTNode) -> tuple[str, cst.Call | None]:
    """The method that is called on a node, and the call."""
    above = source.parent(node)
    call = source.parent(above) if isinstance(above, cst.Attribute) else None
    if isinstance(above, cst.Attribute) and isinstance(call, cst.Call) and call.func is above:
        return above.attr.value, call
    return "", None


def _is_length(source: Source, node: cst.CSTNode) -> bool:
    arg = source.parent(node)
    call = source.parent(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and dotted(call.func) in ("len", "bool")


def _is_target(source: Source, node: cst.CSTNode) -> bool:
    above = source.parent(node)
    if isinstance(above, cst.Element):
        above = source.parent(source.parent(above))  # type: ignore[arg-type]
    return isinstance(above, cst.AssignTarget)


def _as_set(source: Source, target: str, value: cst.BaseExpression) -> Edits | None:
    edits, looked_up, added = Edits(source), 0, 0
    for node in _uses(source, target):
        name, call = _calls_on(source, node)
        above = source.parent(node)
        if isinstance(above, cst.ComparisonTarget) and isinstance(
            above.operator, cst.In | cst.NotIn
        ):
            looked_up += 1
        elif name == "append" and call is not None and len(call.args) == 1:
            if _may_not_hash(source, call):
                return None
            edits.replace_text(call, f"{target}.add({code(call.args[0].value)})")
            added += 1
        elif not (name in ("clear", "remove") or _is_length(source, node)):
            if not _is_target(source, node):
                return None
    made = [v for t, v, _ in source.assignments() if t == target]
    if not (looked_up and added) or any(v is not value for v in made):
        return None
    edits.replace_text(value, "set()")
    return edits


def _may_not_hash(source: Source, call: cst.Call) -> bool:
    """What is added looks like a list or a tensor, here or where its name is made."""
    given = call.args[0].value
    function = source.function_of(call)
    made = [code(v) for t, v, _ in source.assignments(function) if t == dotted(given)]
    return any(_UNHASHABLE.search(text) for text in (code(given), *made))


def _as_deque(source: Source, target: str, value: cst.BaseExpression) -> Edits | None:
    edits, taken = Edits(source), 0
    for node in _uses(source, target):
        name, call = _calls_on(source, node)
        if name == "pop" and call is not None and [code(a.value) for a in call.args] == ["0"]:
            edits.replace_text(call, f"{target}.popleft()")
            taken += 1
        elif name == "insert" and call is not None and code(call.args[0].value) == "0":
            edits.replace_text(call, f"{target}.appendleft({code(call.args[1].value)})")
            taken += 1
        elif name in ("sort", "copy") or _is_whole_list(source, node):
            return None
    if not taken:
        return None
    edits.add_import("from collections import deque")
    edits.replace_text(value, "deque()")
    return edits


def _kept_sorted(source: Source, target: str) -> Edits | None:
    """``x.append(v)`` and ``x.sort()`` right behind it: put it where it belongs."""
    for line in find(source.module, cst.SimpleStatementLine):
        after = source.following(line)
        match = re.fullmatch(rf"{re.escape(target)}\.append\((.+)\)", code(line), re.S)
        if match is None or not after or code(after[0]) != f"{target}.sort()":
            continue
        edits = Edits(source)
        edits.add_import("import bisect")
        edits.replace(line, edits.statements(f"bisect.insort({target}, {match[1]})"))
        edits.remove(after[0])
        return edits
    return None


def _is_whole_list(source: Source, node: cst.CSTNode) -> bool:
    """A slice, or a sum with another list: not for a deque."""
    above = source.parent(node)
    if isinstance(above, cst.Subscript):
        return above.value is node and ":" in code(above)
    return isinstance(above, cst.BinaryOperation)
