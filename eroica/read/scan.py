"""The inner loop of reading traces: one pass over the bytes of a JSON array of trace events.

A resumable state machine, compiled. ``scan_events`` starts at an event, writes what it finds of
complete events (ph ``X``) straight into the columns and stops with the position of the first byte
it has not used: at the end of the buffer (the caller brings more bytes and calls again), at the
end of the array, when a table is full, or at a defect. It keeps no state of its own, so any
split of the bytes into buffers gives the same columns.

Grammar. Within an event the structure is checked (key, colon, value, comma or brace), because that
is how unescaped quotes show at once; a value nobody asks for is skipped by counting brackets.
Tolerated and counted as defects: commas too many, bare words for values, numbers that are none.

Strings (name, category, pid + tid) are interned by a 64-bit hash of their raw bytes in one
open-addressing table; new ones are listed in ``fresh`` for the caller to decode.

Shapes: E capacity of the columns, H slots of the table, N rows of a list, B bytes.
One state machine, hence one module of over 300 lines.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.read.compiled import compiled, inlined

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]

# What scan_events stopped at.
NEED_MORE = 0  # the buffer ends within an event
END_OF_ARRAY = 1  # at the closing bracket
COLUMNS_FULL = 2
TABLE_FULL = 3
DRAIN = 4  # fresh strings or marked events must be taken over
DAMAGED = 5  # the event at the position breaks the grammar

# Rows of ``defects``: count and absolute offset of the first.
STRAY_COMMA, MISSING_COMMA, BARE_WORD, BAD_TIME, BAD_DURATION, UNFINISHED = range(6)
NOT_AN_EVENT, BEGIN_OR_END = 6, 7
NUM_DEFECTS = 8

# Rows of ``counters``.
NUM_EVENTS, NUM_FRESH, NUM_MARKED, NUM_STRINGS, NUM_COMMAS = range(5)
NUM_NAMES, NUM_CATEGORIES, NUM_TRACKS = 5, 6, 7
NUM_COUNTERS = 8

# Kinds of strings, in the order of their counters.
NAME, CATEGORY, TRACK = 0, 1, 2

# Why an event is marked: the caller parses it with a JSON parser.
MARK_METADATA = 0  # ph M: names of processes and threads
MARK_SPAN = 1  # the profiler's own span on pid Spans or Traces
MARK_COLLECTIVE = 2  # carries "Collective name", or is named nccl:..., gloo:...

MAX_CATEGORIES = 32_000  # category ids are int16; torch has some thirty

# ``field``: where the values of one event lie, as offsets [start, end), then plain values.
_TS, _DUR, _NAME, _CAT, _PID, _TID = 0, 2, 4, 6, 8, 10
_PHASE, _PYTHON_ID, _PYTHON_PARENT, _CORRELATION, _HAS_COLLECTIVE = 12, 13, 14, 15, 16
_NUM_FIELDS = 17

_OPEN_MORE = -1
_BROKEN = -2
_LARGEST = 9_223_372_036_854_775_807
_UNFINISHED_NS = 1_000_000_000_000_000_000  # 1e15 us: no such duration is real


class Columns(NamedTuple):
    """One row an event. Ids count from 0 in the order strings are first seen."""

    start_ns_E: Int64
    duration_ns_E: Int64
    name_id_E: Int32
    category_id_E: Int32
    track_id_E: Int32
    python_id_E: Int64
    python_parent_E: Int64
    correlation_E: Int64

    def kept(self, is_kept_E: NDArray[np.bool_]) -> "Columns":
        """Return the events that are to stay, as copies."""
        return Columns(*[column[is_kept_E] for column in self])  # type: ignore[arg-type]


class Strings(NamedTuple):
    """The interning table and the two lists that the caller empties."""

    hash_H: UInt64
    id_H: Int32
    """-1 in a free slot."""
    fresh_N: Int64
    """N x 5: kind, start, end of the string (of the pid), start, end of the tid."""
    marked_N: Int64
    """N x 4: mark, start, end of the event, its index or -1."""


def _word(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8).copy()


_K_NAME, _K_ARGS = _word("name"), _word("args")
_K_PYTHON_ID, _K_PYTHON_PARENT = _word("Python id"), _word("Python parent id")
_K_CORRELATION, _K_COLLECTIVE = _word("correlation"), _word("Collective name")
_W_TRUE, _W_FALSE, _W_NULL = _word("true"), _word("false"), _word("null")
_W_SPANS, _W_TRACES = _word('"Spans"'), _word('"Traces"')


def make_scratch() -> tuple[Int64, Int64]:
    """Return the arrays that ``scan_events`` works in: fields and defects of one event."""
    return np.zeros(_NUM_FIELDS, np.int64), np.zeros((NUM_DEFECTS, 2), np.int64)


@compiled
def _equals(b: Bytes, start: int, end: int, word: Bytes) -> bool:
    if end - start != len(word):
        return False
    for k in range(len(word)):  # noqa: SIM110 (numba has no all())
        if b[start + k] != word[k]:
            return False
    return True


@compiled
def _skip_space(b: Bytes, i: int, end: int) -> int:
    while i < end and b[i] <= 32:
        i += 1
    return i


@compiled
def _end_of_string(b: Bytes, i: int, end: int) -> int:
    """Return the index after the closing quote of the string that opens at ``i``.

    A line feed cannot stand in a JSON string and is the surest sign of one that was never closed.
    """
    i += 1
    while i < end:
        c = b[i]
        if c == 34:
            return i + 1
        if c == 10:
            return _BROKEN
        i += 2 if c == 92 else 1
    return _OPEN_MORE


@compiled
def end_of_value(b: Bytes, i: int, end: int) -> int:
    """Return the index after the JSON value at ``i``, -1 if the buffer ends first, -2 if broken."""
    c = b[i]
    if c == 34:
        return _end_of_string(b, i, end)
    if c != 123 and c != 91:
        while i < end:
            c = b[i]
            if c == 44 or c == 125 or c == 93 or c <= 32:
                return i
            if c == 34 or c == 123 or c == 91:
                return _BROKEN
            i += 1
        return _OPEN_MORE
    depth = 0
    while i < end:
        c = b[i]
        if c == 34:
            i = _end_of_string(b, i, end)
            if i < 0:
                return i
            i = _skip_space(b, i, end)
            if i >= end:
                return _OPEN_MORE
            c = b[i]
            if c != 44 and c != 58 and c != 93 and c != 125:
                return _BROKEN
            continue
        if c == 123 or c == 91:
            depth += 1
        elif c == 125 or c == 93:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return _OPEN_MORE


@compiled
def _shift_decimal(value: int, shift: int) -> tuple[int, bool]:
    """Return ``value * 10**shift``, rounded half up, and whether it fits int64."""
    while shift > 0:
        if value > _LARGEST // 10:
            return 0, False
        value *= 10
        shift -= 1
    if shift < -18:
        return 0, True
    if shift < 0:
        divisor = 1
        while shift < 0:
            divisor *= 10
            shift += 1
        rest = value % divisor
        value = value // divisor
        if rest >= divisor - rest:
            value += 1
    return value, True


@compiled
def parse_decimal(b: Bytes, i: int, end: int, shift: int) -> tuple[int, bool]:
    """Read the number in ``b[i:end]``, maybe quoted, as ``number * 10**shift``, exact in int64.

    Returns the value and whether there was a number that fits.
    """
    if i < end and b[i] == 34:
        i += 1
        end -= 1
    is_negative = i < end and b[i] == 45
    if is_negative or (i < end and b[i] == 43):
        i += 1
    value = 0
    num_digits = 0
    after_point = False
    while i < end:
        c = b[i]
        if c == 46 and not after_point:
            after_point = True
        elif 48 <= c <= 57:
            num_digits += 1
            if value < _LARGEST // 10 or (value == _LARGEST // 10 and c <= 55):
                value = value * 10 + int(c - 48)
                if after_point:
                    shift -= 1
            elif not after_point:
                shift += 1  # too many digits: the last ones are lost, the size is not
        else:
            break
        i += 1
    if num_digits == 0:
        return 0, False
    if i < end and (b[i] == 101 or b[i] == 69):
        i += 1
        exponent_sign = 1
        if i < end and (b[i] == 45 or b[i] == 43):
            if b[i] == 45:
                exponent_sign = -1
            i += 1
        exponent = 0
        if i >= end:
            return 0, False
        while i < end and 48 <= b[i] <= 57:
            if exponent < 10_000:
                exponent = exponent * 10 + int(b[i] - 48)
            i += 1
        shift += exponent_sign * exponent
    if i != end:
        return 0, False
    if value == 0:
        return 0, True
    value, fits = _shift_decimal(value, shift)
    return (-value if is_negative else value), fits


@compiled
def _parse_count(b: Bytes, i: int, end: int) -> int:
    """Read an id; -1 for null and for anything that is no int64."""
    value, fits = parse_decimal(b, i, end, 0)
    return value if fits and value >= 0 else -1


@compiled
def _is_plain_scalar(b: Bytes, i: int, end: int) -> bool:
    """Whether a bare value is a number, true, false or null, judged by its first letters."""
    c = b[i]
    if 48 <= c <= 57:
        return True
    if c == 45:
        return i + 1 < end and 48 <= b[i + 1] <= 57
    return (
        _equals(b, i, end, _W_TRUE) or _equals(b, i, end, _W_FALSE) or _equals(b, i, end, _W_NULL)
    )


@compiled
def _count_defect(defects: Int64, kind: int, position: int) -> None:
    if defects[kind, 0] == 0:
        defects[kind, 1] = position
    defects[kind, 0] += 1


@inlined
def _next_member(
    b: Bytes, i: int, end: int, offset: int, defects: Int64
) -> tuple[int, int, int, int]:
    """Step to the next member of an object, ``i`` being after its brace or after a value.

    Returns (start of key, end of key, start of value, end of value); (0, 0, 0, i) with ``i`` after
    the closing brace; (0, 0, 0, status) if broken or if the buffer ends first.
    """
    first = b[i - 1] == 123
    num_commas = 0
    while True:
        i = _skip_space(b, i, end)
        if i >= end:
            return 0, 0, 0, _OPEN_MORE
        c = b[i]
        if c != 44:
            break
        num_commas += 1
        i += 1
    wanted = 0 if first or c == 125 else 1
    if num_commas != wanted:
        if num_commas < wanted:
            return 0, 0, 0, _BROKEN
        _count_defect(defects, STRAY_COMMA, offset + i)
    if c == 125:
        return 0, 0, 0, i + 1
    if c != 34:
        return 0, 0, 0, _BROKEN
    key = i + 1
    i = _end_of_string(b, i, end)
    if i < 0:
        return 0, 0, 0, i
    key_end = i - 1
    i = _skip_space(b, i, end)
    if i >= end:
        return 0, 0, 0, _OPEN_MORE
    if b[i] != 58:
        return 0, 0, 0, _BROKEN
    i = _skip_space(b, i + 1, end)
    if i >= end:
        return 0, 0, 0, _OPEN_MORE
    if b[i] == 123 and _equals(b, key, key_end, _K_ARGS):
        return key, key_end, i, i + 1  # the caller walks through args itself
    value_end = end_of_value(b, i, end)
    if value_end < 0:
        return 0, 0, 0, value_end
    if value_end == i:
        return 0, 0, 0, _BROKEN
    c = b[i]
    if c != 34 and c != 123 and c != 91 and not _is_plain_scalar(b, i, value_end):
        _count_defect(defects, BARE_WORD, offset + i)
    return key, key_end, i, value_end


@inlined
def _read_args(b: Bytes, i: int, end: int, offset: int, field: Int64, defects: Int64) -> int:
    """Walk through ``args`` (``i`` after its brace); return the index after it, or a status."""
    while True:
        key, key_end, value, i = _next_member(b, i, end, offset, defects)
        if key == 0:
            return i
        length = key_end - key
        c = b[key]
        if length == 11 and c == 99:
            if _equals(b, key, key_end, _K_CORRELATION):
                field[_CORRELATION] = _parse_count(b, value, i)
        elif length == 9 and c == 80:
            if _equals(b, key, key_end, _K_PYTHON_ID):
                field[_PYTHON_ID] = _parse_count(b, value, i)
        elif length == 16 and c == 80:
            if _equals(b, key, key_end, _K_PYTHON_PARENT):
                field[_PYTHON_PARENT] = _parse_count(b, value, i)
        elif length == 15 and c == 67 and _equals(b, key, key_end, _K_COLLECTIVE):
            field[_HAS_COLLECTIVE] = 1


@inlined
def _read_event(b: Bytes, i: int, end: int, offset: int, field: Int64, defects: Int64) -> int:
    """Find the fields of the event that opens at ``i``; return the index after it, or a status."""
    for k in range(_PHASE):  #
        field[k] = 0
    for k in range(_PHASE, _NUM_FIELDS):
        field[k] = -1
    i += 1
    while True:
        key, key_end, value, i = _next_member(b, i, end, offset, defects)
        if key == 0:
            return i
        length = key_end - key
        c = b[key]
        slot = -1
        if length == 2:
            if c == 112 and b[key + 1] == 104:  # ph
                field[_PHASE] = b[value + 1] if i == value + 3 and b[value] == 34 else 0
            elif c == 116 and b[key + 1] == 115:  # ts
                slot = _TS
        elif length == 3:
            if c == 100 and b[key + 1] == 117 and b[key + 2] == 114:  # dur
                slot = _DUR
            elif c == 99 and b[key + 1] == 97 and b[key + 2] == 116:  # cat
                slot = _CAT
            elif b[key + 1] == 105 and b[key + 2] == 100:  # pid, tid
                if c == 112:
                    slot = _PID
                elif c == 116:
                    slot = _TID
        elif length == 4:
            if c == 110 and _equals(b, key, key_end, _K_NAME):
                slot = _NAME
            elif i == value + 1 and b[value] == 123:  # args, walked through here
                i = _read_args(b, i, end, offset, field, defects)
                if i < 0:
                    return i
        if slot >= 0:
            field[slot] = value
            field[slot + 1] = i


@compiled
def _hash(b: Bytes, start: int, end: int, seed: int | np.uint64) -> np.uint64:
    """Hash ``b[start:end]``, eight bytes at a time.

    The indexes are unsigned, because numba spends a comparison on the sign of every other one;
    without it the eight bytes are one load.
    """
    h = np.uint64(seed)
    i = np.uint64(start)
    num_words = np.uint64(end - start) >> np.uint64(3)
    last_word = i + (num_words << np.uint64(3))
    while i < last_word:
        word = np.uint64(0)
        for k in range(8):
            word |= np.uint64(b[i + np.uint64(k)]) << np.uint64(8 * k)
        h = (h ^ word) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(29)
        i += np.uint64(8)
    while i < np.uint64(end):
        h = (h ^ np.uint64(b[i])) * np.uint64(0x100000001B3)
        i += np.uint64(1)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    return h ^ (h >> np.uint64(32))


@compiled
def _intern(
    kind: int,
    h: np.uint64,
    first: int,
    second: int,
    field: Int64,
    strings: Strings,
    counters: Int64,
) -> int:
    """Return the id of a string, giving out the next one and listing it as fresh if it is new."""
    mask = np.uint64(len(strings.hash_H) - 1)
    slot = h & mask
    while strings.id_H[slot] >= 0:
        if strings.hash_H[slot] == h:
            return int(strings.id_H[slot])
        slot = (slot + np.uint64(1)) & mask
    new_id = int(counters[NUM_NAMES + kind])
    if kind == CATEGORY and new_id >= MAX_CATEGORIES:
        return 0
    counters[NUM_NAMES + kind] += 1
    counters[NUM_STRINGS] += 1
    strings.hash_H[slot] = h
    strings.id_H[slot] = new_id
    row = counters[NUM_FRESH]
    counters[NUM_FRESH] = row + 1
    strings.fresh_N[row, 0] = kind
    strings.fresh_N[row, 1], strings.fresh_N[row, 2] = field[first], field[first + 1]
    strings.fresh_N[row, 3], strings.fresh_N[row, 4] = field[second], field[second + 1]
    return new_id


@compiled
def rehash(old: Strings, new: Strings) -> None:
    """Put every string of one table into a larger, empty one."""
    mask = np.uint64(len(new.hash_H) - 1)
    for k in range(len(old.id_H)):
        if old.id_H[k] >= 0:
            slot = old.hash_H[k] & mask
            while new.id_H[slot] >= 0:
                slot = (slot + np.uint64(1)) & mask
            new.hash_H[slot] = old.hash_H[k]
            new.id_H[slot] = old.id_H[k]


@compiled
def _is_backend_annotation(b: Bytes, start: int, end: int) -> bool:
    """Whether a name looks like ``nccl:all_reduce``: three to six letters, a colon, a letter."""
    if b[start] != 34:
        return False
    i = start + 1
    while i < end and i < start + 8 and 97 <= b[i] <= 122:
        i += 1
    if i < start + 4 or i + 1 >= end or b[i] != 58:
        return False
    return bool(b[i + 1] == 95 or 97 <= b[i + 1] <= 122)


@compiled
def _mark_of(b: Bytes, field: Int64) -> int:
    """Return why the caller must look at this event itself, -1 if it need not."""
    phase = field[_PHASE]
    if phase == 77:
        return MARK_METADATA
    pid, pid_end = field[_PID], field[_PID + 1]
    has_string_pid = pid_end > pid and b[pid] == 34
    if phase == 88:
        if has_string_pid and (
            _equals(b, pid, pid_end, _W_SPANS) or _equals(b, pid, pid_end, _W_TRACES)
        ):
            return MARK_SPAN
        if field[_HAS_COLLECTIVE] > 0 or (
            field[_NAME + 1] > 0 and _is_backend_annotation(b, field[_NAME], field[_NAME + 1])
        ):
            return MARK_COLLECTIVE
    return -1


@compiled
def _times(b: Bytes, position: int, field: Int64, defects: Int64) -> tuple[int, int, bool]:
    """Return start and duration in ns, and whether the event can be kept."""
    start, is_whole = parse_decimal(b, field[_TS], field[_TS + 1], 3)
    if not is_whole:
        _count_defect(defects, BAD_TIME, position)
        return 0, 0, False
    if field[_DUR + 1] == 0:
        return start, 0, True  # the Chrome format lets a duration be left out
    duration, is_whole = parse_decimal(b, field[_DUR], field[_DUR + 1], 3)
    if not is_whole and not _is_plain_scalar(b, field[_DUR], field[_DUR + 1]):
        _count_defect(defects, BAD_DURATION, position)
        return 0, 0, False
    if not is_whole or duration < 0 or duration >= _UNFINISHED_NS:
        _count_defect(defects, UNFINISHED, position)
        return 0, 0, False
    if start > _LARGEST - duration:
        _count_defect(defects, BAD_TIME, position)
        return 0, 0, False
    return start, duration, True


@compiled
def _store(
    b: Bytes,
    start: int,
    duration: int,
    field: Int64,
    columns: Columns,
    strings: Strings,
    counters: Int64,
) -> int:
    """Append one complete event to the columns; return its index."""
    index = int(counters[NUM_EVENTS])
    counters[NUM_EVENTS] = index + 1
    columns.start_ns_E[index] = start
    columns.duration_ns_E[index] = duration
    columns.python_id_E[index] = field[_PYTHON_ID]
    columns.python_parent_E[index] = field[_PYTHON_PARENT]
    columns.correlation_E[index] = field[_CORRELATION]
    h = _hash(b, field[_NAME], field[_NAME + 1], 0x2545F4914F6CDD1D)
    columns.name_id_E[index] = _intern(NAME, h, _NAME, _NAME, field, strings, counters)
    h = _hash(b, field[_CAT], field[_CAT + 1], 0x1B873593CC9E2D51)
    columns.category_id_E[index] = _intern(CATEGORY, h, _CAT, _CAT, field, strings, counters)
    h = _hash(b, field[_PID], field[_PID + 1], 0x27D4EB2F165667C5)
    h = _hash(b, field[_TID], field[_TID + 1], h)
    columns.track_id_E[index] = _intern(TRACK, h, _PID, _TID, field, strings, counters)
    return index


@inlined
def _keep(
    b: Bytes,
    i: int,
    after: int,
    offset: int,
    field: Int64,
    columns: Columns,
    strings: Strings,
    defects: Int64,
    counters: Int64,
) -> None:
    """Store the event read into ``field`` if it is complete, and mark it if the caller needs it."""
    phase = field[_PHASE]
    mark = _mark_of(b, field)
    index = -1
    if phase == 88 and mark != MARK_SPAN:
        start, duration, is_whole = _times(b, offset + i, field, defects)
        if is_whole:
            index = _store(b, start, duration, field, columns, strings, counters)
    elif phase == 66 or phase == 69:
        _count_defect(defects, BEGIN_OR_END, offset + i)
    if mark >= 0 and (index >= 0 or mark != MARK_COLLECTIVE):
        row = counters[NUM_MARKED]
        strings.marked_N[row, 0], strings.marked_N[row, 1] = mark, i
        strings.marked_N[row, 2], strings.marked_N[row, 3] = after, index
        counters[NUM_MARKED] = row + 1


@inlined
def _between_events(
    b: Bytes, i: int, end: int, offset: int, defects: Int64, counters: Int64
) -> int:
    """Step over space and commas to the next element or the closing bracket."""
    while i < end:
        c = b[i]
        if c == 44:
            counters[NUM_COMMAS] = 2 if counters[NUM_COMMAS] < 0 else counters[NUM_COMMAS] + 1
        elif c > 32:
            break
        i += 1
    if i < end:
        num_commas = counters[NUM_COMMAS]
        if num_commas > 1 or (num_commas == 1 and b[i] == 93):
            _count_defect(defects, STRAY_COMMA, offset + i)
        elif num_commas == 0 and b[i] != 93:
            _count_defect(defects, MISSING_COMMA, offset + i)
        counters[NUM_COMMAS] = 1  # said once, also if the same place is scanned again
    return i


@compiled
def _reason_to_stop(columns: Columns, strings: Strings, counters: Int64) -> int:
    """Return which column or list has no room for one more event; -1 if all have."""
    if counters[NUM_EVENTS] >= len(columns.start_ns_E):
        return COLUMNS_FULL
    if counters[NUM_STRINGS] * 2 + 8 >= len(strings.id_H):
        return TABLE_FULL
    if counters[NUM_FRESH] + 3 > len(strings.fresh_N):
        return DRAIN
    if counters[NUM_MARKED] >= len(strings.marked_N):
        return DRAIN
    return -1


@compiled
def scan_events(
    b: Bytes,
    i: int,
    end: int,
    offset: int,
    columns: Columns,
    strings: Strings,
    defects: Int64,
    counters: Int64,
    scratch: tuple[Int64, Int64],
) -> tuple[int, int]:
    """Scan events from ``b[i]`` to ``b[end]``; return (what it stopped at, position).

    ``offset`` is the absolute position of ``b[0]`` in the file. ``counters`` says how far columns
    and lists are filled and is moved on; set NUM_COMMAS to -1 before the first event of an array.
    """
    field, found = scratch
    while True:
        i = _between_events(b, i, end, offset, defects, counters)
        if i >= end:
            return NEED_MORE, i
        if b[i] == 93:
            return END_OF_ARRAY, i
        reason = _reason_to_stop(columns, strings, counters)
        if reason >= 0:
            return reason, i
        is_event = b[i] == 123
        if is_event:
            for kind in range(NUM_DEFECTS):
                found[kind, 0] = 0  # of a half-read event, which is read again
            after = _read_event(b, i, end, offset, field, found)
        else:
            after = end_of_value(b, i, end)
        if after == _OPEN_MORE:
            return NEED_MORE, i
        if after == _BROKEN or after == i:  # noqa: SIM109
            return DAMAGED, i
        if is_event:
            _keep(b, i, after, offset, field, columns, strings, defects, counters)
            for kind in range(NUM_DEFECTS):
                if found[kind, 0] > 0:
                    if defects[kind, 0] == 0:
                        defects[kind, 1] = found[kind, 1]
                    defects[kind, 0] += found[kind, 0]
        else:
            _count_defect(defects, NOT_AN_EVENT, offset + i)
        counters[NUM_COMMAS] = 0
        i = after
