"""Records where an iteration's parts begin and end: loader ``__next__`` and optimizer steps.

Wrapped are the classes below DataLoader's iterator that define ``__next__`` themselves, with a
guard so that a subclass calling ``super().__next__`` counts once, and torch's global optimizer
hooks, which are looked up at each step and so cover optimizers built before.
"""

from __future__ import annotations

import functools
from typing import Any

from . import guard
from .imports import when_imported
from .layout import NEXT_IN, STEP_IN

_OWNER_SHIFT = 8


class Owners:
    """Small numbers for optimizers and loaders, in the order they were first seen."""

    def __init__(self) -> None:
        self._number: dict[int, int] = {}

    def of(self, key: int) -> int:
        """The number of an object's id, shifted to where an event carries it."""
        number = self._number.get(key)
        if number is None:
            number = min(len(self._number), 65535) << _OWNER_SHIFT
            self._number[key] = number
        return number


def install(ring: Any) -> None:
    when_imported("torch.optim.optimizer", lambda module: _watch_optimizers(ring, module))
    when_imported("torch.utils.data.dataloader", lambda module: _watch_loaders(ring, module))


def _watch_optimizers(ring: Any, module: Any) -> None:
    before = getattr(module, "register_optimizer_step_pre_hook", None)
    after = getattr(module, "register_optimizer_step_post_hook", None)
    owners = Owners()
    seen: list[bool] = []

    def begin(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not seen:
            seen.append(True)
            ring.note_thread()
        ring.record(STEP_IN | owners.of(id(optimizer)))

    def end(optimizer: Any, args: Any, kwargs: Any) -> None:
        ring.end_optimizer(owners.of(id(optimizer)))

    if before is None or after is None:
        guard.tell("watching optimizers", AttributeError("this torch has no global step hooks"))
        return
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

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        state = self.__dict__
        if state.get("_eroica_inside"):  # a subclass called super().__next__
            return original(self)
        owner = state.get("_eroica_owner")
        if owner is None:
            # The dataset, not the iterator: a new iterator each epoch is the same loader.
            owner = owners.of(id(state.get("_dataset", self)))
            state["_eroica_owner"] = owner
        ring.record(NEXT_IN | owner)
        state["_eroica_inside"] = True
        try:
            return original(self)
        finally:
            state["_eroica_inside"] = False
            ring.end_loader(owner)

    __next__.__dict__["_eroica"] = True
    cls.__next__ = __next__
