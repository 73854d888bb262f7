"""STO001 Set the key on every way out.

## What it does
Where one rank sets a key of the store and the others wait for it, sets it also before the early
returns of that rank's branch.

## Why it hurts
The rank that returns early (a cache hit) never sets the key, and the others wait for it until
the time-out.

## When it is wrong
The early return means failure: then raise instead.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.ranks import ranked
from eroica.fix.tree import Source, called, code, find

CODE = "STO001"
ANSWERS = frozenset(
    {"divergent_control_flow", "polling_wait", "rank_conditional_collective", "blocked_io"}
)
LABEL = "review"
FIXES = (
    Example(
        category="polling_wait",
        before="""\
def prepare(store, rank, path):
    if rank == 0:
        if path.exists():
            return path.read_text()
        build(path)
        store.set("ready", "1")
    else:
        store.wait(["ready"])  # <-- here
    return path.read_text()
""",
        after="""\
def prepare(store, rank, path):
    if rank == 0:
        if path.exists():
            store.set("ready", "1")
            return path.read_text()
        build(path)
        store.set("ready", "1")
    else:
        store.wait(["ready"])
    return path.read_text()
""",
    ),
)
KEEPS = (
    Example(
        category="polling_wait",
        before="""\
def prepare(store, rank, path):
    if rank == 0:
        build(path)
        store.set("ready", "1")
    else:
        store.wait(["ready"])  # <-- here
""",
    ),
)
_SIGNAL = re.compile(r"(?:.*\.)?(?:set|touch|add|compare_set)")
_WAIT = re.compile(r"(?:.*\.)?(?:wait|get|exists|is_set)")


def fix(context: Context) -> FixerResult | None:
    """Set the key before each early return; None where every way out sets it."""
    for source, node in context.every(cst.If, 0.6):
        if not ranked(source, node.test) or not isinstance(node.orelse, cst.Else):
            continue
        if not any(_WAIT.fullmatch(code(c.func)) for c in find(node.orelse, cst.Call)):
            continue
        signal = next(
            (
                s
                for s in reversed(node.body.body)
                if (c := called(s)) is not None and _SIGNAL.fullmatch(code(c.func))
            ),
            None,
        )
        if signal is None:
            continue
        exits = [
            line
            for line in find(node.body, cst.SimpleStatementLine)
            if isinstance(line.body[-1], cst.Return)
            and source.line(line) < source.line(signal)
            and not _is_set_before(source, line, code(signal))
        ]
        if not exits:
            continue
        edits = Edits(source)
        for line in exits:
            edits.before(line, code(signal))
        return context.result(
            edits,
            why=f"{source.path}:{source.line(exits[0])} returns before `{code(signal)}`, which the "
            "other ranks wait for.",
            behaviour="The waiting ranks go on also when there was nothing to prepare.",
            score=0.95 * context.closeness(source, node),
        )
    return None


def _is_set_before(source: Source, line: cst.BaseStatement, signal: str) -> bool:
    block = list(source.siblings(line))
    at = next(i for i, s in enumerate(block) if s is line)
    return at > 0 and code(block[at - 1]) == signal
