"""DAT002 Keep loader workers alive over epochs.

## What it does
Adds `persistent_workers=True` to a DataLoader with workers.

## Why it hurts
Without it every epoch starts new worker processes, which import, open and index everything again.

## When it is wrong
The data set changes between epochs in the parent: workers keep the copy they started with.
"""

from importlib import import_module

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.settings import literal_behind
from eroica.fix.tree import argument, code

CODE = "DAT002"
ANSWERS = frozenset({"dataloader_bottleneck", "straggler_data_loading"})
LABEL = "review"
FIXES = (
    Example(
        category="dataloader_bottleneck",
        before="""\
from torch.utils.data import DataLoader

def train(ds):
    loader = DataLoader(ds, num_workers=2)  # <-- here
    for epoch in range(10):
        for x in loader:
            step(x)
""",
        after="""\
from torch.utils.data import DataLoader

def train(ds):
    loader = DataLoader(ds, num_workers=2, persistent_workers=True)
    for epoch in range(10):
        for x in loader:
            step(x)
""",
    ),
)
KEEPS = (
    Example(
        category="dataloader_bottleneck",
        before="""\
from torch.utils.data import DataLoader

loader = DataLoader([1], num_workers=0)  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Add the argument; None where no loader has workers that end with the epoch."""
    loaders = import_module("eroica.fixers.workers").loaders
    for source, call in loaders(context):
        number = argument(call, "num_workers", 5)
        known = argument(call, "persistent_workers")
        if number is None or (known is not None and code(known.value) != "False"):
            continue
        behind = literal_behind(context, source, number.value)
        if behind is not None and behind.text == "0":
            continue
        plain = behind is not None and behind.node is number.value
        edits = Edits(source)
        edits.set_argument(
            call, "persistent_workers", "True" if plain else f"{code(number.value)} > 0"
        )
        return context.result(
            edits,
            why=f"{source.path}:{source.line(call)} starts its workers anew in every epoch.",
            behaviour="Workers live as long as the loader, with the data set as it was at the "
            "start.",
            score=0.9,
        )
    return None
