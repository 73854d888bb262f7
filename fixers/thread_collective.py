"""THR004 Keep collectives of a background thread off the training's group.

## What it does
Replaces a barrier that a thread calls again and again by a time stamp in the store; gives other
collectives of a thread a process group of their own.

## Why it hurts
Collectives of one group must be issued in the same order on all ranks. Two threads interleave
them differently on each rank.

## When it is wrong
The barrier is there to hold the ranks together, not to see that they live.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import collectives, is_barrier
from eroica.fix.tree import Function, Source, argument, called, dotted, find, last_name

CODE = "THR004"
ANSWERS = frozenset(
    {
        "collective_order_mismatch",
        "collective_count_mismatch",
        "rank_conditional_collective",
        "divergent_control_flow",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="collective_order_mismatch",
        before="""\
import threading
import torch.distributed as dist

class Beat:
    def start(self):
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self):
        while not self.stop.wait(1):
            dist.barrier()  # <-- here
""",
        after="""\
import threading
import time
import torch.distributed as dist

class Beat:
    def start(self):
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self):
        while not self.stop.wait(1):
            store = dist.distributed_c10d._get_default_store()
            store.set(f"alive/{dist.get_rank()}", str(time.time()))
""",
    ),
    Example(
        category="collective_order_mismatch",
        before="""\
import threading
import torch.distributed as dist

class Meter:
    def __init__(self):
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while True:
            dist.all_reduce(self.value)  # <-- here
""",
        after="""\
import threading
import torch.distributed as dist

class Meter:
    def __init__(self):
        self._group = dist.new_group()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while True:
            dist.all_reduce(self.value, group=self._group)
""",
    ),
)
KEEPS = (
    Example(
        category="collective_order_mismatch",
        before="""\
import torch.distributed as dist

def train(x):
    while True:
        dist.all_reduce(x)  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Move the thread's collectives away; None where no thread function has any."""
    for source in context.files:
        for start, name in _starts(source):
            for function in source.functions_named(name) if name else []:
                calls = [
                    c for c in collectives(source, function.body) if argument(c, "group") is None
                ]
                if calls:
                    result = _rewrite(context, source, start, function, calls)
                    if result is not None:
                        return result
    return None


def _starts(source: Source) -> list[tuple[cst.Call, str]]:
    """What makes a thread, or the pool of it, and the name of the function that runs there."""
    found = []
    for start in source.calls(source.module, r"threading\.(Thread|Timer)"):
        target = argument(start, "target", 1)
        if target is not None:
            found.append((start, dotted(target.value).rpartition(".")[2]))
    pools = source.calls(source.module, r"(?:concurrent\.futures\.)(?:thread\.)?ThreadPoolExecutor")
    found += [
        (pools[0], dotted(call.args[0].value).rpartition(".")[2])
        for call in find(source.module, cst.Call)
        if pools and last_name(call.func) == "submit" and call.args
    ]
    return [(start, name) for start, name in found if name]


def _rewrite(
    context: Context, source: Source, start: cst.Call, function: Function, calls: list[cst.Call]
) -> FixerResult | None:
    edits = Edits(source)
    dist = edits.module("torch.distributed", calls[0])
    lines = [source.statement_of(c) for c in calls]
    is_heartbeat = all(
        is_barrier(source, c) and called(line) is c  # type: ignore[arg-type]
        for c, line in zip(calls, lines, strict=True)
    )
    if is_heartbeat:
        time = edits.module("time", calls[0])
        for line in lines:
            assert line is not None
            text = f"""\
store = {dist}.distributed_c10d._get_default_store()
store.set(f"alive/{{{dist}.get_rank()}}", str({time}.time()))
"""
            edits.replace(line, edits.statements(text))
        behaviour = (
            "Ranks no longer wait for each other in the thread; read alive/N to see the last sign."
        )
    else:
        place = source.statement_of(start)
        owner = source.class_of(function)
        if place is None:
            return None
        group = "self._group" if owner is not None else "background_group"
        edits.before(place, f"{group} = {dist}.new_group()")
        if owner is None and source.function_of(start) is not None:
            return None
        for call in calls:
            edits.set_argument(call, "group", group)
        behaviour = "All ranks make one more process group at the start."
    return context.result(
        edits,
        why=f"{source.path}:{source.line(calls[0])} runs in a thread beside training, on the same "
        "process group.",
        behaviour=behaviour,
        score=0.95 * max(context.closeness(source, calls[0]), 0.6),
    )
