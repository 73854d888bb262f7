"""GRW001 Bound what is kept of every step.

## What it does
Turns a list that grows with every step, and is read as a whole, into a `deque` of the last 1000
entries.

## Why it hurts
Work over all steps so far (a mean, a sort, a gather) grows without end: the job slows down the
longer it runs.

## When it is wrong
The statistic must cover all steps: then keep sums and counts instead of values.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, code, dotted, find

CODE = "GRW001"
ANSWERS = frozenset(
    {"growing_state", "python_overhead", "logging_overhead", "excessive_object_collectives"}
)
LABEL = "review"
KEPT = 1000
FIXES = (
    Example(
        category="growing_state",
        before="""\
class Meter:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)

    def mean(self):
        return sum(self.values) / len(self.values)  # <-- here
""",
        after="""\
from collections import deque

class Meter:
    def __init__(self):
        self.values = deque(maxlen=1000)

    def add(self, value):
        self.values.append(value)

    def mean(self):
        return sum(self.values) / len(self.values)
""",
    ),
)
KEEPS = (
    Example(
        category="growing_state",
        before="""\
class Meter:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)

    def mean(self):
        window = self.values[-100:]  # <-- here
        return sum(window) / len(window)
""",
    ),
    Example(
        category="growing_state",
        before="""\
class Replay:
    def __init__(self, capacity):
        self.capacity, self.rows = capacity, []

    def add(self, row, at):
        if len(self.rows) < self.capacity:
            self.rows.append(row)
        else:
            self.rows[at] = row  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Bound the list; None where a named function reads no growing one, or slices it."""
    for source in context.files:
        for target, value, node in source.assignments():
            if code(value) not in ("[]", "list()") or not target:
                continue
            last = target.rpartition(".")[2]
            if not _grows(source, target, node) or not _is_read(context, last):
                continue
            if _needs_list(source, target):
                continue
            edits = Edits(source)
            edits.add_import("from collections import deque")
            edits.replace_text(value, f"deque(maxlen={KEPT})")
            return context.result(
                edits,
                why=f"{source.path}:{source.line(node)} `{target}` gets longer with every step "
                "and is "
                "gone through as a whole.",
                behaviour=f"Statistics over it cover the last {KEPT} entries only.",
                score=0.75 if context.cause.category == "growing_state" else 0.3,
            )
    return None


def _grows(source: Source, target: str, made: cst.CSTNode) -> bool:
    """It is added to, never emptied, and begun once."""
    name = re.escape(target)
    if re.search(rf"(?<![\w.]){name}\.(append|extend)\(", source.text) is None:
        return False
    if re.search(rf"(?<![\w.]){name}\.(clear|pop)\(", source.text) is not None:
        return False
    scope = source.class_of(made) if target.startswith("self.") else source.function_of(made)
    return sum(again == target for again, _, _ in source.assignments(scope)) == 1


def _is_read(context: Context, last: str) -> bool:
    """A named function goes through the list as a whole."""
    for spot in context.scopes:
        for node in find(spot.scope, cst.Attribute if last else cst.Name):
            if dotted(node).rpartition(".")[2] == last and "append" not in code(
                spot.source.statement_of(node) or node
            ):
                return True
        for name in find(spot.scope, cst.Name):
            if name.value == last and f"{last}.append" not in code(
                spot.source.statement_of(name) or name
            ):
                return spot.function is not None
    return False


def _needs_list(source: Source, target: str) -> bool:
    """Slices, sums of lists, JSON and in-place sorts do not work on a deque.

    A list with a limit of its own, or one whose entries are replaced or drawn by their number, is
    a buffer: it does not grow without end, and all of it is meant.
    """
    name = re.escape(target)
    return (
        re.search(
            rf"(?<![\w.]){name}(?:\[[^]]*:|\.(?:sort|insert|pop)\(| \+)|json\.dumps?\({name}"
            rf"|len\({name}\)\s*(?:[<>]=?|==)|(?<![\w.]){name}\[[^]]+\](?:\s*=[^=]|,)"
            rf"|(?<![\w.]){name}\[\w+\]\s+for\b|range\(len\({name}\)\)",
            source.text,
        )
        is not None
    )
