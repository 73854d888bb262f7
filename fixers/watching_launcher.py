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
from collections.abc import Iterator

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, code, dotted, find

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
    for source, node, name, items in _waits(context):
        if not _are_processes(source, items):
            continue
        edits = Edits(source)
        statement = source.statement_of(node)
        assert statement is not None
        text = f"""\
while any({name}.poll() is None for {name} in {items}):
    if any({name}.poll() for {name} in {items}):  # one has failed: the others would wait for it
        for {name} in {items}:
            {name}.terminate()
    {edits.module("time", node)}.sleep(0.2)
"""
        if isinstance(node, cst.For):
            edits.replace(node, edits.statements(text))
        else:  # the codes are collected: after they are all there
            edits.before(statement, text)
        return context.result(
            edits,
            why=f"{source.path}:{source.line(node)} waits for the ranks in order, and does not see "
            "one that died.",
            behaviour="When one rank ends with an error the others are ended, and the job fails "
            "at once instead of waiting.",
            score=0.6,
        )
    return None


def _waits(context: Context) -> Iterator[tuple[Source, cst.CSTNode, str, str]]:
    """``for p in ps: p.wait()`` and ``[p.wait() for p in ps]``: the node, p, ps."""
    for source, loop in context.every(cst.For, 0.3):
        body = list(loop.body.body)
        name = code(loop.target)
        if len(body) == 1 and code(body[0]) == f"{name}.wait()" and loop.orelse is None:
            yield source, loop, name, code(loop.iter)
    for source, made in context.every(cst.ListComp, 0.3):
        name = code(made.for_in.target)
        if code(made.elt) == f"{name}.wait()" and not made.for_in.ifs:
            yield source, made, name, code(made.for_in.iter)


def _are_processes(source: Source, items: str) -> bool:
    """The list is made of ``Popen``."""
    made = [code(value) for target, value, _ in source.assignments() if target == items]
    made += [
        code(call.args[0].value)
        for call in find(source.module, cst.Call)
        if dotted(call.func) == f"{items}.append" and call.args
    ]
    names = {t for t, v, _ in source.assignments() if _is_process(source, v)}
    rule = re.compile(r"(?:^|\W)(?:subprocess\.)?Popen\(")
    return bool(dotted(cst.parse_expression(items))) and any(
        rule.search(text) or text in names for text in made
    )


def _is_process(source: Source, value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and source.full_name(value.func) == "subprocess.Popen"
