"""The document around the events: what comes before and after ``traceEvents``, and broken spots.

Reads a stream once through a buffer that holds two megabytes, or one event where that is larger.
Metadata values are decoded one by one, in any order; events go to ``EventColumns``. A damaged
event is read by its known fields where they can be found, else left out; reading goes on at the
next event. What was repaired or lost becomes a warning with the byte it began at.
"""

import re
from typing import Any

import numpy as np

from eroica.errors import InputError
from eroica.read import scan
from eroica.read.json_strings import decode_string, load_value
from eroica.read.kineto_columns import EventColumns
from eroica.read.kineto_repair import last_event, next_event, repair_event, salvage_metadata
from eroica.read.opening import ByteStream
from eroica.records import Warning

BLOCK_BYTES = 1 << 20
LARGEST_ELEMENT = 1 << 26
"""An event or a value over 64 MB is taken for a string that was never closed."""
LARGEST_REPAIRED = 1 << 20
_KEPT_VALUE = 1 << 20
"""Metadata beyond this (logs some versions embed) is dropped, save for distributedInfo."""
_NO_SPACE, _NO_SPACE_OR_COMMA = re.compile(rb"[^ \t\r\n]"), re.compile(rb"[^ \t\r\n,]")
_BOM = b"\xef\xbb\xbf"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


