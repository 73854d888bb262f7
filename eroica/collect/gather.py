"""One short, complete look at every rank of a job on this host, each part optional.

Gathered are raw things (py-spy's JSON, Flight Recorder bytes, kernel states, facts); reading
them is the reader's business. Each part has a time limit, and a part that could not be had is a
sentence in ``missing``. Long because it lists every kind of evidence once.
"""

import contextlib
import json
import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eroica.collect import proc, spy
from eroica.collect.asking import NoAnswer, Silent, ask, ask_torch, whole_text
from eroica.collect.processes import LiveJob, LiveRank
from eroica.collect.rings import RingReader, find_rings
from eroica.records import ProcessState

logger = logging.getLogger(__name__)

Threads = list[dict[str, Any]]


@dataclass
class StackSample:
    """py-spy's threads of one process at one moment."""

    pid: int
    parent_pid: int | None
    command: str
    taken_ns: int
    threads: Threads


@dataclass
class RankCapture:
    """Everything raw of one rank."""

    rank: int
    pid: int
    local_rank: int | None = None
    stacks: list[StackSample] = field(default_factory=list)
    """Of the rank's own process, oldest first."""
    children: list[StackSample] = field(default_factory=list)
    """Of its children, newest each."""
    process: ProcessState | None = None
    child_processes: list[ProcessState] = field(default_factory=list)
    flight_pickle: bytes | None = None
    flight_json: bytes | None = None
    fault_text: str = ""
    """faulthandler's text, where py-spy could not read the process."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    ending: dict[str, Any] | None = None
    """What the hook wrote when the rank ended."""
    missing: list[str] = field(default_factory=list)


def gather(
    job: LiveJob,
    *,
    num_samples: int = 2,
    gap_s: float = 1.0,
    is_flight_wanted: bool = True,
    answer_s: float = 2.0,
    progress: Callable[[str], None] = lambda text: None,
) -> list[RankCapture]:
    """Return a capture per rank: two stack samples, dumps from inside, kernel states.

    The dumps from inside are asked for while waiting between the samples. Takes ``gap_s`` plus
    some tens of milliseconds a rank; at most a few seconds where ranks do not answer.
    """
    captures = {r.rank: RankCapture(r.rank, r.pid, r.local_rank) for r in job.ranks.values()}
    children = _children(job)
    progress(
        f"taking stacks of {len(captures)} ranks and {sum(map(len, children.values()))} children"
    )
    start = time.monotonic()
    take_stacks(captures, children, are_children_wanted=num_samples == 1, folder=job.folder)
    if job.folder is not None:
        progress("asking the ranks for their Flight Recorders")
        _ask_all(job, captures, is_flight_wanted, answer_s)
    else:
        for capture in captures.values():
            capture.missing.append(
                "Flight Recorder and settings: the job runs without eroica's hook"
                " (start it with `eroica run`, or `import eroica` in the script)"
            )
    for number in range(1, num_samples):
        time.sleep(max(0.0, start + number * gap_s - time.monotonic()))
        take_stacks(
            captures,
            children,
            are_children_wanted=number == num_samples - 1,
            folder=job.folder,
        )
    for rank, capture in captures.items():
        capture.process = proc.read_process(capture.pid)
        states = (proc.read_process(pid) for pid in children.get(rank, []))
        capture.child_processes = [state for state in states if state is not None]
    return [captures[rank] for rank in sorted(captures)]


def _children(job: LiveJob) -> dict[int, list[int]]:
    """Return each rank's living descendants, without the tools that look at it."""
    stats = proc.all_stats()
    own = set(job.pids)
    return {
        rank.rank: [
            pid
            for pid in proc.descendants(rank.pid, stats)
            if pid not in own and stats[pid].state not in "ZX" and stats[pid].name != "py-spy"
        ]
        for rank in job.ranks.values()
    }


