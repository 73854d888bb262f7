"""SMP004 Draw each rank's part of a weighted sample.

## What it does
Divides the `num_samples` of a `WeightedRandomSampler` by the number of ranks, and gives it a
generator of the rank's own.

## Why it hurts
Every rank draws as many samples as the data set has: an epoch takes as many times the steps it
needs as there are ranks. Seeded alike, all ranks even draw the same ones.

## When it is wrong
The number of samples was meant to be that of one rank.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, code

CODE = "SMP004"
ANSWERS = frozenset({"sampler_misconfiguration"})
LABEL = "review"
FIXES = (
    Example(
        category="sampler_misconfiguration",
        before="""\
import torch.distributed as dist
from torch.utils.data import DataLoader, WeightedRandomSampler

def build(ds):
    sampler = WeightedRandomSampler(ds.weights, num_samples=len(ds))
    return DataLoader(ds, batch_size=16, sampler=sampler)  # <-- here
""",
        after="""\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, WeightedRandomSampler

def build(ds):
    sampler = WeightedRandomSampler(ds.weights, num_samples=len(ds) // dist.get_world_size(), \
generator=torch.Generator().manual_seed(dist.get_rank()))
    return DataLoader(ds, batch_size=16, sampler=sampler)
""",
    ),
    Example(
        category="sampler_misconfiguration",
        before="""\
import torch
from torch.utils.data.sampler import WeightedRandomSampler

def build(ds, count):
    return WeightedRandomSampler(ds.weights, 2 + count, True)  # <-- here
""",
        after="""\
import torch
from torch.utils.data.sampler import WeightedRandomSampler

def build(ds, count):
    return WeightedRandomSampler(ds.weights, (2 + count) // torch.distributed.get_world_size(), \
True, generator=torch.Generator().manual_seed(torch.distributed.get_rank()))
""",
    ),
)
KEEPS = (
    Example(
        category="sampler_misconfiguration",
        before="""\
import torch.distributed as dist
from torch.utils.data import WeightedRandomSampler

def build(ds):
    size = len(ds) // dist.get_world_size()
    return WeightedRandomSampler(ds.weights, num_samples=size)  # <-- here
""",
    ),
)

_SPLIT = re.compile(r"world|replica|num_ranks|n_ranks", re.IGNORECASE)
_PATTERN = r"(?:torch\.utils\.data\.(?:sampler\.)?)?WeightedRandomSampler"


def fix(context: Context) -> FixerResult | None:
    """Divide what is drawn; None where it is divided already."""
    for source in context.files:
        calls = source.calls(source.module, _PATTERN)
        for call in sorted(calls, key=lambda c: -context.closeness(source, c)):
            number = _number_drawn(call)
            if number is None or _SPLIT.search(_text(source, number.value)):
                continue
            edits = Edits(source)
            dist = edits.module("torch.distributed", call)
            torch = edits.module("torch", call)
            edits.replace_text(number.value, f"{_grouped(number.value)} // {dist}.get_world_size()")
            if argument(call, "generator") is None:
                seed = f"{torch}.Generator().manual_seed({dist}.get_rank())"
                edits.set_argument(call, "generator", seed)
            return context.result(
                edits,
                why=f"{source.path}:{source.line(call)} draws a whole epoch on every rank.",
                behaviour="An epoch has as many steps as samples of one rank; each rank draws "
                "others.",
                score=0.85 if context.is_near(source, call) else 0.6,
            )
    return None


def _number_drawn(call: cst.Call) -> cst.Arg | None:
    given = argument(call, "num_samples")
    positional = [arg for arg in call.args if arg.keyword is None and not arg.star]
    return given if given is not None else (positional[1] if len(positional) > 1 else None)


def _text(source: Source, value: cst.BaseExpression) -> str:
    """The expression, with those of the names in it."""
    text = code(value)
    bound = [code(given) for name, given, _ in source.assignments() if name == text]
    return " ".join([text, *bound])


def _grouped(value: cst.BaseExpression) -> str:
    is_simple = isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Integer | cst.Subscript)
    return code(value) if is_simple else f"({code(value)})"
