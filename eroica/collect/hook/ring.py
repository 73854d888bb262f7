"""The ring of events: a memory-mapped file that outlives the process and costs no system call."""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

from . import layout
from .layout import (
    CAPACITY,
    HEADER_WORDS,
    MARK,
    NEVER,
    NUM_BYTES,
    W_BORDER_LOADER,
    W_BORDER_MARKED,
    W_BORDER_OPTIMIZER,
    W_NUM_MARKED,
    W_POSITION,
    W_THREAD,
)


def _number(name: str, default: int = 0) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default


class Ring:
    """Writes events; loops.py spells the writing out where it counts.

    One writer at a time by the GIL; a torn write costs one event, no more."""

    def __init__(self, words: memoryview, path: str = "") -> None:
        self.words = words
        self.path = path
        self.on_border: Any = None
        self.is_detached = False
        self.server: Any = None
        self._now = time.monotonic_ns

    @classmethod
    def create(cls, folder: str, rank: int | None = None, world_size: int | None = None) -> Ring:
        """Make this rank's ring. It appears under its name whole, so that no reader sees half."""
        from .folder import mark_pid

        rank = _number("RANK") if rank is None else rank
        path = os.path.join(folder, f"rank-{rank:05d}.ring")
        draft = f"{path}.{os.getpid()}"
        handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            # Blocks are reserved now: a full disk must not become SIGBUS in the training.
            os.posix_fallocate(handle, 0, NUM_BYTES)
            words = memoryview(mmap.mmap(handle, NUM_BYTES)).cast("Q")
        except BaseException:
            os.unlink(draft)
            raise
        finally:
            os.close(handle)
        words[layout.W_PID] = os.getpid()
        words[layout.W_RANK] = rank
        words[layout.W_WORLD_SIZE] = world_size or _number("WORLD_SIZE", 1)
        words[layout.W_LOCAL_RANK] = _number("LOCAL_RANK")
        words[layout.W_LOCAL_WORLD_SIZE] = _number("LOCAL_WORLD_SIZE", 1)
        words[layout.W_UNIX_MINUS_MONOTONIC] = time.time_ns() - time.monotonic_ns()
        words[layout.W_RESTART] = _number("TORCHELASTIC_RESTART_COUNT")
        words[layout.W_START] = time.monotonic_ns()
        for word in (W_BORDER_OPTIMIZER, W_BORDER_LOADER, W_BORDER_MARKED):
            words[word] = NEVER
        words[layout.W_MAGIC] = layout.MAGIC
        mark_pid(folder)
        os.rename(draft, path)
        return cls(words, path)

    def record(self, kind: int) -> None:
        """Write one event; ``kind`` carries the owner in its higher bits."""
        self.write(self._now(), kind)

    def write(self, time_ns: int, kind: int) -> None:
        words = self.words
        position = words[W_POSITION]
        at = HEADER_WORDS + 2 * (position & (CAPACITY - 1))
        words[at] = time_ns
        words[at + 1] = kind
        words[W_POSITION] = position + 1

    def mark_step(self) -> None:
        self.record(MARK)
        words = self.words
        count = words[W_NUM_MARKED] + 1
        words[W_NUM_MARKED] = count
        if count >= words[W_BORDER_MARKED]:
            self.at_border(W_BORDER_MARKED, count)

    def note_thread(self) -> None:
        """Say which OS thread trains; called at the first event."""
        import _thread

        self.words[W_THREAD] = _thread.get_native_id()

    def at_border(self, word: int, count: int) -> None:
        self.words[word] = NEVER
        if self.on_border is not None and not self.is_detached:
            self.on_border(word, count)

    def detach(self) -> None:
        """Point writes at private memory: in a forked child the file is its parent's."""
        self.is_detached = True
        self.words = memoryview(bytearray(NUM_BYTES)).cast("Q")
        for word in (W_BORDER_OPTIMIZER, W_BORDER_LOADER, W_BORDER_MARKED):
            self.words[word] = NEVER
