"""Joining what was found by rank: Flight Recorder, stacks, logs, pids -> JobEvidence."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from eroica import units
from eroica.errors import InputError
from eroica.read.exits import exit_of
from eroica.read.flight import read_flight
from eroica.read.flight_groups import fill_groups
from eroica.read.inputs import FileInput, Inputs, Run
from eroica.read.logs import Log, scan_log
from eroica.read.names import LARGEST_WORLD
from eroica.read.process_kinds import fullness, is_launcher, is_loader_worker, is_same, name_of
from eroica.read.saved import merge_saved, read_saved
from eroica.read.source import read_head, warning_of
from eroica.read.stacks import read_stacks
from eroica.read.tasks import read_tasks
from eroica.records import (
    FlightRecord,
    JobEvidence,
    LogEvent,
    ProcessStacks,
    ProcessState,
    RankEvidence,
    Warning,
)


@dataclass
class _Rank:
    """One rank's parts while they are gathered."""

    host: str = ""
    pid: int | None = None
    stacks: list[ProcessStacks] = field(default_factory=list)
    children: list[ProcessStacks] = field(default_factory=list)
    flight: FlightRecord | None = None
    process: ProcessState | None = None
    log_tail: str = ""


def load_evidence(inputs: Inputs, *, run: Run = map) -> JobEvidence:
    """Read the small evidence and join it by rank; traces are only counted.

    Bad files become warnings. Ranks that nothing is known of are absent, and it is said. ``run``
    maps a function over files in order, for thousands of dumps on many cores; what it maps and
    what comes back can be pickled.
    """
    joined = _Joined(inputs, run)
    joined.add_pids()
    joined.add_flights()
    joined.add_stacks()
    joined.add_tasks()
    joined.add_logs()
    evidence = joined.finish()
    if inputs.hardware:
        from eroica.read.counters import with_counters  # numpy: load late

        evidence = with_counters(evidence, inputs.hardware, joined.warnings)
    saved = read_saved(inputs.evidence, joined.warnings)
    if saved:
        return merge_saved(evidence, saved, joined.warnings)
    return evidence


