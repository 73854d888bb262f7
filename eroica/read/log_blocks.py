"""Things a log says over several lines: Python tracebacks and torchrun's table of failures.

Each is a small machine that is fed one line at a time; a log of many ranks has one pair of them a
rank, because prefixed lines of ranks interleave.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from eroica.records import LogEvent, Place

_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<name>.*))?$')
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]{2,120})(?:: ?(?P<message>.*))?$")
_CHAINS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
}
_MAX_FRAMES = 200
_MAX_MESSAGE = 2000

_TABLE = re.compile(r"^(Failures:|Root Cause \(first observed failure\):)\s*$")
_ROW = re.compile(r"^\[(\d+)\]:\s*$")
_FIELD = re.compile(r"^\s{2}(?P<key>[a-z_]+)\s*: (?P<value>.*)$")
_RANK = re.compile(r"^(\d{1,6}) \(local_rank: (\d{1,6})\)")
_EXIT = re.compile(r"^(-?\d{1,9}) \(pid: (\d{1,9})\)")
_SIGNAL = re.compile(r"Signal \d+ \((SIG\w+)\)")


@dataclass
class TracebackMachine:
    """Fed line by line, gives an event for each traceback when it is complete.

    Chained exceptions are one event: its frames and type are those of the last, which is the one
    that ended the program; the earlier ones stand in ``fields["chain"]``, first cause first.
    """

    frames: list[Place] = field(default_factory=list)
    chain: list[dict[str, Any]] = field(default_factory=list)
    error: tuple[str, str] | None = None
    first_line: int = 0
    is_open: bool = False

    @property
    def is_idle(self) -> bool:
        return not self.is_open and self.error is None

    def feed(self, line: str, number: int) -> LogEvent | None:
        """Take a line; return the traceback that it shows to be over."""
        if line.rstrip().endswith(_START):
            done = None if self._joins_a_chain() else self.close()
            self.first_line = self.first_line or number
            self.frames, self.is_open = [], True
            return done
        if self.is_open:
            self._inside(line)
            return None
        if self.error is None:
            return None
        text = line.strip()
        if text in _CHAINS:
            self.chain.append(self._link(_CHAINS[text]))
            self.error = None
            return None
        if not text:
            return None
        return self.close()

    def _joins_a_chain(self) -> bool:
        return bool(self.chain) and self.error is None

    def _inside(self, line: str) -> None:
        if found := _FRAME.match(line):
            if len(self.frames) < _MAX_FRAMES:
                place = Place(
                    name=found["name"] or "<module>",
                    file=found["file"],
                    line=int(found["line"][:9]),
                )
                self.frames.append(place)
        elif line and not line[0].isspace():
            self.is_open = False
            if found := _ERROR.match(line):
                self.error = (found["type"], (found["message"] or "").strip()[:_MAX_MESSAGE])
            elif self.frames:  # the line of the exception is lost among others' output
                self.error = ("", line.strip()[:_MAX_MESSAGE])

    def _link(self, relation: str) -> dict[str, Any]:
        assert self.error is not None
        innermost = self.frames[-1] if self.frames else None
        return {
            "error_type": self.error[0],
            "message": self.error[1],
            "relation": relation,
            "file": innermost.file if innermost else None,
            "line": innermost.line if innermost else None,
            "name": innermost.name if innermost else None,
        }

    def close(self) -> LogEvent | None:
        """Give what is held, if it is a whole traceback, and begin anew."""
        event = None
        if self.error is not None and self.frames:
            error_type, message = self.error
            event = LogEvent(
                kind="traceback",
                text=f"{error_type}: {message}" if message else error_type,
                line=self.first_line,
                fields={
                    "error_type": error_type,
                    "message": message,
                    "chain": self.chain,
                    "program": _program(self.frames),
                },
                frames=tuple(reversed(self.frames)),
            )
        elif self.is_open and self.frames:  # cut off: the file ended inside
            event = LogEvent(
                kind="traceback",
                text="a traceback that is cut off",
                line=self.first_line,
                fields={"error_type": "", "message": "", "chain": self.chain, "program": ""},
                frames=tuple(reversed(self.frames)),
            )
        self.frames, self.chain, self.error = [], [], None
        self.first_line, self.is_open = 0, False
        return event


def _program(frames: list[Place]) -> str:
    """The installed command a traceback is of (``torchrun``), empty for a training script."""
    file = frames[0].file or ""
    folder, _, name = file.rpartition("/")
    if folder.endswith("/bin") or folder == "bin":
        return name
    return "torchrun" if file.endswith("torch/distributed/run.py") else ""


@dataclass
class FailureTable:
    """torchrun's table at the end: who failed, how, and who was first (torch.distributed.elastic
    .multiprocessing.errors.ChildFailedError)."""

    is_root: bool = False
    is_open: bool = False
    row: dict[str, str] = field(default_factory=dict)
    row_line: int = 0

    def feed(self, line: str, number: int) -> LogEvent | None:
        """Take a line; return the row that it ends."""
        if head := _TABLE.match(line.strip()):
            done = self.close()
            self.is_open, self.is_root = True, head[1].startswith("Root")
            return done
        if not self.is_open:
            return None
        if _ROW.match(line):
            done = self.close()
            self.is_open, self.row_line = True, number
            return done
        if found := _FIELD.match(line):
            self.row.setdefault(found["key"], found["value"].strip())
            return None
        if line.startswith("====="):
            done = self.close()
            self.is_open = False
            return done
        return None

    def close(self) -> LogEvent | None:
        row, self.row = self.row, {}
        rank, exit_code = _RANK.match(row.get("rank", "")), _EXIT.match(row.get("exitcode", ""))
        if not rank or not exit_code:
            return None
        signal = _SIGNAL.search(row.get("traceback", ""))
        code = int(exit_code[1])
        name = signal[1] if signal else _signal_name(code)
        role = "the first to fail" if self.is_root else "failed"
        return LogEvent(
            kind="torchrun_failure",
            text=f"rank {rank[1]} {role}: " + (f"killed by {name}" if name else f"exit {code}"),
            line=self.row_line,
            rank=int(rank[1]),
            host=row.get("host") or None,
            fields={
                "exit_code": code,
                "signal": name,
                "local_rank": int(rank[2]),
                "pid": int(exit_code[2]),
                "is_root_cause": self.is_root,
                "error_file": row.get("error_file", ""),
                "time": row.get("time", ""),
                "message": row.get("traceback", "") if not signal else "",
            },
        )


def _signal_name(exit_code: int) -> str | None:
    import signal

    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
