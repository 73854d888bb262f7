"""CPU001 Share the cores between the ranks of a host.

## What it does
Bounds `torch.set_num_threads(n)`, `OMP_NUM_THREADS` and its like, pools of threads and loader
workers by the cores of the host over the ranks on it.

## Why it hurts
More threads than cores take turns; each parallel region waits for the thread that is not running.

## When it is wrong
The ranks are pinned to disjoint sets of cores larger than this share.
"""

import re
from collections.abc import Iterator

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
    Example(
        category="cpu_oversubscription",
        before="""\
import os

def tune(profile):
    threads = str(PROFILES[profile])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = threads  # <-- here
""",
        after="""\
import os


def cores_per_rank():
    \"\"\"Return this rank's share of the cores that the process may use.\"\"\"
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def tune(profile):
    threads = str(PROFILES[profile])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(min(int(threads), cores_per_rank()))
""",
    ),
    Example(
        category="cpu_oversubscription",
        before="""\
import os
from concurrent.futures import ThreadPoolExecutor


def cores_per_rank():
    \"\"\"Return this rank's share of the cores that the process may use.\"\"\"
    return 1


class Loader:
    def __init__(self, n):
        self.pool = ThreadPoolExecutor(max_workers=n)  # <-- here
""",
        after="""\
import os
from concurrent.futures import ThreadPoolExecutor


def cores_per_rank():
    \"\"\"Return this rank's share of the cores that the process may use.\"\"\"
    return 1


class Loader:
    def __init__(self, n):
        self.pool = ThreadPoolExecutor(max_workers=min(n, cores_per_rank()))
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
_POOLS = re.compile(
    r"(?:concurrent\.futures\.)?(?:thread\.)?ThreadPoolExecutor"
    r"|multiprocessing\.(?:pool\.|dummy\.)?(?:ThreadPool|Pool)"
)
_VARIABLES = re.compile(r"(?:OMP|MKL|OPENBLAS|NUMEXPR|VECLIB_MAXIMUM)_NUM_THREADS")


def fix(context: Context) -> FixerResult | None:
    """Bound the numbers of threads; None where none is set, or to one."""
    edits: dict[str, Edits] = {}
    places = []
    for source in context.files:
        for node in _counts(source, has_pools=context.cause.category == "cpu_oversubscription"):
            edit = edits.setdefault(source.path, Edits(source))
            edit.replace_text(node, _bounded(source, node))
            places.append(f"{source.path}:{source.line(node)}")
            if not source.functions_named("cores_per_rank") and len(edit._helpers) == 0:
                edit.add_helper(HELPER.format(os=edit.module("os")))
    if not places:
        return None
    return context.result(
        *edits.values(),
        why=f"{', '.join(places)} asks for more threads than this rank has cores.",
        behaviour="Fewer threads a rank; sums may be added up in another order.",
        score=0.9 if context.cause.category == "cpu_oversubscription" else 0.35,
    )


def _bounded(source: Source, node: cst.BaseExpression) -> str:
    """The number, at most this rank's share; as text where it is one."""
    text = code(node)
    if isinstance(node, cst.SimpleString):
        return f"str(min({text[1:-1]}, cores_per_rank()))"
    if isinstance(node, cst.Call) and dotted(node.func) == "str" and len(node.args) == 1:
        return f"str(min({code(node.args[0].value)}, cores_per_rank()))"
    above = source.parent(node)
    if isinstance(above, cst.Assign) or "environ" in code(source.parent(above) or node):  # type: ignore[arg-type]
        return f"str(min(int({text}), cores_per_rank()))"
    return f"min({text}, cores_per_rank())"


def _counts(source: Source, *, has_pools: bool) -> list[cst.BaseExpression]:
    """The numbers of threads that are set and not bounded yet.

    A pool may wait for files rather than compute: it counts only where the cores are the matter.
    """
    found = [*_in_calls(source, has_pools), *_in_environment(source)]
    bound = re.compile(r"cores_per_rank|\bmin\(|^['\"]?1?['\"]?$|^str\(1\)$|cpu_count|affinity")
    return [node for node in found if not bound.search(code(node))]


def _in_calls(source: Source, has_pools: bool) -> Iterator[cst.BaseExpression]:
    for call in find(source.module, cst.Call):
        name = source.full_name(call.func)
        if _THREADS.fullmatch(name) and call.args:
            yield call.args[0].value
        pool = argument(call, "max_workers", 0) or argument(call, "processes", 0)
        if has_pools and _POOLS.fullmatch(name) and pool is not None:
            if not isinstance(pool.value, cst.Integer) or pool.value.evaluated_value > MANY_WORKERS:
                yield pool.value
        if name.rpartition(".")[2] == "DataLoader":
            workers = argument(call, "num_workers", 5)
            if workers is not None and isinstance(workers.value, cst.Integer):
                if workers.value.evaluated_value > MANY_WORKERS:
                    yield workers.value


def _in_environment(source: Source) -> Iterator[cst.BaseExpression]:
    """``os.environ["OMP_NUM_THREADS"] = n``, also with the name from a loop, and setdefault."""
    for line in find(source.module, cst.SimpleStatementLine):
        small = single(line)
        if isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Subscript):
            target = small.targets[0].target
            if dotted(target.value).endswith("environ") and _is_threads(source, line, target):
                yield small.value
    for call in find(source.module, cst.Call):
        if dotted(call.func).endswith("environ.setdefault") and len(call.args) == 2:
            if _VARIABLES.fullmatch(code(call.args[0].value).strip("\"'")):
                yield call.args[1].value


def _is_threads(source: Source, line: cst.CSTNode, target: cst.Subscript) -> bool:
    key = code(target.slice[0])
    if _VARIABLES.fullmatch(key.strip("\"'")):
        return True
    return any(
        isinstance(loop, cst.For)
        and code(loop.target) == key
        and _VARIABLES.search(code(loop.iter))
        for loop in source.loops(line)
    )
