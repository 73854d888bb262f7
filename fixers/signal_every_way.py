"""STO002 Give the signal also when there was nothing to do.

## What it does
Where one rank sets a key or writes a file for which the others wait, but only inside of the branch
that had something to prepare, moves the signal behind the branch.

## Why it hurts
With the work done in an earlier run, the branch is skipped and the signal never comes: the others
wait for ever.

## When it is wrong
The others must not go on unless the work was done in this very run.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.ranks import ranked
from eroica.fix.tree import Source, body_of, called, code, find, flat

CODE = "STO002"
ANSWERS = frozenset(
    {
        "polling_wait",
        "blocked_io",
        "divergent_control_flow",
        "rank_conditional_collective",
        "thread_lock_deadlock",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="polling_wait",
        symptom="stuck",
        before="""\
import os
import time

def prepare(rank, path):
    if rank == 0:
        if not os.path.exists("cache"):
            build("cache")
            open(path, "w").close()
    while not os.path.exists(path):  # <-- here
        time.sleep(0.1)
""",
        after="""\
import os
import time

def prepare(rank, path):
    if rank == 0:
        if not os.path.exists("cache"):
            build("cache")
        open(path, "w").close()
    while not os.path.exists(path):
        time.sleep(0.1)
""",
    ),
    Example(
        category="blocked_io",
        symptom="stuck",
        before="""\
def ready(store, rank, cache):
    if rank == 0:
        if cache.is_old():
            cache.refresh()
            store.set("ready", "1")
    else:
        store.wait(["ready"])  # <-- here
""",
        after="""\
def ready(store, rank, cache):
    if rank == 0:
        if cache.is_old():
            cache.refresh()
        store.set("ready", "1")
    else:
        store.wait(["ready"])
""",
    ),
    Example(
        category="polling_wait",
        symptom="stuck",
        before="""\
def sync(store, rank, phase):
    if rank == 0:
        if phase > 0:
            store.set(f"p{phase}", "1")
    store.wait([f"p{phase}"])  # <-- here
""",
        after="""\
def sync(store, rank, phase):
    if rank == 0:
        store.set(f"p{phase}", "1")
    store.wait([f"p{phase}"])
""",
    ),
)
KEEPS = (
    Example(
        category="polling_wait",
        symptom="stuck",
        before="""\
import os
import time

def prepare(rank, path):
    if rank == 0:
        if not os.path.exists("cache"):
            build("cache")
        open(path, "w").close()
    while not os.path.exists(path):  # <-- here
        time.sleep(0.1)
""",
    ),
)
_SIGNAL = re.compile(
    r"[\w.]*store\.set\(.*\)|open\(.+, ?[\"']w[\"']\)\.close\(\)|(?:[\w.]+|.*\))\.touch\(.*\)"
    r"|[\w.]+\.write_text\(.*\)",
    re.S,
)
_WAITS = re.compile(r"store\.(?:wait|get)\(|while \(?not .*(?:exists|is_file)\(", re.S)


def fix(context: Context) -> FixerResult | None:
    """Move the signal; None where every way through gives it, or nobody waits."""
    for source, node in context.every(cst.If, 0.4):
        if not ranked(source, node.test):
            continue
        behind = [flat(s) for s in source.following(node)]
        behind += [flat(node.orelse)] if node.orelse is not None else []
        if not any(_WAITS.search(text) for text in behind):
            continue
        for inner in body_of(node):
            signal = _last_signal(source, inner)
            if signal is None:
                continue
            edits = Edits(source)
            if len(body_of(inner)) == 1:
                edits.replace(inner, [signal])
            else:
                edits.remove(signal)
                edits.after(inner, "__S__", S=[signal.with_changes(leading_lines=())])
            return context.result(
                edits,
                why=f"{source.path}:{source.line(signal)} `{code(signal)}` is left out where "
                "there is nothing to prepare, and the other ranks wait for it.",
                behaviour="The waiting ranks go on also when there was nothing to prepare.",
                score=0.9 * max(context.closeness(source, node), 0.7),
            )
    return None


def _last_signal(source: Source, inner: cst.CSTNode) -> cst.SimpleStatementLine | None:
    """The signal at the end of a branch without another way, and nowhere else."""
    if not isinstance(inner, cst.If) or inner.orelse is not None or ranked(source, inner.test):
        return None
    body = body_of(inner)
    last = body[-1] if body else None
    if not isinstance(last, cst.SimpleStatementLine) or called(last) is None:
        return None
    text = flat(last)
    again = sum(flat(s) == text for s in find(source.module, cst.SimpleStatementLine))
    return last if _SIGNAL.fullmatch(text) and again == 1 else None
