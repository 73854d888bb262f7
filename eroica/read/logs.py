"""Log text -> the few events that matter, streamed in bounded memory.

Reads what torchrun, srun and trainers print, a rank's own stderr and the kernel's log alike; line
prefixes tell the rank. A block of the file with no word of interest is skipped whole, so that a
log of gigabytes of losses costs little. Repeats of a line are counted, not kept.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from eroica.errors import InputError
from eroica.read.identify import log_rank
from eroica.read.log_blocks import FailureTable, TracebackMachine
from eroica.read.log_lines import match_line, own_rank
from eroica.read.log_stream import ANSI, BLOCK_BYTES, blocks
from eroica.read.opening import ByteStream
from eroica.read.stacks import parse_stacks
from eroica.records import LogEvent, Place

_MAX_LINE = 1 << 14
_MAX_EVENTS = 5000
_MAX_TEXT = 500
_TAIL = 4096
_ENDS = (b"\n", b"\r")
_STACK_LINES = 400
_MAX_PREFIXES = 3
_MAX_RANK_PREFIXES = 100_000

# "[rank3]: ", torchrun --tee's "[default3]:" and "[trainer3]:", mpirun's "[1,3]<stderr>: ",
# srun --label's " 3: ". A bare "[3]:" is a row of torchrun's table.
_PREFIX = re.compile(
    r"^(?:\[(?P<role>[A-Za-z_]\w*?)(?P<rank>\d{1,6})\]: ?|\[(?P<bare>\d{1,6})\]: (?=\S)"
    r"|\[\d+,(?P<mpi>\d{1,6})\]<std\w+>: ?|\s{0,6}(?P<label>\d{1,6}):(?: |$))"
)
_RANK_GROUPS = ("rank", "bare", "mpi", "label")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T_](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_RECOMPILED = re.compile(r"function: '(?P<name>[^']*)' \((?P<file>.+):(?P<line>\d{1,9})\)")
_REASON = re.compile(r"(?:last reason: |^\s*- )(?P<reason>\d+/\d+: .*)")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Log:
    """A log's events and its end."""

    events: tuple[LogEvent, ...]
    tail: str = ""
    """The last 4 kB, for people."""
    defects: tuple[str, ...] = ()


def read_log(path: str | Path, *, rank: int | None = None) -> tuple[LogEvent, ...]:
    """Read a log's events, in its order. ``rank`` is whose log it is, where lines do not say.

    A log with nothing of interest gives none; InputError only when it cannot be opened.
    """
    return scan_log(path, rank=rank).events


def scan_log(path: str | Path, *, rank: int | None = None) -> Log:
    """As read_log, with the log's tail and the defects of its packing."""
    path = Path(path)
    if rank is None:
        rank = log_rank(path)
    reader = _Reader(str(path), rank)
    with ByteStream(path) as stream:
        head = stream.read(BLOCK_BYTES)
        if head.lstrip()[:1] == b"{" and b'"message"' in head and len(head) < BLOCK_BYTES:
            error_file = _elastic_error(head, str(path), rank)
            if error_file is not None:
                return Log((error_file,))
        for lines, is_interesting in blocks(stream, head):
            if is_interesting or not reader.is_idle:
                for line in lines.splitlines(keepends=True):
                    reader.feed(line)
            else:
                reader.skip(lines)
        defects = (stream.defect,) if stream.defect else ()
    return Log(reader.finish(), reader.tail.decode("utf-8", "replace"), defects)


def parse_log(text: str, *, rank: int | None = None, name: str = "") -> tuple[LogEvent, ...]:
    """Read events from text that is at hand, e.g. the tail of a running rank's log."""
    reader = _Reader(name, rank)
    for line in text.encode("utf-8", "replace").splitlines():
        reader.feed(line)
    return reader.finish()