class _Joined:
    def __init__(self, inputs: Inputs, run: Run) -> None:
        self.inputs, self.run = inputs, run
        self.ranks: dict[int, _Rank] = defaultdict(_Rank)
        self.events: list[LogEvent] = []
        self.warnings: list[Warning] = list(inputs.warnings)

    def add_pids(self) -> None:
        for file in self.inputs.pids:
            try:
                text = read_head(file.path, 32).strip()
            except InputError as error:
                self.warnings.append(warning_of(error, file.path))
                continue
            if file.rank is not None and text.isdigit():
                self.ranks[file.rank].pid = int(text)

    def add_flights(self) -> None:
        nameless: list[tuple[FileInput, FlightRecord]] = []
        files = self.inputs.flights
        for file, (record, warnings) in zip(files, self.run(_best_flight, files), strict=True):
            self.warnings.extend(warnings)
            if record is None:
                continue
            if record.rank is None:
                nameless.append((file, record))
            else:
                self._rank(file, record.rank).flight = record
        free = self._free(lambda one: one.flight is not None)
        for file, record in nameless:
            rank = next(free)
            self.ranks[rank].flight = record
            self._warn(file, f"tells no rank; taken as rank {rank}. Name it ..._{rank} if wrong")

    def add_stacks(self) -> None:
        nameless: list[tuple[FileInput, ProcessStacks]] = []
        for file in self.inputs.stacks:
            try:
                processes = read_stacks(file.path, rank=file.rank)
            except InputError as error:
                self.warnings.append(warning_of(error, file.path))
                continue
            for stacks in processes:
                self.warnings.extend(stacks.warnings)
            owner: int | None = None
            for stacks in self._own_first(processes):
                if stacks.rank is None:
                    nameless.append((file, stacks))
                elif owner == stacks.rank and self._is_child(stacks, owner):
                    self._add_child(self.ranks[owner], stacks)
                else:
                    owner = stacks.rank
                    self._add_sample(self._rank(file, owner), stacks)
        self._place_nameless(nameless)
        for rank in self.ranks.values():
            rank.stacks.sort(key=fullness)

    def _own_first(self, processes: Sequence[ProcessStacks]) -> Iterable[ProcessStacks]:
        """A rank's own process before its children, which py-spy lists in any order."""
        return sorted(processes, key=lambda one: (one.rank or 0, is_loader_worker(one)))

    def _is_child(self, stacks: ProcessStacks, rank: int) -> bool:
        pid = self.ranks[rank].pid
        return stacks.pid is not None and pid is not None and stacks.pid != pid

    @staticmethod
    def _add_sample(rank: _Rank, stacks: ProcessStacks) -> None:
        if rank.pid is None:
            rank.pid = stacks.pid
        if not any(is_same(stacks, other) for other in rank.stacks):
            rank.stacks.append(stacks)

    @staticmethod
    def _add_child(rank: _Rank, stacks: ProcessStacks) -> None:
        """Keep the newest sample of a child: the later in the file."""
        rank.children = [one for one in rank.children if one.pid != stacks.pid]
        rank.children.append(stacks)

    def _place_nameless(self, nameless: list[tuple[FileInput, ProcessStacks]]) -> None:
        """By a pid that is known, else in the order of pids: torchrun starts ranks in order."""
        by_pid = {one.pid: number for number, one in self.ranks.items() if one.pid is not None}
        strangers: list[tuple[FileInput, ProcessStacks]] = []
        for file, stacks in nameless:
            if stacks.pid in by_pid:
                self._add_sample(self.ranks[by_pid[stacks.pid]], stacks)
            elif stacks.parent_pid in by_pid and stacks.parent_pid is not None:
                self._add_child(self.ranks[by_pid[stacks.parent_pid]], stacks)
            elif not is_launcher(stacks):
                strangers.append((file, stacks))
        strangers.sort(key=lambda pair: pair[1].pid or 0)
        rank: int | None = None
        free = self._free(lambda one: bool(one.stacks))
        for file, stacks in strangers:
            if stacks.pid is not None and rank is not None and is_loader_worker(stacks):
                self._add_child(self.ranks[rank], stacks)
                continue
            known = by_pid.get(stacks.pid) if stacks.pid is not None else None
            if known is None:
                known = next(free)
                self._warn(file, f"tells no rank of {name_of(stacks)}; taken as rank {known}")
                if stacks.pid is not None:
                    by_pid[stacks.pid] = known
            rank = known
            self._add_sample(self.ranks[rank], stacks)

    def add_tasks(self) -> None:
        for file in self.inputs.tasks:
            try:
                state = read_tasks(file.path)
            except InputError as error:
                self.warnings.append(warning_of(error, file.path))
                continue
            if file.rank is not None and state is not None:
                self._rank(file, file.rank).process = state

    def add_logs(self) -> None:
        silent = []
        files = self.inputs.logs
        for file, log in zip(files, self.run(_log, files), strict=True):
            for defect in log.defects:
                self._warn(file, defect)
            self.events.extend(log.events)
            if file.rank is not None and log.tail:
                self._rank(file, file.rank).log_tail = log.tail
            if not log.events and not log.defects:
                silent.append(file)
        if 0 < len(silent) <= 3:
            for file in silent:
                self._warn(file, "is text without anything in it that is known to matter")
        elif silent:
            what = f"{len(silent)} text files hold nothing that is known to matter"
            self.warnings.append(Warning(file=None, what=what))

    def finish(self) -> JobEvidence:
        self._ranks_of_exits()
        backends = Counter(
            entry.backend
            for one in self.ranks.values()
            for entry in (one.flight.entries[-1:] if one.flight else ())
            if entry.backend
        )
        backends.update(trace.backend for trace in self.inputs.traces if trace.backend)
        world_size = self._world_size()
        records = {number: one.flight for number, one in self.ranks.items() if one.flight}
        for number, record in fill_groups(records, world_size).items():
            self.ranks[number].flight = record
        self._say_missing(world_size)
        return JobEvidence(
            ranks=tuple(self._finish_rank(number) for number in sorted(self.ranks)),
            world_size=world_size,
            backend=backends.most_common(1)[0][0] if backends else "",
            log_events=tuple(self.events),
            warnings=tuple(dict.fromkeys(self.warnings)),
        )

    def _ranks_of_exits(self) -> None:
        """A rank that only a log speaks of exists too."""
        for event in self.events:
            if event.rank is not None and event.kind in ("torchrun_failure", "traceback"):
                rank = self.ranks[event.rank]
                rank.host = rank.host or (event.host or "")
                pid = event.fields.get("pid")
                if rank.pid is None and isinstance(pid, int):
                    rank.pid = pid

    def _finish_rank(self, number: int) -> RankEvidence:
        rank = self.ranks[number]
        return RankEvidence(
            rank=number,
            host=rank.host,
            pid=rank.pid,
            stacks=tuple(rank.stacks),
            children=tuple(rank.children),
            process=rank.process,
            flight=rank.flight,
            exit=exit_of(number, rank.pid, self.events),
            log_tail=rank.log_tail,
        )

    def _world_size(self) -> int:
        """The largest of what traces, process groups and ranks tell."""
        told = [self.inputs.world_size or 0, len(self.ranks)]
        for one in self.ranks.values():
            groups = one.flight.groups.values() if one.flight else ()
            told.extend(max(ranks) + 1 for ranks in groups if ranks)
        told.extend(trace.rank + 1 for trace in self.inputs.traces if trace.rank is not None)
        told.extend(trace.rank + 1 for trace in self.inputs.nsys if trace.rank is not None)
        told.extend(rank + 1 for rank in self.ranks)
        return max(told)

    def _say_missing(self, world_size: int) -> None:
        """Name the ranks of which nothing is there."""
        have = {trace.rank for trace in (*self.inputs.traces, *self.inputs.nsys)} | set(self.ranks)
        missing = [rank for rank in range(min(world_size, LARGEST_WORLD)) if rank not in have]
        if missing and have:
            what = f"evidence of {len(have)} of {world_size} ranks is here; nothing of "
            self.warnings.append(Warning(file=None, what=what + units.rank_phrase(missing)))

    def _rank(self, file: FileInput, number: int) -> _Rank:
        rank = self.ranks[number]
        rank.host = rank.host or file.host
        return rank

    def _free(self, has: Callable[[_Rank], bool]) -> Iterator[int]:
        """The ranks that do not have a part yet when they are asked for, the lowest first."""
        for number in itertools.count():
            if not (number in self.ranks and has(self.ranks[number])):
                yield number

    def _warn(self, file: FileInput, what: str) -> None:
        self.warnings.append(Warning(file=str(file.path), what=what.replace("\n", "; ")))


def _best_flight(file: FileInput) -> tuple[FlightRecord | None, tuple[Warning, ...]]:
    """The rank's dump; where it is damaged, the one of its others with the most entries."""
    best: FlightRecord | None = None
    warnings: list[Warning] = []
    for path in (file.path, *file.others):
        try:
            record = read_flight(path, rank=file.rank)
        except InputError as error:
            warnings.append(warning_of(error, path))
            continue
        warnings.extend(record.warnings)
        if best is None or len(record.entries) > len(best.entries):
            best = record
        if not record.warnings:
            break
    return best, tuple(warnings)


def _log(file: FileInput) -> Log:
    try:
        return scan_log(file.path, rank=file.rank)
    except InputError as error:
        return Log((), defects=(warning_of(error, file.path).what,))
