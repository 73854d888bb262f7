"""How a rank ended, from what the logs say of it."""

from collections.abc import Sequence

import msgspec

from eroica.records import LogEvent, RankExit

_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}


def exit_of(rank: int, pid: int | None, events: Sequence[LogEvent]) -> RankExit | None:
    """Put torchrun's row, the last traceback and a kill by the kernel together.

    None where nothing says that the rank ended: a traceback alone may have been caught and
    logged, unless torch's own hook printed it (``[rank3]:``).
    """
    row = _last(events, "torchrun_failure", rank)
    traceback = _last(events, "traceback", rank)
    fatal = _last(events, "fatal_python_error", rank) or _crash_by_signal(row, events)
    kill = next(
        (e for e in events if e.kind == "oom_kill" and pid and e.fields.get("pid") == pid), None
    )
    if traceback is not None and row is None and not traceback.fields.get("is_uncaught"):
        traceback = None
    if not (row or traceback or fatal or kill):
        return None
    ended = RankExit()
    if row is not None:
        ended = RankExit(exit_code=row.fields["exit_code"], signal=row.fields["signal"])
    if fatal is not None:
        what = str(fatal.fields.get("what", ""))
        ended = msgspec.structs.replace(
            ended,
            signal=ended.signal or _SIGNALS.get(what.strip()),
            message=what,
            frames=fatal.frames,
        )
    if traceback is not None:
        ended = msgspec.structs.replace(
            ended,
            error_type=traceback.fields.get("error_type") or None,
            message=traceback.fields.get("message") or ended.message,
            frames=traceback.frames or ended.frames,
            time_ns=traceback.time_ns,
        )
    if kill is not None:
        ended = msgspec.structs.replace(
            ended, signal="SIGKILL", message=kill.text, time_ns=kill.time_ns
        )
    return ended


def _crash_by_signal(row: LogEvent | None, events: Sequence[LogEvent]) -> LogEvent | None:
    """A crash that tells no rank (faulthandler writes no prefix): the only row of its signal."""
    name = row.fields.get("signal") if row else None
    rows = [e for e in events if e.kind == "torchrun_failure" and e.fields.get("signal") == name]
    if name is None or len(rows) != 1:
        return None
    crashes = [
        event
        for event in events
        if event.kind == "fatal_python_error"
        and event.rank is None
        and _SIGNALS.get(str(event.fields.get("what", "")).strip()) == name
    ]
    return crashes[0] if len(crashes) == 1 else None


def _last(events: Sequence[LogEvent], kind: str, rank: int) -> LogEvent | None:
    """The last event of a kind and rank that a training script is the subject of."""
    return next(
        (
            event
            for event in reversed(events)
            if event.kind == kind and event.rank == rank and not event.fields.get("program")
        ),
        None,
    )
