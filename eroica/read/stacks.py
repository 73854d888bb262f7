"""Stack dumps of a process -> ProcessStacks: py-spy, faulthandler, sys._current_frames.

One file may hold several processes (py-spy --subprocesses) and several moments (faulthandler's
repeats); they come out in the order of the file. Local variables, which py-spy writes on demand,
are never kept: they may hold secrets.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from eroica.errors import InputError
from eroica.read import names
from eroica.read.repair import load_json
from eroica.read.source import read_bytes
from eroica.records import Place, ProcessStacks, ThreadStack, Warning

MAX_BYTES = 256 << 20
_MAX_FRAMES = 2000  # of one thread; a runaway recursion shows its innermost ones
_LONGEST_HEADER = 1000  # some of the patterns try every place of a line against every other
_NEXT = "py-spy dump --pid PID, or eroica collect -o DIR"

_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*[{\]]|\{\s*[\"}])")  # "[rank3]:" is none
_RANK_PREFIX = re.compile(r"^(?:\[[A-Za-z_]*(\d{1,6})\]:|\s{0,6}(\d{1,6}):(?= |$)) ?")
_PROCESS = re.compile(r"^Process (\d+): (.*)$")
_PYSPY_THREAD = re.compile(
    r"^Thread (?:0x(?P<hex>[0-9A-Fa-f]+)|(?P<os>\d+))(?:/0x[0-9A-Fa-f]+)? "
    r"\((?P<state>[a-z+ ]+)\)(?:: \"(?P<name>.*)\")?\s*$"
)
_PYSPY_FRAME = re.compile(r"^ {4}(?! )(?P<name>.+) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)\s*$")
_FAULT_THREAD = re.compile(
    r"^(?P<current>Current thread|Thread) 0x(?P<hex>[0-9a-fA-F]+)(?: \[(?P<name>[^\]]*)\])? "
    r"\(most recent call first\):(?: \[(?P<after>[^\]]*)\])?"
)
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_FAULT_START = re.compile(
    r"^(Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!|Fatal Python error: |Python error)"
)
_FRAMES_THREAD = re.compile(
    r"^(?:--- \('(?P<n1>[^']*)', (?P<id1>\d+)\)"
    r"|(?:#|---) ?Thread(?:ID)?:? (?P<n2>[^(\n]*?) ?\(?(?P<id2>\d+)?\)?:?"
    r"|--- (?P<n3>None))\s*$"
)
_FRAMES_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)$')


def read_stacks(path: str | Path, *, rank: int | None = None) -> list[ProcessStacks]:
    """Read a file of stacks; the rank is the one asked for, else the one the name tells.

    InputError where there is no stack in it.
    """
    path = Path(path)
    data, defects = read_bytes(path, MAX_BYTES)
    if _JSON.match(data):
        processes = _parse_json(data, str(path))
    else:
        processes = _parse_text(data.decode("utf-8", "replace"))
    if not processes:
        found = "it is empty" if not data.strip() else "no thread in any form that is known"
        raise InputError(f"{path} holds no stacks", found, _NEXT)
    if rank is None:
        rank = names.rank_of(path)
    warnings = tuple(Warning(file=str(path), what=defect) for defect in defects)
    return [_completed(process, rank, warnings) for process in processes]


def parse_stacks(text: str) -> list[ProcessStacks]:
    """Read stacks from text or JSON of any known form; empty where there are none."""
    data = text.encode("utf-8", "replace")
    if _JSON.match(data):
        try:
            return _parse_json(data, "the stacks")
        except InputError:
            return []
    return _parse_text(text)


def is_stack_text(head: str) -> bool:
    """Whether text is a stack dump: it begins as one, perhaps below a line of its own.

    A crash (``Fatal Python error``) and a dump amid other output are a log's.
    """
    if "Traceback (most recent call last)" in head:
        return False
    lines = [_RANK_PREFIX.sub("", line) for line in head.splitlines() if line.strip()][:2]
    if any(line.startswith("Fatal Python error") for line in lines):
        return False
    return any(_PROCESS.match(line) or _thread_header(line) is not None for line in lines)


def _completed(
    process: ProcessStacks, rank: int | None, warnings: tuple[Warning, ...]
) -> ProcessStacks:
    """Add what the file's name and packing tell."""
    return msgspec.structs.replace(
        process,
        rank=rank if process.rank is None else process.rank,
        warnings=process.warnings + warnings,
    )


# --- JSON of py-spy ---------------------------------------------------------------------------


def _parse_json(data: bytes, name: str) -> list[ProcessStacks]:
    loaded = load_json(data, name)
    value = loaded.value if isinstance(loaded.value, list) else [loaded.value]
    threads: dict[int | None, list[ThreadStack]] = {}
    infos: dict[int | None, dict[str, Any]] = {}
    for item in value:
        if not isinstance(item, dict) or not isinstance(item.get("frames"), list):
            continue
        pid = _int(item.get("pid"))
        threads.setdefault(pid, []).append(_json_thread(item, pid))
        if isinstance(item.get("process_info"), dict):
            infos[pid] = item["process_info"]
    warnings = tuple(Warning(file=name, what=defect) for defect in loaded.defects)
    return [
        ProcessStacks(
            threads=tuple(stacks),
            pid=pid,
            parent_pid=_int(infos.get(pid, {}).get("ppid")),
            command=_str(infos.get(pid, {}).get("command_line")),
            source="py-spy",
            warnings=warnings,
        )
        for pid, stacks in threads.items()
        if any(thread.frames for thread in stacks)
    ]


