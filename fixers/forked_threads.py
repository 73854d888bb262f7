"""FRK002 Use one thread in a forked child.

## What it does
Begins the function of a process that is forked with `torch.set_num_threads(1)`.

## Why it hurts
The parent's pool of threads is not copied by a fork, only the note that there is one: the first
parallel operation of the child waits for threads that do not exist.

## When it is wrong
The child needs many threads: then start it with `spawn` instead of `fork`.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import body_of, code, find, is_docstring

CODE = "FRK002"
ANSWERS = frozenset({"fork_lock_deadlock", "thread_lock_deadlock", "blocked_io"})
LABEL = "review"
FIXES = (
    Example(
        category="fork_lock_deadlock",
        symptom="stuck",
        before="""\
import multiprocessing as mp
import torch

def score(queue, rows):
    queue.put((rows @ rows.T).sum().item())  # <-- here

def start(rows):
    context = mp.get_context("fork")
    queue = context.Queue()
    context.Process(target=score, args=(queue, rows)).start()
    return queue.get()
""",
        after="""\
import multiprocessing as mp
import torch

def score(queue, rows):
    torch.set_num_threads(1)
    queue.put((rows @ rows.T).sum().item())

def start(rows):
    context = mp.get_context("fork")
    queue = context.Queue()
    context.Process(target=score, args=(queue, rows)).start()
    return queue.get()
""",
    ),
)
KEEPS = (
    Example(
        category="fork_lock_deadlock",
        symptom="stuck",
        before="""\
import multiprocessing as mp
import torch

def score(queue, rows):
    queue.put(rows.sum().item())  # <-- here

def start(rows):
    context = mp.get_context("spawn")
    queue = context.Queue()
    context.Process(target=score, args=(queue, rows)).start()
""",
    ),
    Example(
        category="fork_lock_deadlock",
        symptom="stuck",
        before="""\
import torch

def score(rows):
    return rows.sum().item()  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Set it; None where no function of the project runs in a forked process."""
    text = "\n".join(source.text for source in context.files)
    targets = set(re.findall(r"Process\([^)]*?target=(?:[\w.]+\.)?(\w+)", text, re.S))
    targets |= set(re.findall(r"Pool\([^)]*?initializer=(?:[\w.]+\.)?(\w+)", text, re.S))
    for source in context.files:
        if not source.uses("torch") or re.search(r"[\"'](?:spawn|forkserver)[\"']", text):
            continue
        for function in find(source.module, cst.FunctionDef):
            body = body_of(function)
            if function.name.value not in targets or "set_num_threads" in code(function.body):
                continue
            edits = Edits(source)
            line = f"{edits.module('torch', body[0])}.set_num_threads(1)"
            if is_docstring(body[0]):
                edits.after(body[0], line)
            else:
                edits.before(body[0], line)
            return context.result(
                edits,
                why=f"{source.path}:{source.line(function)} runs in a forked process, without the "
                "threads that torch counts on.",
                behaviour="The child computes on one thread.",
                score=0.8 if context.cause.category == "fork_lock_deadlock" else 0.35,
            )
    return None