class TraceDocument:
    """One pass over a trace. ``read`` fills ``events``, ``metadata`` and ``warnings``."""

    def __init__(self, stream: ByteStream, *, block_bytes: int = BLOCK_BYTES) -> None:
        self.stream = stream
        self.events = EventColumns()
        self.metadata: dict[str, Any] = {}
        self.warnings: list[Warning] = []
        self.num_repaired = self.first_repaired = 0
        self.num_lost = self.first_lost = 0
        self.has_events = False
        self.is_list = False
        self._block = block_bytes
        self._buffer = bytearray(2 * block_bytes)
        self._bytes = np.frombuffer(self._buffer, np.uint8)
        self._at = 0
        """Next byte to look at, in the buffer."""
        self._end = 0
        self._offset = 0
        """Position of the buffer's first byte in the uncompressed file."""

    def read(self) -> None:
        """Read the whole stream; InputError if it does not even begin like a trace."""
        self._fill()
        if self._buffer[:3] == _BOM:
            self._at = 3
        opening = self._next_byte()
        if opening == b"[":
            self._at += 1
            self.is_list = True
            complete = self._read_events()
        elif opening == b"{":
            self._at += 1
            complete = self._read_members()
        else:
            raise InputError(
                f"{self.stream.path} is not a trace",
                f"expected JSON, found {bytes(self._buffer[self._at : self._at + 20])!r}"
                if opening
                else f"it is empty{f', {self.stream.defect}' if self.stream.defect else ''}",
                next_step="export the trace again; docs/formats.md lists what is read",
            )
        self._say_what_is_wrong(complete)

    # --- the buffer -------------------------------------------------------------------------

    def _fill(self) -> bool:
        """Move what is unused to the front and append one read; False at the end of the file."""
        unused = self._end - self._at
        if len(self._buffer) - unused < self._block:
            larger = bytearray(2 * len(self._buffer))
            larger[:unused] = self._buffer[self._at : self._end]
            self._buffer = larger
            self._bytes = np.frombuffer(larger, np.uint8)
            self._block = max(self._block, len(larger) // 4)
        elif self._at:
            self._buffer[:unused] = self._buffer[self._at : self._end]
        self._offset += self._at
        self._at, self._end = 0, unused
        with memoryview(self._buffer) as view:
            count = self.stream.readinto(view[unused : unused + self._block])
        self._end += count
        return count > 0

    def _next_byte(self, wanted: "re.Pattern[bytes]" = _NO_SPACE) -> bytes:
        """Step to the next byte that is wanted and return it; empty at the end of the file."""
        while True:
            if found := wanted.search(self._buffer, self._at, self._end):
                self._at = found.start()
                return bytes(found[0])
            self._at = self._end
            if not self._fill():
                return b""

    def _value_end(self) -> int:
        """Return where the value at hand ends; 0 if it is broken, too large or cut off."""
        while True:
            end = int(scan.end_of_value(self._bytes, self._at, self._end))
            if end > self._at:
                return end
            is_too_large = self._end - self._at > LARGEST_ELEMENT
            if end != -1 or is_too_large or not self._fill():
                return 0

    # --- the members of the outer object ----------------------------------------------------

    def _read_members(self) -> bool:
        """Read key by key; return whether the object was closed."""
        while True:
            byte = self._next_byte(_NO_SPACE_OR_COMMA)
            if byte == b"}":
                self._at += 1
                return True
            if not byte:
                return False
            key = self._read_key() if byte == b'"' else None
            if key is not None and self._read_member(key):
                continue
            if not self._next_byte():
                return False
            self._warn("metadata is damaged from here on", self._at)
            if not self._skip_to_events():
                return True
            if not self._read_events():
                return False

    def _read_key(self) -> str | None:
        """Read a key and its colon, up to the first byte of the value; None if there is none."""
        end = self._value_end()
        if not end:
            return None
        key = decode_string(bytes(self._buffer[self._at : end]))[0]
        self._at = end
        if self._next_byte() != b":":
            return None
        self._at += 1
        return key if self._next_byte() else None

    def _read_member(self, key: str) -> bool:
        """Read a value, the events being one; return whether it could be read to its end."""
        if key == "traceEvents" and self._buffer[self._at] == 91 and not self.has_events:
            self._at += 1
            return self._read_events()
        end = self._value_end()
        if not end:
            return False
        raw = bytes(self._buffer[self._at : end])
        if len(raw) <= _KEPT_VALUE or key == "distributedInfo":
            try:
                self.metadata[key] = load_value(raw.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                self.metadata.update(salvage_metadata(raw))
                self._warn(f"the value of {key!r} is not JSON and was left out", self._at)
        self._at = end
        return True

    def _skip_to_events(self) -> bool:
        """After damage in the metadata: go on behind the bracket of ``traceEvents``."""
        while True:
            found = None if self.has_events else _EVENTS.search(self._buffer, self._at, self._end)
            stop = found.start() if found else self._end
            for name, value in salvage_metadata(bytes(self._buffer[self._at : stop])).items():
                self.metadata.setdefault(name, value)
            if found:
                self._at = found.end()
                return True
            self._at = max(self._at, self._end - 64)  # the key may straddle two reads
            if not self._fill():
                self._at = self._end
                return False

    # --- the events -------------------------------------------------------------------------

    def _read_events(self) -> bool:
        """Read the array whose bracket was just passed; return whether it was closed."""
        self.has_events = True
        self.events.begin_array()
        while True:
            status, self._at = self.events.scan(self._bytes, self._at, self._end, self._offset)
            if status == scan.END_OF_ARRAY:
                self._at += 1
                return True
            if status == scan.NEED_MORE and self._end - self._at <= LARGEST_ELEMENT:
                if self._fill():
                    continue
                self._at = self._end  # what is left is less than an event
                return False
            self._pass_damage()

    def _pass_damage(self) -> None:
        """Repair or drop the event at hand and go on behind it, at the file's end if none follows.

        What cannot be repaired and has no event behind it is passed over in large steps.
        """
        position = self._offset + self._at
        while (after := next_event(self._buffer, self._at, self._end)) is None:
            is_too_large = self._end - self._at > LARGEST_ELEMENT
            if is_too_large or not self._fill():
                after = max(self._end - 64, self._at + 1) if is_too_large else self._end
                if not is_too_large:
                    after = last_event(self._buffer, self._at, self._end) or after
                break
        raw = bytes(self._buffer[self._at : after])
        self._at = after
        whole = repair_event(raw) if len(raw) <= LARGEST_REPAIRED else None
        if whole is None:
            self._lose(position)
        else:
            if not self.num_repaired:
                self.first_repaired = position
            self.num_repaired += 1
            self.events.begin_array()
            self.events.scan(np.frombuffer(whole, np.uint8), 0, len(whole), position)
        self.events.begin_array()

    def _lose(self, position: int) -> None:
        if not self.num_lost:
            self.first_lost = position
        self.num_lost += 1

    # --- what was wrong ---------------------------------------------------------------------

    def _warn(self, what: str, at: int | None = None) -> None:
        where = "" if at is None else f"byte {self._offset + at}: "
        self.warnings.append(Warning(file=self.stream.path, what=where + what))

    def _say_what_is_wrong(self, complete: bool) -> None:
        if complete and self._next_byte():
            self._warn("a second document follows the trace and was left out", self._at)
        elif self.stream.defect:
            self._warn(f"{self.stream.defect}: read up to here", self._end)
        elif not complete:
            self._warn("the file ends here, within the trace: read up to the last whole event",
                       self._end)  # fmt: skip
        for position, what in self._defects():
            self.warnings.append(Warning(file=self.stream.path, what=f"byte {position}: {what}"))

    def _defects(self) -> list[tuple[int, str]]:
        """Return (first position, sentence) of every kind of defect among the events."""
        found = []
        for kind, sentence in _SENTENCES.items():
            count, first = self.events.defects[kind].tolist()
            if count:
                found.append((first, f"{count} x {sentence}"))
        if self.events.num_bad_strings:
            found.append(
                (
                    self.events.first_bad_string,
                    f"{self.events.num_bad_strings} x name with invalid escapes, control or "
                    "non-UTF-8 bytes, read with those replaced",
                )
            )
        if self.num_repaired:
            found.append(
                (
                    self.first_repaired,
                    f"{self.num_repaired} x damaged event (unescaped quotes?), "
                    "read by its known fields",
                )
            )
        if self.num_lost:
            found.append((self.first_lost, f"{self.num_lost} x damaged event, left out"))
        return sorted(found)


_SENTENCES = {
    scan.STRAY_COMMA: "comma too many, ignored",
    scan.MISSING_COMMA: "comma missing between events, ignored",
    scan.BARE_WORD: "value that is not JSON (N/A, NaN, inf ...), ignored",
    scan.BAD_TIME: "event without a readable start time, left out",
    scan.BAD_DURATION: "event whose duration is not a number, left out",
    scan.UNFINISHED: "event with a negative or endless duration, left out",
    scan.NOT_AN_EVENT: "element of traceEvents that is not an event, ignored",
    scan.BEGIN_OR_END: "begin or end event (ph B, E), which torch does not write, ignored",
}
