"""SMP005 Split a streamed data set over the loader's workers.

## What it does
In the `__iter__` of an `IterableDataset`, goes over every so-many-th item, by the worker that it
runs in.

## Why it hurts
Each worker of a DataLoader has a copy of the data set. Where none asks which one it is, all yield
everything: an epoch is as many times as long as there are workers, and repeats itself.

## When it is wrong
The data set is split elsewhere, by a `worker_init_fn` or by what it reads from.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import code, find

CODE = "SMP005"
ANSWERS = frozenset({"sampler_misconfiguration", "dataloader_bottleneck"})
LABEL = "review"
FIXES = (
    Example(
        category="sampler_misconfiguration",
        before="""\
import torch
from torch.utils.data import IterableDataset

class Lines(IterableDataset):
    def __iter__(self):
        self.epoch += 1
        for line in self.lines:  # <-- here
            yield torch.tensor(line)
""",
        after="""\
import itertools
import torch
from torch.utils.data import IterableDataset

class Lines(IterableDataset):
    def __iter__(self):
        self.epoch += 1
        worker = torch.utils.data.get_worker_info()
        offset, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        for line in itertools.islice(self.lines, offset, None, stride):
            yield torch.tensor(line)
""",
    ),
)
KEEPS = (
    Example(
        category="sampler_misconfiguration",
        before="""\
from torch.utils.data import IterableDataset, get_worker_info

class Lines(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        for line in self.lines[worker.id :: worker.num_workers]:  # <-- here
            yield line
""",
    ),
    Example(
        category="sampler_misconfiguration",
        before="""\
class Lines:
    def __iter__(self):
        for line in self.lines:  # <-- here
            yield line
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Take every so-many-th item; None where the class asks for its worker already."""
    for source, loop in context.every(cst.For, 0.6):
        function, owner = source.function_of(loop), source.class_of(loop)
        if function is None or owner is None or function.name.value != "__iter__":
            continue
        if not any("Iterable" in code(base.value) for base in owner.bases):
            continue
        if "worker" in code(owner) or source.loops(loop):
            continue
        if not any(True for _ in find(loop.body, cst.Yield)):
            continue
        edits = Edits(source)
        data = edits.module("torch.utils.data", loop)
        itertools = edits.module("itertools", loop)
        edits.before(
            loop,
            f"""\
worker = {data}.get_worker_info()
offset, stride = (worker.id, worker.num_workers) if worker else (0, 1)
""",
        )
        edits.replace_text(
            loop.iter, f"{itertools}.islice({code(loop.iter)}, offset, None, stride)"
        )
        return context.result(
            edits,
            why=f"{source.path}:{source.line(loop)} yields the same items in each worker.",
            behaviour="Each worker yields its part; an epoch is as long as the data.",
            score=0.9 * context.closeness(source, loop),
        )
    return None