def _json_thread(item: dict[str, Any], pid: int | None) -> ThreadStack:
    os_thread_id = _int(item.get("os_thread_id"))
    name = _str(item.get("thread_name"))
    frames = [
        Place(
            name=_str(frame.get("name")),
            file=_str(frame.get("filename")) or _str(frame.get("short_filename")) or None,
            line=_int(frame.get("line")) or None,  # native frames have line 0
        )
        for frame in item["frames"][:_MAX_FRAMES]
        if isinstance(frame, dict)
    ]
    active = item.get("active")
    return ThreadStack(
        frames=tuple(frames),
        name=name,
        os_thread_id=os_thread_id,
        is_main=name == "MainThread" or (pid is not None and os_thread_id == pid),
        is_active=active if isinstance(active, bool) else None,
        holds_gil=item.get("owns_gil") is True,
    )


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


# --- text -------------------------------------------------------------------------------------


@dataclass
class _Thread:
    """A thread while its frames are read."""

    form: str
    name: str = ""
    os_thread_id: int | None = None
    identity: str = ""
    is_current: bool = False
    is_active: bool | None = None
    holds_gil: bool = False
    frames: list[Place] = field(default_factory=list)

    def finish(self, pid: int | None) -> ThreadStack:
        frames = self.frames[:_MAX_FRAMES]
        if self.form == "current_frames":  # traceback order: outermost first
            frames = self.frames[::-1][:_MAX_FRAMES]
        return ThreadStack(
            frames=tuple(frames),
            name=self.name,
            os_thread_id=self.os_thread_id,
            is_main=self.name == "MainThread" or self._looks_main(pid, frames),
            is_active=self.is_active,
            holds_gil=self.holds_gil,
        )

    def _looks_main(self, pid: int | None, frames: list[Place]) -> bool:
        """By id, else by its outermost frame: only other threads begin in threading.py."""
        if self.os_thread_id is not None and pid is not None:
            return self.os_thread_id == pid
        return bool(not self.name and frames and frames[-1].name == "<module>")


@dataclass
class _Process:
    pid: int | None = None
    command: str = ""
    threads: list[_Thread] = field(default_factory=list)
    identities: set[str] = field(default_factory=set)

    def finish(self, rank: int | None) -> ProcessStacks | None:
        threads = [thread.finish(self.pid) for thread in self.threads]
        if not any(thread.frames for thread in threads):
            return None
        return ProcessStacks(
            threads=tuple(threads),
            pid=self.pid,
            command=self.command,
            source=self.threads[0].form,
            rank=rank,
        )


def _parse_text(text: str) -> list[ProcessStacks]:
    found = []
    for rank, lines in _by_rank(text):
        for process in _processes(lines):
            stacks = process.finish(rank)
            if stacks is not None:
                found.append(stacks)
    return found


def _by_rank(text: str) -> list[tuple[int | None, list[str]]]:
    """Lines without torchrun's or srun's rank prefix, by that rank."""
    lines: dict[int | None, list[str]] = {}
    for line in text.splitlines():
        prefix = _RANK_PREFIX.match(line)
        rank = int(prefix[1] or prefix[2]) if prefix else None
        lines.setdefault(rank, []).append(line[prefix.end() :] if prefix else line)
    return list(lines.items())


def _processes(lines: list[str]) -> Iterator[_Process]:
    process, thread = _Process(), None
    for line in lines:
        if head := _PROCESS.match(line):
            yield process
            process, thread = _Process(int(head[1][:18]), head[2].strip()), None
        elif _FAULT_START.match(line):
            yield process
            process, thread = _Process(), None
        elif started := _thread_header(line):
            # faulthandler dumps the same thread again: a later moment
            if started.identity in process.identities:
                yield process
                process = _Process(process.pid, process.command)
            if started.identity:
                process.identities.add(started.identity)
            thread = started
            process.threads.append(thread)
        elif thread is not None:
            place = _frame(thread.form, line)
            if place is not None:
                thread.frames.append(place)
            elif line and not line[0].isspace():
                thread = None  # something else begins; frames below are not of this thread
    yield process


def _thread_header(line: str) -> _Thread | None:
    if len(line) > _LONGEST_HEADER:
        return None
    if found := _PYSPY_THREAD.match(line):
        state = found["state"]
        return _Thread(
            "py-spy",
            name=found["name"] or "",
            os_thread_id=int(found["os"][:18]) if found["os"] else None,
            is_active="active" in state,
            holds_gil="gil" in state,
        )
    if found := _FAULT_THREAD.match(line):
        return _Thread(
            "faulthandler",
            name=found["name"] or found["after"] or "",
            identity=found["hex"],
            is_current=found["current"].startswith("Current"),
        )
    if found := _FRAMES_THREAD.match(line):
        number = found["id1"] or found["id2"]
        name = (found["n1"] or found["n2"] or "").strip()
        # only the first form is known to give the kernel's id; the other ids are pthread handles
        native = int(number[:18]) if found["id1"] else None
        return _Thread("current_frames", name=name, os_thread_id=native)
    return None


def _frame(form: str, line: str) -> Place | None:
    if form == "py-spy":
        found = _PYSPY_FRAME.match(line)
    elif form == "faulthandler":
        found = _FAULT_FRAME.match(line)
    else:
        found = _FRAMES_FRAME.match(line)
    if not found:
        return None
    number = found["line"]
    line_number = int(number[:9]) if number and number.isdecimal() else None
    return Place(name=found["name"].strip(), file=found["file"] or None, line=line_number)
