"""Records where an iteration's parts begin and end: loader ``__next__`` and optimizer steps.

Wrapped are the classes below DataLoader's iterator that define ``__next__`` themselves (a subclass
calling ``super().__next__`` counts once), and torch's global optimizer hooks, which are looked up
at each step and so cover optimizers built before.

The writing is spelled out where it happens, and begin and end of a part are written together at its
end: fewer calls are most of what the hook costs. A part that never ends is one nobody could time.
"""

from __future__ import annotations

import contextlib
import functools
import struct
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
_LAST = CAPACITY - 1
_BASE = 8 * HEADER_WORDS
_pack = struct.Struct("=QQQQ").pack_into  # two events


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
    # A compiled optimizer step would be traced into these hooks, and torch would warn of them.
    for name in ("torch._dynamo.trace_rules", "torch._dynamo.skipfiles"):
        when_imported(name, lambda module: module.add(__package__))


def _watch_optimizers(ring: Any, module: Any) -> None:
    before = getattr(module, "register_optimizer_step_pre_hook", None)
    after = getattr(module, "register_optimizer_step_post_hook", None)
    if before is None or after is None:
        guard.tell("watching optimizers", AttributeError("this torch has no global step hooks"))
        return
    owners = Owners()
    known, now, pack = owners.number.get, time.monotonic_ns, _pack
    began, owner, who = 0, 0, 0

    def begin(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal began, owner, who
        if began:  # a step within a step, or one that raised: the earlier begin stands first
            ring.write(began, STEP_IN | owner)
        who = id(optimizer)
        found = known(who)
        if found is None:
            found = owners.of(who)
            ring.note_thread()
        owner = found
        began = now()

    def end(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal began
        words = ring.words
        if began and id(optimizer) == who:
            position = words[W_POSITION]
            at = position & _LAST
            if at != _LAST:
                pack(words, _BASE + (at << 4), began, STEP_IN | owner, now(), STEP_OUT | owner)
                words[W_POSITION] = position + 2
            else:
                ring.write(began, STEP_IN | owner)
                ring.write(now(), STEP_OUT | owner)
            began = 0
        else:
            ring.write(now(), STEP_OUT | (known(id(optimizer)) or 0))
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
    if original is None or getattr(original, "_eroica", None):
        return
    now, pack = time.monotonic_ns, _pack
    is_shadowed = False

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        if is_shadowed and type(self).__next__ is not __next__:
            return original(self)  # a subclass called super().__next__
        try:
            owner = self._eroica
        except AttributeError:
            owner = _own(owners, self)
        began = now()
        try:
            return original(self)
        finally:
            words = ring.words
            position = words[W_POSITION]
            at = position & _LAST
            if at != _LAST:
                pack(words, _BASE + (at << 4), began, NEXT_IN | owner, now(), NEXT_OUT | owner)
                words[W_POSITION] = position + 2
            else:
                ring.write(began, NEXT_IN | owner)
                ring.write(now(), NEXT_OUT | owner)
            words[W_NUM_LOADER] = count = words[W_NUM_LOADER] + 1
            if count >= words[W_BORDER_LOADER]:
                ring.at_border(W_BORDER_LOADER, count)

    def shadow() -> None:
        nonlocal is_shadowed
        is_shadowed = True

    __next__.__dict__["_eroica"] = shadow
    cls.__next__ = __next__
    _shadow_bases(cls)


def _shadow_bases(cls: type[Any]) -> None:
    """Tell the wrapped classes above that an object's ``__next__`` may not be theirs."""
    for base in cls.__mro__[1:]:
        mark = getattr(base.__dict__.get("__next__"), "_eroica", None)
        if mark is not None:
            mark()


def _own(owners: Owners, loader: Any) -> int:
    """Number a loader: by its dataset, for a new iterator each epoch is the same loader."""
    number = owners.of(id(getattr(loader, "_dataset", loader)))
    with contextlib.suppress(AttributeError):  # an iterator with slots is numbered each time
        loader._eroica = number
    return number
