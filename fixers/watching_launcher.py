"""LCH001 Let a launcher end the job when one rank ends with an error.

## What it does
Where a launcher waits for its processes one after the other, waits for all of them at once, and
ends the others as soon as one has failed.

## Why it hurts
A rank that dies is not seen as long as the launcher waits for another one, which waits for the dead
rank. The job holds its machines and does nothing.

## When it is wrong
The other ranks can go on, or end in order, without the one that failed.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, called, code, dotted

CODE = "LCH001"
ANSWERS = frozenset({"rank_exited", "polling_wait", "exception_swallowed"})
LABEL = "review"
FIXES = (
    Example(
        category="rank_exited",
        symptom="stuck",
        before="""\
import subprocess
import sys

def main(world, script):
    ranks = [subprocess.Popen([sys.executable, script, str(r)]) for r in range(world)]
    for rank in ranks:
        rank.wait()  # <-- here
    sys.exit(max(rank.returncode for rank in ranks))
""",
        after="""\
import subprocess
import sys
import time

def main(world, script):
    ranks = [subprocess.Popen([sys.executable, script, str(r)]) for r in range(world)]
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):  # one has failed: the others would wait for it
            for rank in ranks:
                rank.terminate()
        time.sleep(0.2)
    sys.exit(max(rank.returncode for rank in ranks))
""",
    ),
)
KEEPS = (
    Example(
        category="rank_exited",
        symptom="stuck",
        before="""\
def convert(paths):
    tools = [Tool(path) for path in paths]
    for tool in tools:
        tool.wait()  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Watch them all; None where no loop waits for processes one after the other."""
    if context.symptom not in ("stuck", "failed"):
        return None
    for source, loop in context.every(cst.For, 0.3):
        name, items = code(loop.target), code(loop.iter)
        body = list(loop.body.body)
        call = called(body[0]) if len(body) == 1 else None
        if call is None or code(call) != f"{name}.wait()" or loop.orelse is not None:
            continue
        if not _are_processes(source, items):
            continue
        edits = Edits(source)
        time = edits.module("time", loop)
        new = edits.statements(f"""\
while any({name}.poll() is None for {name} in {items}):
    if any({name}.poll() for {name} in {items}):  # one has failed: the others would wait for it
        for {name} in {items}:
            {name}.terminate()
    {time}.sleep(0.2)
""")
        edits.replace(loop, new)
        return context.result(
            edits,
            why=f"{source.path}:{source.line(loop)} waits for the ranks in order, and does not see "
            "one that died.",
            behaviour="When one rank ends with an error the others are ended, and the job fails "
            "at once instead of waiting.",
            score=0.6,
        )
    return None


def _are_processes(source: Source, items: str) -> bool:
    """The list is made of ``Popen``."""
    made = [value for target, value, _ in source.assignments() if target == items]
    rule = re.compile(r"(?:^|\W)(?:subprocess\.)?Popen\(")
    return bool(dotted(cst.parse_expression(items))) and any(rule.search(code(v)) for v in made)
