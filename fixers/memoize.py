"""DAT003 Do pure per-sample work once.

## What it does
Puts `functools.lru_cache` on a pure function that turns a sample's text or number into tokens or
features in `__getitem__` or the collate function, so that it runs once a sample and not once an
epoch.

## Why it hurts
Plain Python work per sample in every epoch is on the critical path of every step.

## When it is wrong
The results do not fit in memory, or the caller changes them in place.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Function, Source, code, find

CODE = "DAT003"
ANSWERS = frozenset({"dataloader_bottleneck", "python_overhead", "straggler_data_loading"})
LABEL = "review"
FIXES = (
    Example(
        category="dataloader_bottleneck",
        before="""\
class Tokenizer:
    def encode(self, text):
        out = []
        for word in text.split():  # <-- here
            out.append(self.vocab[word])
        return out

class Collate:
    def __call__(self, samples):
        return [self.tokenizer.encode(text) for text in samples]
""",
        after="""\
import functools

class Tokenizer:
    @functools.lru_cache(maxsize=None)
    def encode(self, text):
        out = []
        for word in text.split():
            out.append(self.vocab[word])
        return out

class Collate:
    def __call__(self, samples):
        return [self.tokenizer.encode(text) for text in samples]
""",
    ),
)
KEEPS = (
    Example(
        category="dataloader_bottleneck",
        before="""\
import random

def augment(text):
    words = text.split()
    random.shuffle(words)  # <-- here
    return words

def __getitem__(self, i):
    return augment(self.texts[i])
""",
    ),
)
_IMPURE = re.compile(
    r"\b(random|rand|randn|randint|choice|shuffle|time|open|print|input|next|global|nonlocal|yield|"
    r"await|perf_counter|sleep|to|cuda|read|recv|get_worker_info|all_reduce|barrier)\b"
)
_TEXT = re.compile(r"\.(split|strip|lower|upper|encode|splitlines|replace)\(|\bre\.|\blist\(\w+\)")


def fix(context: Context) -> FixerResult | None:
    """Cache the function; None where none near the cause is pure and fed with plain values."""
    functions = [(s.source, s.function) for s in context.scopes if s.function is not None]
    for source, function in [*functions, *context.reached]:
        if not _is_candidate(context, source, function):
            continue
        edits = Edits(source)
        functools = edits.module("functools")
        cache = cst.Decorator(cst.parse_expression(f"{functools}.lru_cache(maxsize=None)"))
        edits.replace(
            function,
            lambda node, cache=cache: node.with_changes(decorators=[*node.decorators, cache]),
        )
        return context.result(
            edits,
            why=f"{source.path}:{source.line(function)} {function.name.value}() computes the "
            "same from "
            "the same sample in every epoch.",
            behaviour="Results are kept for the life of the process: memory for speed.",
            score=0.8 if any(s.function is function for s in context.spots) else 0.65,
        )
    return None


def _is_candidate(context: Context, source: Source, function: Function) -> bool:
    """Pure, returns a value, loops in Python over one text argument, and is called per sample."""
    text = code(function.body)
    params = [p.name.value for p in function.params.params if p.name.value != "self"]
    if function.name.value.startswith("__") or function.decorators or len(params) != 1:
        return False
    if _IMPURE.search(text) or re.search(r"\bself\.\w+(\[[^]]*\])?\s*[-+*/]?=[^=]", text):
        return False
    if re.search(r"\bself\.\w+\.(append|add|update|pop|setdefault|extend)\(", text):
        return False
    if not any(True for _ in find(function.body, cst.For)) and not any(
        True for _ in find(function.body, cst.While)
    ):
        return False
    if not any(
        isinstance(n, cst.Return) and n.value is not None for n in find(function.body, cst.Return)
    ):
        return False
    return bool(_TEXT.search(text)) and re.search(rf"\b{params[0]}\b", text) is not None