@dataclass
class _Machines:
    """What is going on in one rank's lines."""

    traceback: TracebackMachine = field(default_factory=TracebackMachine)
    table: FailureTable = field(default_factory=FailureTable)
    stack: list[str] | None = None
    """Lines after "Fatal Python error": a dump by faulthandler."""
    fields: dict[str, Any] = field(default_factory=dict)
    """What the prefix of these lines tells."""
    recompile: tuple[int, int] | None = None
    """Index and line of the event that "function:" and "last reason:" lines belong to."""

    @property
    def is_idle(self) -> bool:
        return (
            self.traceback.is_idle
            and not self.table.is_open
            and self.stack is None
            and self.recompile is None
        )


class _Reader:
    def __init__(self, file: str, rank: int | None) -> None:
        self.file, self.rank = file, rank
        self.number = 1
        self.tail = b""
        self.machines: dict[int | None, _Machines] = {}
        self.events: list[LogEvent] = []
        self.seen: dict[tuple[str, int | None, str], int] = {}
        self.counts: dict[int, int] = {}
        self.num_dropped = 0

    @property
    def is_idle(self) -> bool:
        return all(machines.is_idle for machines in self.machines.values())

    def skip(self, lines: bytes) -> None:
        self.number += lines.count(b"\n")
        self._keep_tail(lines)

    def feed(self, raw: bytes) -> None:
        """Take one line, maybe with its end; one that a carriage return ends goes on below it."""
        self._keep_tail(raw if raw.endswith(_ENDS) else raw + b"\n")
        line = ANSI.sub(b"", raw[:_MAX_LINE].rstrip(b"\r\n")).decode("utf-8", "replace")
        rank, line, fields = self._prefixes(line)
        is_room = rank in self.machines or len(self.machines) < _MAX_RANK_PREFIXES
        key = rank if is_room else None
        machines = self.machines.setdefault(key, _Machines())
        machines.fields = fields
        self._feed_blocks(machines, line, rank, fields)
        self._feed_line(machines, line, rank, fields)
        self.number += not raw.endswith(b"\r")

    def _prefixes(self, line: str) -> tuple[int | None, str, dict[str, Any]]:
        """Whose line it is, the line without prefixes, and what they tell.

        They nest: ``[default1]:[rank1]: ...`` under ``--tee``. A global rank counts most.
        """
        rank, fields = self.rank, {}
        for _ in range(_MAX_PREFIXES):
            prefix = _PREFIX.match(line)
            if prefix is None:
                break
            number = next(int(text) for text in prefix.group(*_RANK_GROUPS) if text)
            line = line[prefix.end() :]
            if prefix["role"] == "rank":
                return number, line, {"is_uncaught": True}  # by torch's excepthook
            rank, fields = number, {"rank_is_local": True} if prefix["role"] else {}
        return rank, line, fields

    def _feed_blocks(
        self, machines: _Machines, line: str, rank: int | None, fields: dict[str, Any]
    ) -> None:
        for event in (
            machines.traceback.feed(line, self.number),
            machines.table.feed(line, self.number),
        ):
            if event is not None:
                self._add(event, rank, fields)
        if machines.stack is not None:
            machines.stack.append(line)
            if len(machines.stack) > _STACK_LINES or line.startswith("Extension modules"):
                self._end_stack(machines, rank)
        if machines.recompile is not None:
            self._more_of_recompile(machines, line)

    def _feed_line(
        self, machines: _Machines, line: str, rank: int | None, fields: dict[str, Any]
    ) -> None:
        matched = match_line(line)
        if matched is None or (machines.table.is_open and matched[0] == "signal"):
            return
        kind, found = matched
        own = own_rank(line)
        event = LogEvent(
            kind=kind,
            text=line.strip()[:_MAX_TEXT],
            line=self.number,
            host=found.get("host") if isinstance(found.get("host"), str) else None,
            time_ns=_time_ns(line),
            fields=found,
        )
        index = self._add(event, own if own is not None else rank, fields)
        if kind == "fatal_python_error":
            machines.stack = []
        elif kind in ("recompile_limit", "recompile") and index is not None:
            machines.recompile = (index, self.number)

    def _add(self, event: LogEvent, rank: int | None, fields: dict[str, Any]) -> int | None:
        """Keep an event; a repeat of one (but for its numbers) is only counted."""
        rank = event.rank if event.rank is not None else rank
        if event.kind != "traceback":
            fields = {key: value for key, value in fields.items() if key != "is_uncaught"}
        shape = event.text if event.frames else _DIGITS.sub("#", event.text)
        key = (event.kind, rank, shape if event.kind != "torchrun_failure" else event.text)
        if key in self.seen:
            index = self.seen[key]
            self.counts[index] = self.counts.get(index, 1) + 1
            return index
        if len(self.events) >= _MAX_EVENTS:
            self.num_dropped += 1
            return None
        self.seen[key] = len(self.events)
        self.events.append(
            msgspec.structs.replace(
                event,
                rank=rank,
                file=self.file or None,
                fields={**event.fields, **fields},
            )
        )
        return len(self.events) - 1

    def _end_stack(self, machines: _Machines, rank: int | None) -> None:
        """Give a faulthandler dump inside the log to the fatal error before it."""
        processes = parse_stacks("\n".join(machines.stack or ()))
        machines.stack = None
        if not processes:
            return
        threads = processes[0].threads
        current = next((thread for thread in threads if thread.is_main), threads[0])
        for index in range(len(self.events) - 1, -1, -1):
            event = self.events[index]
            if event.kind == "fatal_python_error" and event.rank == rank:
                self.events[index] = msgspec.structs.replace(event, frames=current.frames)
                return

    def _more_of_recompile(self, machines: _Machines, line: str) -> None:
        assert machines.recompile is not None
        index, started = machines.recompile
        event = self.events[index]
        if self.number > started + 12:
            machines.recompile = None
        if (found := _RECOMPILED.search(line)) and not event.frames:
            place = Place(name=found["name"], file=found["file"], line=int(found["line"]))
            self.events[index] = msgspec.structs.replace(event, frames=(place,))
        elif found := _REASON.search(line):
            event.fields.setdefault("reason", found["reason"].strip()[:_MAX_TEXT])
            machines.recompile = None

    def finish(self) -> tuple[LogEvent, ...]:
        for rank, machines in self.machines.items():
            for event in (machines.traceback.close(), machines.table.close()):
                if event is not None:
                    self._add(event, rank, machines.fields)
            if machines.stack is not None:
                self._end_stack(machines, rank)
        for index, count in self.counts.items():
            self.events[index].fields["count"] = count
        if self.num_dropped:
            text = f"{self.num_dropped} further events are not kept"
            self.events.append(LogEvent(kind="dropped", text=text, file=self.file or None))
        return tuple(sorted(self.events, key=lambda event: event.line or self.number))

    def _keep_tail(self, data: bytes) -> None:
        self.tail = (self.tail + data[-_TAIL:])[-_TAIL:]


def _time_ns(line: str) -> int | None:
    """The line's date and time, taken for UTC: logs do not tell their zone."""
    found = _STAMP.search(line[:80])
    if not found:
        return None
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(moment.timestamp()) * 1_000_000_000 + int((found[3] or "0").ljust(9, "0"))


def _elastic_error(head: bytes, name: str, rank: int | None) -> LogEvent | None:
    """The file that torch.distributed.elastic's ``record`` writes: one rank's exception."""
    from eroica.read.repair import load_json

    try:
        value = load_json(head, name).value
    except InputError:
        return None
    message = value.get("message") if isinstance(value, dict) else None
    if isinstance(message, str):
        message = {"message": message}
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    inner = parse_log(stack, rank=rank, name=name) if isinstance(stack, str) else ()
    traceback = next((event for event in inner if event.kind == "traceback"), None)
    if traceback is not None:
        return traceback
    error_type, _, text = message["message"].partition(": ")
    return LogEvent(
        kind="traceback",
        text=message["message"][:_MAX_TEXT],
        file=name,
        rank=rank,
        fields={"error_type": error_type, "message": text[:_MAX_TEXT], "chain": [], "program": ""},
    )
