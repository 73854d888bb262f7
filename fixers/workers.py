"""DAT001 Load data in worker processes.

## What it does
Gives a DataLoader without workers a few of them, keeps them over epochs, and changes the default
of the option or constant the number comes from.

## Why it hurts
With `num_workers=0` every sample is read in the training process, between the steps.

## When it is wrong
The data set is in memory and cheap to index, or it must not be forked or pickled.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.settings import literal_behind
from eroica.fix.tree import Source, argument, code, dotted

CODE = "DAT001"
ANSWERS = frozenset({"dataloader_bottleneck", "straggler_data_loading"})
LABEL = "review"
NUM_WORKERS = 4
FIXES = (
    Example(
        category="dataloader_bottleneck",
        before="""\
from torch.utils.data import DataLoader

def build(ds):
    return DataLoader(ds, batch_size=8)  # <-- here
""",
        after="""\
from torch.utils.data import DataLoader

def build(ds):
    return DataLoader(ds, batch_size=8, num_workers=4, persistent_workers=True)
""",
    ),
    Example(
        category="dataloader_bottleneck",
        before="""\
import argparse
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()

def build(ds):
    return DataLoader(ds, num_workers=args.workers)  # <-- here
""",
        after="""\
import argparse
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=4)
args = parser.parse_args()

def build(ds):
    return DataLoader(ds, num_workers=args.workers, persistent_workers=args.workers > 0)
""",
    ),
)
KEEPS = (
    Example(
        category="dataloader_bottleneck",
        before="""\
from torch.utils.data import DataLoader

def build(ds):
    return DataLoader(ds, batch_size=8, num_workers=6)  # <-- here
""",
    ),
)


def loaders(context: Context) -> list[tuple[Source, cst.Call]]:
    """Return the DataLoader constructors of the project, those closest to the cause first."""
    found = [
        (source, call)
        for source in context.files
        for call in source.calls(
            source.module, r"(?:torch\.utils\.data(?:\.dataloader)?\.)?DataLoader"
        )
    ]
    return sorted(found, key=lambda item: -context.closeness(*item))


def fix(context: Context) -> FixerResult | None:
    """Add workers; None where every loader has some."""
    for source, call in _training_first(loaders(context)):
        number = argument(call, "num_workers", 5)
        edits = Edits(source)
        if number is None:
            edits.set_argument(call, "num_workers", str(NUM_WORKERS))
            persistent = "True"
        else:
            behind = literal_behind(context, source, number.value)
            if behind is None or behind.text != "0":
                continue
            if behind.source is not source:
                continue
            if behind.node is number.value:
                edits.set_argument(call, "num_workers", str(NUM_WORKERS), 5)
                persistent = "True"
            else:
                edits.replace_text(behind.node, str(NUM_WORKERS))
                persistent = f"{code(number.value)} > 0"
        if argument(call, "persistent_workers") is None:
            edits.set_argument(call, "persistent_workers", persistent)
        return context.result(
            edits,
            why=f"{source.path}:{source.line(call)} reads every sample in the training process, "
            "and each step waits for it.",
            behaviour=f"{NUM_WORKERS} worker processes a rank read ahead; random numbers drawn in "
            "the data set come from the workers' generators.",
            score=0.7 if _is_slow_read(context) else 0.6,
        )
    return None


def _training_first(found: list[tuple[Source, cst.Call]]) -> list[tuple[Source, cst.Call]]:
    def is_validation(item: tuple[Source, cst.Call]) -> bool:
        source, call = item
        line = code(source.statement_of(call) or call).lower()
        return any(word in line.split("=")[0] for word in ("val", "test", "eval"))

    return sorted(found, key=is_validation)


def _is_slow_read(context: Context) -> bool:
    return any(
        spot.function is not None
        and spot.function.name.value in ("__getitem__", "__getitems__", "get")
        for spot in context.spots
    ) or any(
        dotted(n.func) == "time.sleep"
        for s in context.files
        for n in s.calls(s.module, r"time\.sleep")
    )
