"""IO003 Read or drop what a child process writes.

## What it does
Takes `stderr=PIPE` or `stdout=PIPE` out of a `Popen` whose stream nobody reads: the child then
writes to the job's own stream. Where the stream is read, but only after `wait()`, waits after it.

## Why it hurts
A pipe holds 64 KB. Once it is full the child blocks in its write, and the rank waits for the child
while all other ranks wait for the rank.

## When it is wrong
The stream must not appear in the job's log: then `subprocess.DEVNULL` is what you want.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, called, code, dotted, find

CODE = "IO003"
ANSWERS = frozenset({"blocked_io", "polling_wait", "thread_lock_deadlock", "exception_swallowed"})
LABEL = "review"
FIXES = (
    Example(
        category="blocked_io",
        before="""\
import subprocess

class Reader:
    def __init__(self, command):
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def read(self, n):
        self.child.stdin.write(f"{n}\\n")
        return self.child.stdout.readline()  # <-- here
""",
        after="""\
import subprocess

class Reader:
    def __init__(self, command):
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)

    def read(self, n):
        self.child.stdin.write(f"{n}\\n")
        return self.child.stdout.readline()
""",
    ),
    Example(
        category="blocked_io",
        before="""\
from subprocess import PIPE, Popen

def convert(path):
    tool = Popen(["tool", path], stdout=PIPE)
    tool.wait()  # <-- here
    text = tool.stdout.read()
    return text
""",
        after="""\
from subprocess import PIPE, Popen

def convert(path):
    tool = Popen(["tool", path], stdout=PIPE)
    text = tool.stdout.read()
    tool.wait()
    return text
""",
    ),
)
KEEPS = (
    Example(
        category="blocked_io",
        before="""\
import subprocess

def convert(path):
    tool = subprocess.Popen(["tool", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = tool.communicate()  # <-- here
    return out
""",
    ),
    Example(
        category="blocked_io",
        before="""\
import subprocess
import sys
import threading

def start(path):
    tool = subprocess.Popen(["tool", path], stderr=subprocess.PIPE)
    threading.Thread(target=copy, args=(tool.stderr, sys.stderr)).start()
    tool.wait()  # <-- here
""",
    ),
)
_READS = r"(?<!sys)\.{stream}\b(?!\s*=[^=])|\.communicate\("


def fix(context: Context) -> FixerResult | None:
    """Drop the pipe, or read before waiting; None where every pipe of a child is read."""
    for source, call in context.every(cst.Call, 0.4):
        if not source.full_name(call.func).endswith("subprocess.Popen"):
            continue
        unread = [s for s in ("stdout", "stderr") if _is_unread(context, source, call, s)]
        edits = Edits(source)
        for stream in unread:
            edits.drop_argument(call, stream)
        if not unread and not _waits_first(source, call, edits):
            continue
        what = f"never reads its {' and '.join(unread)}" if unread else "waits before it reads"
        return context.result(
            edits,
            why=f"{source.path}:{source.line(call)} starts a process and {what}: after 64 KB the "
            "process blocks in its write.",
            behaviour="What the process writes there appears in the job's own output."
            if unread
            else "The output is read while the process runs.",
            score=0.9 * max(context.closeness(source, call), 0.7),
        )
    return None


def _is_unread(context: Context, source: Source, call: cst.Call, stream: str) -> bool:
    arg = argument(call, stream)
    if arg is None or not source.full_name(arg.value).endswith("subprocess.PIPE"):
        return False
    rule = re.compile(_READS.format(stream=stream))
    return not any(rule.search(file.text) for file in context.files)


def _waits_first(source: Source, call: cst.Call, edits: Edits) -> bool:
    """Move ``p.wait()`` behind the line right after it that reads the process's output."""
    made = [t for t, value, _ in source.assignments() if value is call]
    for line in find(source.module, cst.SimpleStatementLine):
        waits = called(line)
        if waits is None or not made or dotted(waits.func) != f"{made[0]}.wait":
            continue
        after = source.following(line)
        if after and re.search(rf"{re.escape(made[0])}\.(stdout|stderr)\b", code(after[0])):
            edits.remove(line)
            edits.after(after[0], "__S__", S=[line.with_changes(leading_lines=())])
            return True
    return False
