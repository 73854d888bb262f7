"""A small trace for Perfetto: a guilty and a healthy rank, the window, causes as annotations.

The file is Chrome trace JSON, gzipped where its name ends in ``.gz``. It comes from the traces
that were diagnosed; without them, from the steps and collectives that the incident keeps.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eroica.columns import Arrivals, Timeline
from eroica.errors import EroicaError, InputError
from eroica.incident import IncidentFolder, write_atomic
from eroica.records import Cause, Incident
from eroica.report.material import Material, load
from eroica.text import visible

MAX_EVENTS = 60_000
"""For each rank; the longest are kept, so that the file opens at once."""
_CAUSE_PID = 1_000_000
_LANE = 1_000_000
"""What tells the further lines of a thread from all threads."""
_MAX_LANES = 64
"""Slices that overlap more than this many others are left out: nobody reads such a picture."""
Event = dict[str, Any]


def write_perfetto(folder: IncidentFolder, paths: Sequence[Path], out: Path) -> Path:
    """Write the trace and return its path; InputError where there is nothing to draw."""
    material = load(folder)
    ranks = chosen_ranks(material.incident)
    events = list(_from_traces(material.incident, paths, ranks)) if paths else []
    if not events:
        events = list(_from_incident(material, ranks))
    if not events:
        raise InputError(
            f"incident {folder.id} has no times to draw",
            "neither traces nor steps nor collectives of a rank are there",
            f"eroica diagnose TRACES --perfetto {out}",
        )
    start = min(event["ts"] for event in events if "ts" in event)
    end = max(event["ts"] + event.get("dur", 0) for event in events if "ts" in event)
    events += _annotations(material.incident, start, end)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - start, 3)
    events = nested(events)
    data = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, allow_nan=False).encode()
    write_atomic(out, gzip.compress(data, mtime=0) if out.suffix == ".gz" else data)
    return out


def nested(events: list[Event]) -> list[Event]:
    """Give slices that overlap without nesting a line of their own.

    Perfetto draws a thread as a stack and drops a complete slice that begins in another one and
    ends after it (slice_tracker.cc); its thread 0 is the idle one, so ours begin at 1.
    """
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    slices.sort(key=lambda one: (one["pid"], one["tid"], one["ts"], -one["dur"]))
    lanes: dict[tuple[int, int], list[list[int]]] = {}
    too_many: set[int] = set()
    for one in slices:
        begin, track = round(one["ts"] * 1e3), (one["pid"], one["tid"])
        end = begin + round(one["dur"] * 1e3)
        number = _lane(lanes.setdefault(track, []), begin, end)
        if number >= _MAX_LANES:
            too_many.add(id(one))
            continue
        one["tid"] = 1 + one["tid"] + number * _LANE
    events = [event for event in events if id(event) not in too_many]
    for event in events:
        if "tid" in event and event["ph"] != "X":
            event["tid"] += 1
    more = [
        _named("thread_name", pid, 1 + tid + number * _LANE, f"{names.get((pid, tid), tid)} (more)")
        for (pid, tid), opened in lanes.items()
        for number in range(1, len(opened))
    ]
    return [*events, *more]


def _lane(opened: list[list[int]], begin: int, end: int) -> int:
    """The first line of a track on which a slice nests; each line is a stack of ends."""
    for number, ends in enumerate(opened):
        while ends and ends[-1] <= begin:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    if len(opened) < _MAX_LANES:
        opened.append([end])
        return len(opened) - 1
    return _MAX_LANES


def chosen_ranks(incident: Incident) -> dict[int, str]:
    """Return one guilty and one healthy rank with a word for each."""
    ranks = incident.job.ranks
    cause = incident.causes[0] if incident.causes else None
    guilty = () if cause is None or cause.ranks == "all" else cause.ranks
    chosen = {guilty[0]: "guilty"} if guilty else {}
    healthy = [rank for rank in ranks if rank not in set(guilty)]
    return chosen | dict.fromkeys(healthy[:1], "healthy" if guilty else "any")


def _from_traces(
    incident: Incident, paths: Sequence[Path], ranks: dict[int, str]
) -> Iterator[Event]:
    from eroica.read.folder import find_inputs
    from eroica.read.kineto import read_timeline

    try:
        traces = find_inputs(list(paths)).traces
    except EroicaError:
        return
    for trace in traces:
        if trace.rank in ranks:
            timeline = read_timeline(trace.path, rank=trace.rank)
            yield from _timeline_events(incident, timeline, trace.rank, ranks[trace.rank])


def _timeline_events(
    incident: Incident, timeline: Timeline, rank: int, role: str
) -> Iterator[Event]:
    yield from _process(rank, role)
    guilty = _guilty_names(incident)
    for number, track in enumerate(timeline.tracks):
        yield _named("thread_name", rank, number, track.name or f"{track.pid}/{track.tid}")
    kept = np.arange(timeline.num_events)
    if len(kept) > MAX_EVENTS:
        longest = np.argpartition(-timeline.duration_ns_E, MAX_EVENTS)[:MAX_EVENTS]
        kept = np.sort(longest)
    for n in kept.tolist():
        name = timeline.names[int(timeline.name_id_E[n])]
        event: Event = {
            "ph": "X",
            "pid": rank,
            "tid": int(timeline.track_id_E[n]),
            "ts": (timeline.base_ns + int(timeline.start_ns_E[n])) / 1e3,
            "dur": int(timeline.duration_ns_E[n]) / 1e3,
            "name": visible(name),
            "cat": timeline.categories[int(timeline.category_id_E[n])],
        }
        cause = next((key for known, key in guilty.items() if known and known in name), None)
        if cause:
            event["args"] = {"eroica": cause}
        yield event


def _guilty_names(incident: Incident) -> dict[str, str]:
    """Names of guilty functions, long enough to tell, to the cause they belong to."""
    names: dict[str, str] = {}
    by_id = {finding.id: finding for finding in incident.findings}
    for cause in incident.causes:
        for key in cause.findings:
            function = by_id[key].function if key in by_id else None
            if function is not None and len(function.name) > 3:
                names.setdefault(function.name, cause.id)
    return names


def _from_incident(material: Material, ranks: dict[int, str]) -> Iterator[Event]:
    """Steps from the hook; where there are none, collectives from the patterns."""
    evidence = material.evidence
    has_steps = False
    for rank in evidence.ranks if evidence else ():
        if rank.rank in ranks and rank.steps is not None and len(rank.steps.start_ns):
            has_steps = True
            yield from _process(rank.rank, ranks[rank.rank])
            pairs = zip(rank.steps.start_ns, rank.steps.duration_ns, strict=False)
            for number, (start, length) in enumerate(pairs, rank.steps.first_step):
                yield _slice(rank.rank, 0, start, length, f"step {number}")
            yield _named("thread_name", rank.rank, 0, "steps")
    for one in material.patterns:
        # Collectives are in the clock of their trace, steps in the host's: never on one line.
        if one.rank in ranks and one.arrivals is not None and not has_steps:
            yield from _collectives(one.rank, ranks[one.rank], one.arrivals)


def _collectives(rank: int, role: str, arrivals: Arrivals) -> Iterator[Event]:
    yield from _process(rank, role)
    yield _named("thread_name", rank, 1, "collectives")
    rows = zip(
        arrivals.key_C, arrivals.start_ns_C.tolist(), arrivals.end_ns_C.tolist(), strict=True
    )
    for key, start, end in rows:
        yield _slice(rank, 1, start, end - start, key)


def _annotations(incident: Incident, start: float, end: float) -> Iterator[Event]:
    """One track a cause over the whole window, findings as its arguments."""
    yield _named("process_name", _CAUSE_PID, 0, f"eroica: {visible(incident.headline)}")
    yield {"ph": "M", "name": "process_sort_index", "pid": _CAUSE_PID, "args": {"sort_index": -1}}
    by_id = {finding.id: finding.text for finding in incident.findings}
    for number, cause in enumerate(incident.causes):
        yield _named("thread_name", _CAUSE_PID, number, cause.id)
        yield {
            "ph": "X",
            "pid": _CAUSE_PID,
            "tid": number,
            "ts": start,
            "dur": end - start,
            "cat": "cause",
            "name": visible(f"{cause.id} {cause.category}: {cause.summary}"),
            "args": _arguments(cause, by_id),
        }


def _arguments(cause: Cause, by_id: dict[str, str]) -> dict[str, str]:
    facts = {"confidence": f"{cause.confidence:.2f}", "action": cause.action}
    return facts | {key: visible(by_id.get(key) or key) for key in cause.findings[:20]}


def _process(rank: int, role: str) -> Iterator[Event]:
    yield _named("process_name", rank, 0, f"rank {rank} ({role})")
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": visible(name)}}


def _slice(rank: int, tid: int, start_ns: int, length_ns: int, name: str) -> Event:
    times = {"ts": start_ns / 1e3, "dur": length_ns / 1e3}
    return {"ph": "X", "pid": rank, "tid": tid, "name": visible(name), "cat": "eroica", **times}
