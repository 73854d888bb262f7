"""Records where an iteration's parts begin and end: loader ``__next__`` and optimizer steps.

Wrapped are the classes below DataLoader's iterator that define ``__next__`` themselves, with a
guard so that a subclass calling ``super().__next__`` counts once, and torch's global optimizer
hooks, which are looked up at each step and so cover optimizers built before.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from . import guard
from .imports import when_imported
from .layout import (
    CAPACITY,
    HEADER_WORDS,
    NEXT_IN,
    NEXT_OUT,
    STEP_IN,
    STEP_OUT,
    W_BORDER_LOADER,
    W_BORDER_OPTIMIZER,
    W_NUM_LOADER,
    W_NUM_OPTIMIZER,
    W_POSITION,
)

_OWNER_SHIFT = 8
_MASK = CAPACITY - 1


class Owners:
    """Small numbers for optimizers and loaders, in the order they were first seen."""

    def __init__(self) -> None:
        self.number: dict[int, int] = {}

    def of(self, key: int) -> int:
        """The number of an object's id, shifted to where an event carries it."""
        number = self.number.get(key)
        if number is None:
            number = min(len(self.number), 65535) << _OWNER_SHIFT
            self.number[key] = number
        return number


def install(ring: Any) -> None:
    when_imported("torch.optim.optimizer", lambda module: _watch_optimizers(ring, module))
    when_imported("torch.utils.data.dataloader", lambda module: _watch_loaders(ring, module))


def _watch_optimizers(ring: Any, module: Any) -> None:
    before = getattr(module, "register_optimizer_step_pre_hook", None)
    after = getattr(module, "register_optimizer_step_post_hook", None)
    if before is None or after is None:
        guard.tell("watching optimizers", AttributeError("this torch has no global step hooks"))
        return
    owners = Owners()
    known, now = owners.number.get, time.monotonic_ns

    # The writing is spelled out in both: two calls less are a quarter of the hook's cost.
    def begin(optimizer: Any, args: Any, kwargs: Any) -> None:
        owner = known(id(optimizer))
        if owner is None:
            owner = owners.of(id(optimizer))
            ring.note_thread()
        words = ring.words
        position = words[W_POSITION]
        at = HEADER_WORDS + ((position & _MASK) << 1)
        words[at] = now()
        words[at + 1] = STEP_IN | owner
        words[W_POSITION] = position + 1

    def end(optimizer: Any, args: Any, kwargs: Any) -> None:
        words = ring.words
        position = words[W_POSITION]
        at = HEADER_WORDS + ((position & _MASK) << 1)
        words[at] = now()
        words[at + 1] = STEP_OUT | (known(id(optimizer)) or 0)
        words[W_POSITION] = position + 1
        words[W_NUM_OPTIMIZER] = count = words[W_NUM_OPTIMIZER] + 1
        if count >= words[W_BORDER_OPTIMIZER]:
            ring.at_border(W_BORDER_OPTIMIZER, count)

    before(begin)
    after(end)


def _watch_loaders(ring: Any, module: Any) -> None:
    base = getattr(module, "_BaseDataLoaderIter", None)
    if base is None:
        guard.tell("watching loaders", AttributeError("this torch has no _BaseDataLoaderIter"))
        return
    owners = Owners()

    def walk(cls: type[Any]) -> None:
        _wrap_next(ring, owners, cls)
        for child in cls.__subclasses__():
            walk(child)

    walk(base)
    inherited = base.__init_subclass__

    def init_subclass(cls: type[Any], **arguments: Any) -> None:
        inherited.__func__(cls, **arguments) if hasattr(inherited, "__func__") else inherited()
        _wrap_next(ring, owners, cls)

    base.__init_subclass__ = classmethod(init_subclass)  # type: ignore[arg-type]


def _wrap_next(ring: Any, owners: Owners, cls: type[Any]) -> None:
    original = cls.__dict__.get("__next__")
    if original is None or getattr(original, "_eroica", False):
        return
    now = time.monotonic_ns

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        state = self.__dict__
        owner = state.get("_eroica")
        if owner is None:
            # The dataset, not the iterator: a new iterator each epoch is the same loader.
            owner = owners.of(id(state.get("_dataset", self)))
        elif owner < 0:  # a subclass called super().__next__
            return original(self)
        state["_eroica"] = -1
        words = ring.words
        position = words[W_POSITION]
        at = HEADER_WORDS + ((position & _MASK) << 1)
        words[at] = now()
        words[at + 1] = NEXT_IN | owner
        words[W_POSITION] = position + 1
        try:
            return original(self)
        finally:
            state["_eroica"] = owner
            words = ring.words
            position = words[W_POSITION]
            at = HEADER_WORDS + ((position & _MASK) << 1)
            words[at] = now()
            words[at + 1] = NEXT_OUT | owner
            words[W_POSITION] = position + 1
            words[W_NUM_LOADER] = count = words[W_NUM_LOADER] + 1
            if count >= words[W_BORDER_LOADER]:
                ring.at_border(W_BORDER_LOADER, count)

    __next__.__dict__["_eroica"] = True
    cls.__next__ = __next__
