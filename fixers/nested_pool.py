"""THR008 Give tasks that other tasks wait for a pool of their own.

## What it does
Where a task of a thread or process pool submits tasks to the same pool and waits for them, makes a
second pool beside the first, and submits the inner tasks to it.

## Why it hurts
Once every worker of the pool holds a task that waits, nobody is left to run what they wait for.

## When it is wrong
The pool always has more workers than tasks that wait; then it costs only idle threads.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Function, Source, assigned, code, dotted, find

CODE = "THR008"
ANSWERS = frozenset({"thread_lock_deadlock", "blocked_io", "polling_wait"})
LABEL = "review"
FIXES = (
    Example(
        category="thread_lock_deadlock",
        symptom="stuck",
        before="""\
from concurrent.futures import ThreadPoolExecutor

class Writer:
    def __init__(self):
        self.pool = ThreadPoolExecutor(max_workers=2)

    def _part(self, part):
        save(part)

    def _write(self, parts):
        jobs = [self.pool.submit(self._part, part) for part in parts]
        return [job.result() for job in jobs]  # <-- here

    def save(self, states):
        self.pending = [self.pool.submit(self._write, parts) for parts in states]
""",
        after="""\
from concurrent.futures import ThreadPoolExecutor

class Writer:
    def __init__(self):
        self.pool = ThreadPoolExecutor(max_workers=2)
        self.pool_inner = ThreadPoolExecutor(max_workers=2)

    def _part(self, part):
        save(part)

    def _write(self, parts):
        jobs = [self.pool_inner.submit(self._part, part) for part in parts]
        return [job.result() for job in jobs]

    def save(self, states):
        self.pending = [self.pool.submit(self._write, parts) for parts in states]
""",
    ),
    Example(
        category="thread_lock_deadlock",
        symptom="stuck",
        before="""\
import concurrent.futures as cf

workers = cf.ThreadPoolExecutor(4)

def load(path):
    parts = list(workers.map(read, split(path)))  # <-- here
    return join(parts)

def load_all(paths):
    return list(workers.map(load, paths))
""",
        after="""\
import concurrent.futures as cf

workers = cf.ThreadPoolExecutor(4)
workers_inner = cf.ThreadPoolExecutor(4)

def load(path):
    parts = list(workers_inner.map(read, split(path)))
    return join(parts)

def load_all(paths):
    return list(workers.map(load, paths))
""",
    ),
)
KEEPS = (
    Example(
        category="thread_lock_deadlock",
        symptom="stuck",
        before="""\
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(2)

def part(x):
    return x + 1

def load(paths):
    jobs = [pool.submit(part, path) for path in paths]
    return [job.result() for job in jobs]  # <-- here
""",
    ),
)

_GIVES = ("submit", "map", "apply_async", "starmap")
_POOLS = re.compile(r"(?:ThreadPoolExecutor|ProcessPoolExecutor|ThreadPool|Pool)")
_WAITS = re.compile(r"\.result\(|\bwait\(|as_completed\(|\.get\(|\.map\(|\.starmap\(")


def fix(context: Context) -> FixerResult | None:
    """Make the second pool; None where no task gives tasks to its own pool and waits."""
    for source, function in context.every(cst.FunctionDef, 0.4):
        for pool in sorted(_pools_used(function)):
            made = _made(source, pool)
            if made is None or not _WAITS.search(code(function.body)):
                continue
            if not _is_task_of(source, function, pool):
                continue
            edits = Edits(source)
            edits.after(made, f"{pool}_inner = {_made_by(made)}")
            for call in _given(function, pool):
                edits.replace_text(call.func, f"{pool}_inner.{_method(call)}")
            return context.result(
                edits,
                why=f"{source.path}:{source.line(function)} {function.name.value}() is a task of "
                f"`{pool}` and waits for tasks that it gives to the same pool.",
                behaviour="The inner tasks run in workers of their own; at worst twice as many "
                "are alive.",
                score=0.95 * context.closeness(source, function),
            )
    return None


def _given(node: cst.CSTNode, pool: str) -> list[cst.Call]:
    return [
        call
        for call in find(node, cst.Call)
        if _method(call) in _GIVES and dotted(call.func).rpartition(".")[0] == pool
    ]


def _method(call: cst.Call) -> str:
    return dotted(call.func).rpartition(".")[2]


def _pools_used(function: Function) -> set[str]:
    found = {
        dotted(call.func).rpartition(".")[0]
        for call in find(function.body, cst.Call)
        if _method(call) in _GIVES
    }
    return {name for name in found if name}


def _is_task_of(source: Source, function: Function, pool: str) -> bool:
    """Whether the function is given to the pool, outside of itself."""
    name = function.name.value
    inside = {id(call) for call in find(function.body, cst.Call)}
    return any(
        call.args and dotted(call.args[0].value).rpartition(".")[2] == name
        for call in _given(source.module, pool)
        if id(call) not in inside
    )


def _made(source: Source, pool: str) -> cst.SimpleStatementLine | None:
    """The statement that binds the pool to a new one."""
    for line in find(source.module, cst.SimpleStatementLine):
        made = assigned(line)
        if made is None or dotted(made[0]) != pool or not isinstance(made[1], cst.Call):
            continue
        if _POOLS.fullmatch(dotted(made[1].func).rpartition(".")[2]):
            return line
    return None


def _made_by(line: cst.SimpleStatementLine) -> str:
    made = assigned(line)
    return code(made[1]) if made is not None else ""