def take_stacks(
    captures: dict[int, RankCapture],
    children: dict[int, list[int]],
    *,
    are_children_wanted: bool = True,
    folder: str | Path | None = None,
) -> None:
    """Add one sample of all ranks, taken at the same time, to their captures.

    Ranks that py-spy may not read look at themselves, where their hook is met in ``folder``.
    """
    pids = [capture.pid for capture in captures.values()]
    if are_children_wanted:
        pids += [pid for some in children.values() for pid in some if _is_python(pid)]
    taken_ns = time.time_ns()
    result = spy.dump_all(pids, is_blocking=False)
    inside = _look_inside(captures, result, folder) if folder is not None else {}
    for rank, capture in captures.items():
        threads = result[capture.pid]
        if isinstance(threads, str):
            _fall_back(capture, threads)
            if rank in inside:
                capture.stacks.append(_sample(capture.pid, inside[rank], taken_ns))
        else:
            capture.stacks.append(_sample(capture.pid, threads, taken_ns))
        for pid in children.get(rank, []) if are_children_wanted else []:
            threads = result.get(pid, "")
            if isinstance(threads, str):
                if threads and proc.is_alive(pid):
                    capture.missing.append(f"stacks of child {pid}: {threads}")
            else:
                capture.children.append(_sample(pid, threads, taken_ns))


def _look_inside(
    captures: dict[int, RankCapture], result: dict[int, Threads | str], folder: str | Path
) -> dict[int, Threads]:
    """Return the threads of ranks that py-spy could not read, as their hooks see them."""
    refused = [
        rank
        for rank, capture in captures.items()
        if isinstance(result[capture.pid], str) and proc.is_alive(capture.pid)
    ]
    found: dict[int, Threads] = {}

    def look(rank: int) -> None:
        try:
            found[rank] = ask(folder, rank, "threads", limit_s=0.5)
        except NoAnswer as error:
            logger.debug("stacks from inside: %s", error)

    if refused:
        with ThreadPoolExecutor(max_workers=16, thread_name_prefix="eroica-look") as pool:
            list(pool.map(look, refused))
    return found


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115
    except OSError:
        return False


def _sample(pid: int, threads: Threads, taken_ns: int) -> StackSample:
    stat = proc.read_stat(pid)
    command = " ".join(proc.read_command(pid))
    return StackSample(pid, stat.parent_pid if stat else None, command, taken_ns, threads)


def _fall_back(capture: RankCapture, reason: str) -> None:
    if not proc.is_alive(capture.pid):
        reason = f"process {capture.pid} has ended"
    sentence = f"stacks from outside: {reason}"
    if sentence not in capture.missing:
        capture.missing.append(sentence)


def _ask_all(
    job: LiveJob, captures: dict[int, RankCapture], is_flight_wanted: bool, answer_s: float
) -> None:
    with ThreadPoolExecutor(max_workers=16, thread_name_prefix="eroica-ask") as pool:
        asked = {
            rank: pool.submit(_ask_one, job, job.ranks[rank], capture, is_flight_wanted, answer_s)
            for rank, capture in captures.items()
        }
    for rank, future in asked.items():
        try:
            future.result()
        except OSError as error:  # no room for its files, or the folder went away
            captures[rank].missing.append(f"Flight Recorder and settings: {error}")


def _ask_one(
    job: LiveJob, rank: LiveRank, capture: RankCapture, is_flight_wanted: bool, answer_s: float
) -> None:
    assert job.folder is not None
    if not rank.is_alive:
        return
    with tempfile.TemporaryDirectory(dir=job.folder, prefix="ask-") as name:
        base = Path(name)
        try:
            if is_flight_wanted:
                ask(
                    job.folder,
                    rank.rank,
                    "flight",
                    limit_s=answer_s,
                    path=str(base / "flight"),
                )
                capture.flight_pickle = _read(base / "flight.pickle")
                capture.flight_json = _read(base / "flight.json")
        except Silent as error:
            # Its interpreter lock is held: only what answers without it can tell.
            capture.missing.append(f"settings: {error}")
            _ask_below_python(job.folder, rank, capture)
            return
        except NoAnswer as error:
            capture.missing.append(f"Flight Recorder: {error}")
        try:
            ask(job.folder, rank.rank, "facts", limit_s=answer_s, path=str(base / "facts"))
            capture.facts = _records(_read(base / "facts"))
        except NoAnswer as error:
            capture.missing.append(f"settings: {error}")
        if not capture.stacks:
            capture.fault_text = signal_stacks(job.folder, rank)


