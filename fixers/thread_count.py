"""CPU001 Share the cores between the ranks of a host.

## What it does
Bounds `torch.set_num_threads(n)` by the cores of the host over the ranks on it.

## Why it hurts
More threads than cores take turns; each parallel region waits for the thread that is not running.

## When it is wrong
The ranks are pinned to disjoint sets of cores larger than this share.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, code, dotted, find, single

CODE = "CPU001"
ANSWERS = frozenset({"cpu_oversubscription", "straggler_compute", "dataloader_bottleneck"})
LABEL = "review"
MANY_WORKERS = 4  # more loader workers than this are bounded by the cores too
FIXES = (
    Example(
        category="cpu_oversubscription",
        before="""\
import torch

torch.set_num_threads(16)  # <-- here
""",
        after="""\
import os
import torch


def cores_per_rank():
    \"\"\"Return this rank's share of the cores that the process may use.\"\"\"
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // ranks)


torch.set_num_threads(min(16, cores_per_rank()))
""",
    ),
)
KEEPS = (
    Example(
        category="cpu_oversubscription",
        before="""\
import torch

torch.set_num_threads(1)  # <-- here
""",
    ),
)
HELPER = '''
def cores_per_rank():
    """Return this rank's share of the cores that the process may use."""
    ranks = int({os}.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len({os}.sched_getaffinity(0)) // ranks)
'''
_THREADS = re.compile(
    r"torch\.set_num_threads|torch\.set_num_interop_threads|numexpr\.set_num_threads|cv2\.setNumThreads|mkl\.set_num_threads"
)
_VARIABLES = re.compile(r"(?:OMP|MKL|OPENBLAS|NUMEXPR|VECLIB_MAXIMUM)_NUM_THREADS")


def fix(context: Context) -> FixerResult | None:
    """Bound the numbers of threads; None where none is set, or to one."""
    edits: dict[str, Edits] = {}
    places = []
    for source in context.files:
        for node in _counts(source):
            edit = edits.setdefault(source.path, Edits(source))
            text = code(node)
            if isinstance(node, cst.SimpleString):
                edit.replace_text(node, f"str(min({text[1:-1]}, cores_per_rank()))")
            else:
                edit.replace_text(node, f"min({text}, cores_per_rank())")
            places.append(f"{source.path}:{source.line(node)}")
            edit.add_import("import os")
            if not source.functions_named("cores_per_rank") and len(edit._helpers) == 0:
                edit.add_helper(HELPER.format(os=source.alias("os") or "os"))
    if not places:
        return None
    return context.result(
        *edits.values(),
        why=f"{', '.join(places)} asks for more threads than this rank has cores.",
        behaviour="Fewer threads a rank; sums may be added up in another order.",
        score=0.9 if context.cause.category == "cpu_oversubscription" else 0.35,
    )


def _counts(source: Source) -> list[cst.BaseExpression]:
    """The numbers of threads that are set and not bounded yet."""
    found: list[cst.BaseExpression] = []
    for call in find(source.module, cst.Call):
        if _THREADS.fullmatch(source.full_name(call.func)) and call.args:
            value = call.args[0].value
            if (
                code(value) != "1"
                and "cores_per_rank" not in code(value)
                and "min(" not in code(value)
            ):
                found.append(value)
    for call in source.calls(source.module, r"(?:torch\.utils\.data\.)?DataLoader"):
        workers = argument(call, "num_workers", 5)
        if workers is not None and isinstance(workers.value, cst.Integer):
            if workers.value.evaluated_value > MANY_WORKERS:
                found.append(workers.value)
    for line in find(source.module, cst.SimpleStatementLine):
        small = single(line)
        if isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Subscript):
            target = small.targets[0].target
            key = code(target.slice[0]).strip("\"'")
            if dotted(target.value).endswith("environ") and _VARIABLES.fullmatch(key):
                if isinstance(small.value, cst.SimpleString) and code(small.value)[1:-1] not in (
                    "1",
                    "",
                ):
                    found.append(small.value)
    return found
