"""A reader of pickles that can only build plain containers, for Flight Recorder dumps.

It is no subclass of ``pickle.Unpickler`` but a small machine of its own: opcodes that import or
call anything do not exist in it, so there is nothing to hold back. What torch writes
(torch/csrc/jit/serialization/pickler.cpp, protocol 2) is a part of what it knows. A pickle that
ends early gives what was whole; sizes are bounded by the data that is there, never by a number
in it. One machine, hence one module.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eroica.errors import InputError

_MAX_MEMO = 50_000_000
_MAX_DEPTH = 200  # of containers: a dump has 6
_KEY_TYPES = frozenset({str, int, bool, float, type(None)})

_REFUSED = {
    0x63: "GLOBAL",
    0x93: "STACK_GLOBAL",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x50: "PERSID",
    0x51: "BINPERSID",
}


# Bytes of the opcodes that ``run`` knows, arguments included; the others look for themselves.
_NUM_BYTES = bytearray(b"\1" * 256)
for _op, _size in {0x68: 2, 0x71: 2, 0x58: 5, 0x4B: 2, 0x4D: 3, 0x6A: 5, 0x72: 5}.items():
    _NUM_BYTES[_op] = _size


class RefusedPickle(InputError):
    """The pickle wants to import or call something."""


class _Truncated(Exception):
    """The data ended inside or between opcodes."""


@dataclass(frozen=True)
class Unpickled:
    """What a pickle held, and where it stopped short."""

    value: Any
    num_bytes: int
    """Bytes up to and with the end of the pickle."""
    defect: str = ""
    """Empty when whole, else what is wrong at ``num_bytes``."""


def load_plain(data: bytes, name: str = "the pickle") -> Unpickled:
    """Build the dicts, lists, tuples, strings and numbers of a pickle, and nothing else.

    A pickle that imports, calls or persists raises RefusedPickle, naming the opcode and what it
    asked for; nothing of it is run. One that ends early or is damaged gives its whole part.
    """
    machine = _Machine(data, name)
    try:
        value = machine.run()
        return Unpickled(value, machine.offset)
    except _Truncated:
        defect = f"the pickle ends early at byte {machine.offset} of {len(data)}"
    except (ValueError, IndexError, KeyError, TypeError, struct.error, OverflowError) as error:
        defect = f"damaged at byte {machine.offset}: {_reason(error)}"
    return Unpickled(machine.salvage(), machine.offset, defect)


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"refers to memo entry {error.args[0]}, which does not exist"
    return str(error) or type(error).__name__


class _Machine:
    """The stack machine. ``offset`` is where the opcode being read begins."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data, self.name = data, name
        self.offset = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.marks: list[int] = []

    def run(self) -> object:
        """Execute up to STOP and return what is on top. What is frequent stands here, for speed."""
        data, stack, memo, marks = self.data, self.stack, self.memo, self.marks
        end, at = len(data), 0
        push = stack.append
        while True:
            self.offset = at
            if at >= end or at + _NUM_BYTES[data[at]] > end:
                raise _Truncated
            op = data[at]
            if op == 0x68:  # BINGET
                push(memo[data[at + 1]])
                at += 2
            elif op == 0x71:  # BINPUT
                memo[data[at + 1]] = stack[-1]
                at += 2
            elif op == 0x28:  # MARK
                marks.append(len(stack))
                if len(marks) > _MAX_DEPTH:
                    raise ValueError(f"more than {_MAX_DEPTH} containers inside each other")
                at += 1
            elif op == 0x58:  # BINUNICODE
                start = at + 5
                at = start + int.from_bytes(data[at + 1 : start], "little")
                if at > end:
                    raise _Truncated
                push(str(data[start:at], "utf-8", "replace"))
            elif op == 0x5D:  # EMPTY_LIST
                push([])
                at += 1
            elif op == 0x4B:  # BININT1
                push(data[at + 1])
                at += 2
            elif op == 0x4D:  # BININT2
                push(data[at + 1] | data[at + 2] << 8)
                at += 3
            elif op == 0x7D:  # EMPTY_DICT
                push({})
                at += 1
            elif op == 0x4E:  # NONE
                push(None)
                at += 1
            elif op == 0x65:  # APPENDS
                self._append(self._pop_mark())
                at += 1
            elif op == 0x75:  # SETITEMS
                self._set(self._pop_mark())
                at += 1
            elif op == 0x6A:  # LONG_BINGET
                push(memo[int.from_bytes(data[at + 1 : at + 5], "little")])
                at += 5
            elif op == 0x72:  # LONG_BINPUT
                self._put(int.from_bytes(data[at + 1 : at + 5], "little"))
                at += 5
            elif op == 0x2E:  # STOP
                self.offset = at + 1
                return stack[-1]
            else:
                at = self._others(op, at)

    def salvage(self) -> object:
        """Close what is open: items above a mark go into the container below it."""
        while self.marks:
            items = self._pop_mark()
            below = self.stack[-1] if self.stack else None
            if isinstance(below, dict):
                pairs = zip(items[::2], items[1::2], strict=False)
                below.update((key, value) for key, value in pairs if type(key) in _KEY_TYPES)
            elif isinstance(below, list):
                below.extend(items)
        return self.stack[0] if self.stack else None

    def _others(self, op: int, at: int) -> int:
        """Execute a rarer opcode at ``at``; return where the next one begins."""
        if op in _REFUSED:
            raise self._refusal(op)
        if op in _FIXED:
            layout, size = _FIXED[op]
            self.stack.append(self._unpack(layout, at + 1)[0])
            return at + 1 + size
        if op in _CONSTANTS:
            self.stack.append(_CONSTANTS[op]())
            return at + 1
        if op in _SIZED:
            return self._sized(op, at)
        if op in _TUPLES:
            self._tuple(_TUPLES[op])
            return at + 1
        if op == 0x80:  # PROTO
            if self._byte(at + 1) > 5:
                raise ValueError(f"pickle protocol {self._byte(at + 1)} is not known")
            return at + 2
        if op == 0x95:  # FRAME: its length is a hint only
            self._unpack("<Q", at + 1)
            return at + 9
        return self._shaping(op, at)

    def _shaping(self, op: int, at: int) -> int:
        """Opcodes without arguments that reshape the stack, and protocol 0's text ones."""
        stack = self.stack
        if op == 0x94:  # MEMOIZE
            self._put(len(self.memo))
        elif op == 0x61:  # APPEND
            self._append([stack.pop()])
        elif op == 0x73:  # SETITEM
            value = stack.pop()
            self._set([stack.pop(), value])
        elif op == 0x74:  # TUPLE
            stack.append(tuple(self._pop_mark()))
        elif op in (0x6C, 0x64):  # LIST, DICT
            items = self._pop_mark()
            stack.append([] if op == 0x6C else {})
            (self._append if op == 0x6C else self._set)(items)
        elif op == 0x30:  # POP
            stack.pop()
        elif op == 0x31:  # POP_MARK
            self._pop_mark()
        elif op == 0x32:  # DUP
            stack.append(stack[-1])
        else:
            raise ValueError(f"opcode 0x{op:02x} is not one that plain data needs")
        return at + 1

    def _sized(self, op: int, at: int) -> int:
        """Strings, bytes and long integers: a length, then that much data."""
        layout, kind = _SIZED[op]
        width = struct.calcsize(layout)
        (size,) = self._unpack(layout, at + 1)
        start = at + 1 + width
        if size < 0 or start + size > len(self.data):
            raise _Truncated
        raw = self.data[start : start + size]
        self.stack.append(kind(raw))
        return int(start + size)

    def _tuple(self, size: int) -> None:
        if len(self.stack) < size or (self.marks and len(self.stack) - size < self.marks[-1]):
            raise ValueError("a tuple of more than the stack holds")
        items = tuple(self.stack[len(self.stack) - size :])
        del self.stack[len(self.stack) - size :]
        self.stack.append(items)

    def _append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise ValueError(f"items appended to a {type(target).__name__}")
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise ValueError(f"items set in a {type(target).__name__}")
        if len(items) % 2:
            raise ValueError("a key without a value")
        keys = items[::2]
        if not _KEY_TYPES.issuperset(map(type, keys)):
            # also keeps hash() away from tuples nested so deep that it would overflow the C stack
            raise ValueError("a key that is neither a string nor a number")
        target.update(zip(keys, items[1::2], strict=True))

    def _pop_mark(self) -> list[Any]:
        if not self.marks:
            raise ValueError("a container is closed that was never opened")
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _put(self, index: int) -> None:
        if index > _MAX_MEMO:
            raise ValueError(f"memo entry {index} is out of all proportion")
        self.memo[index] = self.stack[-1]

    def _byte(self, at: int) -> int:
        if at >= len(self.data):
            raise _Truncated
        return self.data[at]

    def _unpack(self, layout: str, at: int) -> tuple[Any, ...]:
        try:
            return struct.unpack_from(layout, self.data, at)
        except struct.error:
            raise _Truncated from None

    def _refusal(self, op: int) -> RefusedPickle:
        asked = ".".join(str(item) for item in self.stack[-2:] if isinstance(item, str))
        if op in (0x63, 0x69):  # both carry "module\nname\n"
            lines = self.data[self.offset + 1 : self.offset + 200].split(b"\n")[:2]
            asked = ".".join(line.decode("utf-8", "replace") for line in lines)
        what = f" for {asked[:80]}" if asked else ""
        return RefusedPickle(
            f"{self.name} is refused: its pickle asks to import or call something",
            f"opcode {_REFUSED[op]}{what} at byte {self.offset}; "
            "a Flight Recorder dump holds plain data only, so this is none. Nothing was run",
        )


_FIXED = {
    0x4A: ("<i", 4),  # BININT
    0x47: (">d", 8),  # BINFLOAT
}
_CONSTANTS: dict[int, Callable[[], Any]] = {
    0x88: lambda: True,  # NEWTRUE
    0x89: lambda: False,  # NEWFALSE
    0x29: tuple,  # EMPTY_TUPLE
    0x8F: list,  # EMPTY_SET, as a list
}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}


def _utf8(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _long(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


_SIZED: dict[int, tuple[str, Callable[[bytes], Any]]] = {
    0x8A: ("<B", _long),  # LONG1
    0x8B: ("<i", _long),  # LONG4
    0x8C: ("<B", _utf8),  # SHORT_BINUNICODE
    0x8D: ("<Q", _utf8),  # BINUNICODE8
    0x55: ("<B", _utf8),  # SHORT_BINSTRING
    0x54: ("<i", _utf8),  # BINSTRING
    0x43: ("<B", _utf8),  # SHORT_BINBYTES
    0x42: ("<I", _utf8),  # BINBYTES
    0x8E: ("<Q", _utf8),  # BINBYTES8
}
