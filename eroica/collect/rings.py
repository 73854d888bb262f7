"""Reads the rings that ranks write; works as well when the rank is stopped, stuck or dead."""

import logging
import mmap
import os
from pathlib import Path
from typing import NamedTuple

from eroica.collect.hook import layout

logger = logging.getLogger(__name__)


class Event(NamedTuple):
    """One event; a tuple, for hundreds a second are made of a busy host's ranks."""

    time_ns: int
    """CLOCK_MONOTONIC."""
    kind: int
    owner: int


class RingReader:
    """One rank's ring. Header words are properties; ``read_new`` gives events not read before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as stream:
            self.inode = os.fstat(stream.fileno()).st_ino
            self._map = mmap.mmap(stream.fileno(), layout.NUM_BYTES)
        self.words = memoryview(self._map).cast("Q")
        if self.words[layout.W_MAGIC] != layout.MAGIC:
            raise ValueError(f"{path} is not a ring of this version")
        self._next = 0
        self.num_lost = 0

    @property
    def pid(self) -> int:
        return self.words[layout.W_PID]

    @property
    def rank(self) -> int:
        return self.words[layout.W_RANK]

    @property
    def world_size(self) -> int:
        return self.words[layout.W_WORLD_SIZE]

    @property
    def local_rank(self) -> int:
        return self.words[layout.W_LOCAL_RANK]

    @property
    def thread(self) -> int | None:
        """OS thread that trains, once it has stepped."""
        return self.words[layout.W_THREAD] or None

    @property
    def fault_signal(self) -> int:
        return self.words[layout.W_SIGNAL]

    @property
    def is_exiting(self) -> bool:
        return bool(self.words[layout.W_EXITING])

    @property
    def position(self) -> int:
        return self.words[layout.W_POSITION]

    @property
    def unix_offset_ns(self) -> int:
        return self.words[layout.W_UNIX_MINUS_MONOTONIC]

    def count(self, word: int) -> int:
        return self.words[word]

    def last_event(self) -> Event | None:
        position = self.position
        return self._event(position - 1) if position else None

    def read_new(self) -> list[Event]:
        """Return the events since the last call; those overwritten meanwhile are counted lost."""
        position = self.position
        # A margin, because the writer goes on while we read.
        oldest = max(0, position - layout.CAPACITY + 64)
        if self._next < oldest:
            self.num_lost += oldest - self._next
            self._next = oldest
        if self._next == position:
            return []
        first, last = self._next % layout.CAPACITY, (position - 1) % layout.CAPACITY
        if first <= last:
            raw = self._raw(first, last)
        else:
            raw = self._raw(first, layout.CAPACITY - 1) + self._raw(0, last)
        self._next = position
        pairs = zip(raw[::2], raw[1::2], strict=True)
        return [Event(time_ns, word & 0xFF, word >> 8) for time_ns, word in pairs]

    def _raw(self, first: int, last: int) -> list[int]:
        """Return the words of the events in these places, both included."""
        base = layout.HEADER_WORDS
        return self.words[base + 2 * first : base + 2 * last + 2].tolist()

    def _event(self, number: int) -> Event:
        at = layout.HEADER_WORDS + 2 * (number % layout.CAPACITY)
        word = self.words[at + 1]
        return Event(time_ns=self.words[at], kind=word & 0xFF, owner=word >> 8)

    def close(self) -> None:
        self.words.release()
        self._map.close()


def find_rings(folder: Path) -> dict[int, Path]:
    """Return rank to ring file."""
    return {int(path.stem[5:]): path for path in sorted(folder.glob("rank-*.ring"))}
