"""Growing event columns and string tables: what the compiled scanner writes into.

Columns grow in place (``realloc`` moves pages, not bytes), so that a trace needs its columns once
and not twice. 56 bytes an event while reading.
"""

import msgspec
import numpy as np

from eroica.read import scan
from eroica.read.collective_notes import CollectiveNote, note_of
from eroica.read.json_strings import decode_string
from eroica.read.scan import Bytes, Columns, Strings

_FIRST_CAPACITY = 1 << 14
_FIRST_SLOTS = 1 << 12
_LIST_ROWS = 1 << 12


class Marked(msgspec.Struct, frozen=True):
    """An event that is in no column and whose text the reader needs."""

    mark: int
    text: bytes


class EventColumns:
    """Collects events buffer by buffer. ``names`` and the like are complete after each ``scan``."""

    def __init__(self) -> None:
        self.columns = Columns(
            start_ns_E=np.empty(_FIRST_CAPACITY, np.int64),
            duration_ns_E=np.empty(_FIRST_CAPACITY, np.int64),
            name_id_E=np.empty(_FIRST_CAPACITY, np.int32),
            category_id_E=np.empty(_FIRST_CAPACITY, np.int32),
            track_id_E=np.empty(_FIRST_CAPACITY, np.int32),
            python_id_E=np.empty(_FIRST_CAPACITY, np.int64),
            python_parent_E=np.empty(_FIRST_CAPACITY, np.int64),
            correlation_E=np.empty(_FIRST_CAPACITY, np.int64),
        )
        self.strings = _empty_strings(_FIRST_SLOTS)
        self.counters = np.zeros(scan.NUM_COUNTERS, np.int64)
        self.defects = np.zeros((scan.NUM_DEFECTS, 2), np.int64)
        self.scratch = scan.make_scratch()
        self.names: list[str] = []
        self.categories: list[str] = []
        self.tracks: list[tuple[str, str]] = []
        self.marked: list[Marked] = []
        self.notes: dict[int, CollectiveNote] = {}
        """What events tell of collectives, by index into the columns."""
        self.groups: dict[str, tuple[int, ...]] = {}
        """Process groups those notes name, with their global ranks."""
        self.num_bad_strings = 0
        self.first_bad_string = 0

    @property
    def num_events(self) -> int:
        return int(self.counters[scan.NUM_EVENTS])

    def begin_array(self) -> None:
        """Tell that the next byte scanned is the first after an opening bracket."""
        self.counters[scan.NUM_COMMAS] = -1

    def scan(self, buffer: Bytes, start: int, end: int, offset: int) -> tuple[int, int]:
        """Scan on until the buffer ends, the array ends or an event is damaged.

        Returns (NEED_MORE, END_OF_ARRAY or DAMAGED, position).
        """
        while True:
            status, start = scan.scan_events(
                buffer,
                start,
                end,
                offset,
                self.columns,
                self.strings,
                self.defects,
                self.counters,
                self.scratch,
            )
            self._take_over(buffer, offset)
            if status == scan.COLUMNS_FULL:
                self._resize(len(self.columns.start_ns_E) * 5 // 4)
            elif status == scan.TABLE_FULL:
                self._grow_table()
            elif status != scan.DRAIN:
                return status, start

    def finish(self) -> Columns:
        """Cut the columns to their length and return them; nothing can be scanned afterwards."""
        self._resize(self.num_events)
        return self.columns

    def _resize(self, capacity: int) -> None:
        for column in self.columns:
            column.resize(capacity, refcheck=False)

    def _grow_table(self) -> None:
        grown = _empty_strings(len(self.strings.id_H) * 4)
        scan.rehash(self.strings, grown)
        self.strings = grown

    def _take_over(self, buffer: Bytes, offset: int) -> None:
        """Decode the strings seen for the first time and copy out the marked events."""
        for kind, a0, a1, b0, b1 in self.strings.fresh_N[: self.counters[scan.NUM_FRESH]].tolist():
            text = self._decode(buffer[a0:a1].tobytes(), offset + a0)
            if kind == scan.NAME:
                self.names.append(text)
            elif kind == scan.CATEGORY:
                self.categories.append(text)
            else:
                self.tracks.append((text, self._decode(buffer[b0:b1].tobytes(), offset + b0)))
        marked = self.strings.marked_N[: self.counters[scan.NUM_MARKED]].tolist()
        for mark, start, end, index in marked:
            raw = buffer[start:end].tobytes()
            if mark != scan.MARK_COLLECTIVE:
                self.marked.append(Marked(mark, raw))
            elif note := note_of(raw, self.groups):
                self.notes[index] = note
        self.counters[scan.NUM_FRESH] = self.counters[scan.NUM_MARKED] = 0

    def _decode(self, raw: bytes, position: int) -> str:
        text, is_clean = decode_string(raw)
        if not is_clean:
            if not self.num_bad_strings:
                self.first_bad_string = position
            self.num_bad_strings += 1
        return text


def _empty_strings(num_slots: int) -> Strings:
    return Strings(
        hash_H=np.zeros(num_slots, np.uint64),
        id_H=np.full(num_slots, -1, np.int32),
        fresh_N=np.empty((_LIST_ROWS, 5), np.int64),
        marked_N=np.empty((_LIST_ROWS, 4), np.int64),
    )
