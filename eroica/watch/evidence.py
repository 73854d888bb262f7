"""Turns raw captures of a live job into the records that localization reads."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from eroica.collect.gather import RankCapture, StackSample
from eroica.errors import EroicaError
from eroica.read.flight import parse_flight
from eroica.read.stacks import parse_stacks
from eroica.records import (
    CounterUse,
    FlightRecord,
    HostEvidence,
    JobEvidence,
    Place,
    ProcessStacks,
    RankEvidence,
    RankExit,
    Samples,
    Setting,
    StallSample,
    StepTimes,
    Warning,
)
from eroica.watch.frames import clean_flight, clean_stacks

logger = logging.getLogger(__name__)


def read_stack_sample(sample: StackSample, rank: int | None = None) -> ProcessStacks | None:
    """Read py-spy's threads of one process; None where there are none."""
    found = parse_stacks(json.dumps(sample.threads))
    if not found:
        return None
    threads = tuple(thread for process in found for thread in process.threads)
    stacks = ProcessStacks(
        threads=threads,
        pid=sample.pid,
        parent_pid=sample.parent_pid,
        command=sample.command,
        source="py-spy",
        taken_ns=sample.taken_ns,
        rank=rank,
    )
    return clean_stacks(stacks)


def read_capture_flight(capture: RankCapture) -> tuple[FlightRecord | None, list[str]]:
    """Read the Flight Recorder: the pickle, which has frames, else the JSON."""
    problems: list[str] = []
    for data, name in ((capture.flight_pickle, "pickle"), (capture.flight_json, "JSON")):
        if not data:
            continue
        try:
            return clean_flight(parse_flight(data, rank=capture.rank)), problems
        except EroicaError as error:
            problems.append(f"Flight Recorder ({name}): {error}")
    return None, problems


def read_places(raw: Sequence[Mapping[str, Any]]) -> tuple[Place, ...]:
    return tuple(Place(name=str(p["name"]), file=p.get("file"), line=p.get("line")) for p in raw)


def read_settings(facts: Sequence[Mapping[str, Any]]) -> tuple[Setting, ...]:
    return tuple(
        Setting(key=str(f["key"]), value=f["value"], places=read_places(f.get("places", ())))
        for f in facts
    )


def read_exit(ending: Mapping[str, Any] | None, code: int | None = None) -> RankExit | None:
    """Join what the hook wrote and what the kernel said; a rank's thread may die alone."""
    story = dict(ending or {})
    if code is None and not story.get("clean") and not story.get("error_type"):
        return None  # it lives; at most a thread of it has died
    number = -code if code is not None and code < 0 else None
    return RankExit(
        exit_code=code if code is not None else (0 if story.get("clean") else None),
        signal=_signal_name(number),
        time_ns=story.get("time_ns"),
        error_type=story.get("error_type"),
        message=story.get("message"),
        frames=read_places(story.get("frames", ())),
    )


def read_thread_errors(ending: Mapping[str, Any] | None) -> tuple[RankExit, ...]:
    """Return what ended threads of the rank while it went on, as the hook noted it."""
    return tuple(
        RankExit(
            time_ns=one.get("time_ns"),
            error_type=one.get("error_type"),
            message=one.get("message"),
            frames=read_places(one.get("frames", ())),
            thread=str(one.get("thread") or ""),
        )
        for one in (ending or {}).get("thread_errors", ())
    )


def _signal_name(number: int | None) -> str | None:
    import signal

    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def build_rank(
    capture: RankCapture,
    *,
    host: str = "",
    exit: RankExit | None = None,
    steps: StepTimes | None = None,
    stalls: Sequence[StallSample] = (),
    samples: Samples | None = None,
    last_event_ns: int | None = None,
    log_tail: str = "",
    scheduled_ns: tuple[int, int] | None = None,
    counters: Mapping[str, CounterUse] | None = None,
) -> RankEvidence:
    """Return one rank's evidence."""
    stacks = [read_stack_sample(sample, capture.rank) for sample in capture.stacks]
    if not any(stacks) and capture.fault_text:
        stacks = [clean_stacks(stack) for stack in parse_stacks(capture.fault_text)]
    children = [read_stack_sample(sample) for sample in capture.children]
    flight, problems = read_capture_flight(capture)
    return RankEvidence(
        rank=capture.rank,
        host=host,
        pid=capture.pid,
        local_rank=capture.local_rank,
        stacks=tuple(stack for stack in stacks if stack is not None),
        children=tuple(child for child in children if child is not None),
        process=capture.process,
        child_processes=tuple(capture.child_processes),
        flight=flight,
        exit=exit if exit is not None else read_exit(capture.ending),
        settings=(*read_settings(capture.facts), *_schedule(scheduled_ns)),
        steps=steps,
        stalls=tuple(stalls),
        samples=samples,
        last_event_ns=last_event_ns,
        log_tail=log_tail,
        missing=tuple(dict.fromkeys([*capture.missing, *problems])),
        counters=dict(counters or {}),
        thread_errors=read_thread_errors(capture.ending),
    )


def _schedule(scheduled_ns: tuple[int, int] | None) -> tuple[Setting, ...]:
    if scheduled_ns is None:
        return ()
    value = {"on_cpu_ns": scheduled_ns[0], "waiting_ns": scheduled_ns[1]}
    return (Setting(key="cpu.schedule", value=value),)


def build(
    ranks: Sequence[RankEvidence],
    *,
    world_size: int,
    command: Sequence[str] = (),
    source_root: str | None = None,
    hint: str | None = None,
    onset_ns: int | None = None,
    detected_ns: int | None = None,
    window_ns: tuple[int, int] | None = None,
    taken_ns: int | None = None,
    step_ms_before: float | None = None,
    step_ms_now: float | None = None,
    warnings: Sequence[str] = (),
    log_text: str = "",
    hosts: Sequence[HostEvidence] = (),
) -> JobEvidence:
    """Join the ranks to a job."""
    from eroica.watch.logs import read_log_text

    return JobEvidence(
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        world_size=world_size,
        backend=_backend(ranks),
        command=tuple(command),
        source_root=source_root,
        symptom_hint=hint,
        onset_ns=onset_ns,
        detected_ns=detected_ns,
        window_ns=window_ns,
        taken_ns=taken_ns,
        log_events=read_log_text(log_text),
        warnings=tuple(Warning(file=None, what=text) for text in warnings),
        step_ms_before=step_ms_before,
        step_ms_now=step_ms_now,
        hosts=tuple(hosts),
    )


def _backend(ranks: Sequence[RankEvidence]) -> str:
    for rank in ranks:
        for setting in rank.settings:
            if setting.key == "process_group" and isinstance(setting.value, dict):
                return str(setting.value.get("backend") or "")
        for entry in rank.flight.entries if rank.flight else ():
            if entry.backend:
                return re.sub(r"\d+$", "", entry.backend)
    return ""