def _ask_below_python(folder: str, rank: LiveRank, capture: RankCapture) -> None:
    """Ask torch's worker server, in C++, and faulthandler, in C."""
    try:
        capture.flight_json = ask_torch(folder, rank.rank, "fr_trace_json", limit_s=1.0)
    except NoAnswer as error:
        capture.missing.append(f"Flight Recorder: {error}")
    if capture.stacks:
        return
    capture.fault_text = signal_stacks(folder, rank)
    if not capture.fault_text:
        try:
            text = ask_torch(folder, rank.rank, "dump_traceback", limit_s=3.0)
            capture.fault_text = text.decode(errors="replace")
        except NoAnswer as error:
            capture.missing.append(f"stacks from inside: {error}")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def signal_stacks(folder: str, rank: LiveRank, *, limit_s: float = 1.0) -> str:
    """Return faulthandler's stacks, which need no right to trace; empty where it is not set up.

    Sent only to a process whose kernel mask says that it catches this signal.
    """
    ring = find_rings(Path(folder)).get(rank.rank)
    if ring is None:
        return ""
    try:
        reader = RingReader(ring)
    except ValueError as error:  # of another version
        logger.debug("signal for stacks: %s", error)
        return ""
    number, pid = reader.fault_signal, reader.pid
    reader.close()
    if not number or pid != rank.pid or not catches(pid, number):
        return ""
    path = Path(folder) / f"rank-{rank.rank:05d}.fault"
    size = path.stat().st_size if path.exists() else 0
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.Signals(number) if number < 32 else number)
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        time.sleep(0.05)
        if path.exists() and path.stat().st_size > size:
            time.sleep(0.05)
            return path.read_bytes()[size:].decode(errors="replace")
    return ""


def catches(pid: int, number: int) -> bool:
    """Whether the kernel says that the process handles a signal."""
    for line in proc.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _ending_path(folder: str | Path, rank: int) -> str:
    return f"{folder}/rank-{rank:05d}.exit.json"


def has_written_ending(folder: str | Path, rank: int) -> bool:
    """Whether the hook wrote of the end of this rank or of one before it."""
    return os.path.exists(_ending_path(folder, rank))  # noqa: PTH110 - ten times a second a rank


def read_ending(folder: str | Path, rank: int, pid: int | None = None) -> dict[str, Any] | None:
    """Return what the hook wrote when the rank ended; None where it wrote nothing (yet)."""
    if not has_written_ending(folder, rank):
        return None
    data = _read(Path(_ending_path(folder, rank)))
    if data is None:
        return None
    story = _decoded(data)
    if not isinstance(story, dict):
        return None
    return story if pid is None or story.get("pid") == pid else None


def read_what_is_left(capture: RankCapture, folder: str | Path) -> None:
    """Fill in what the hook of this process wrote when it ended, where it told nothing before."""
    capture.ending = read_ending(folder, capture.rank, capture.pid)
    capture.facts = capture.facts or read_facts(folder, capture.rank)
    base = Path(folder) / f"rank-{capture.rank:05d}.flight"
    capture.flight_pickle = capture.flight_pickle or _read(base.with_suffix(".flight.pickle"))
    capture.flight_json = capture.flight_json or _read(base.with_suffix(".flight.json"))


def read_facts(folder: str | Path, rank: int) -> list[dict[str, Any]]:
    """Return the last facts the hook wrote at the rank's exit."""
    return _records(_read(Path(folder) / f"rank-{rank:05d}.facts.json"))


def _records(data: bytes | None) -> list[dict[str, Any]]:
    """A list of JSON objects; what a dying rank wrote otherwise is left out."""
    found = _decoded(data)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _decoded(data: bytes | None) -> object:
    """JSON that a rank wrote; None where it is cut off or none."""
    try:
        return whole_text(json.loads(data or b"null"))
    except (ValueError, RecursionError):
        return None
