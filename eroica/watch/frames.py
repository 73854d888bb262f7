"""Takes eroica's own frames out of what was seen of a job: the hook is not the user's business."""

import re
from dataclasses import fields, replace

import msgspec

from eroica.columns import RankPatterns
from eroica.records import (
    CollectiveEntry,
    FlightRecord,
    Function,
    Place,
    ProcessStacks,
    ThreadStack,
)

_HOOK = re.compile(r"(?:^|/)(?:eroica/)?collect/(?:hook|inject)/\w+\.py$|(?:^|/)eroica_hook/")
# What the hook does of itself; its other files are wrappers around the job's own calls.
_OWN_WORK = re.compile(r"/(?:control|dumps|exits|facts|folder|places|sampler|server|window)\.py$")


def is_hook_file(path: str | None) -> bool:
    return path is not None and _HOOK.search(path) is not None


def is_own_work(frames: tuple[Place, ...]) -> bool:
    """Whether a stack is eroica's doing: the hook's own thread, or the pause of a window."""
    return bool(frames) and (
        is_hook_file(frames[-1].file)
        or any(is_hook_file(f.file) and "window.py" in (f.file or "") for f in frames)
    )


def without_hook(frames: tuple[Place, ...]) -> tuple[Place, ...]:
    """Return the frames without the hook's wrappers."""
    if not any(is_hook_file(frame.file) for frame in frames):
        return frames
    return tuple(frame for frame in frames if not is_hook_file(frame.file))


def without_own_work(patterns: RankPatterns) -> RankPatterns:
    """Return a window's patterns without the functions that the hook itself ran meanwhile.

    Its thread answers the agent while a window is open, and Kineto chains threads together.
    """
    kept = [i for i, one in enumerate(patterns.functions) if not _is_own_function(one)]
    return patterns if len(kept) == len(patterns.functions) else _only(patterns, kept)


def _is_own_function(function: Function) -> bool:
    files = (function.file, *(place.file for place in function.stack))
    return any(is_hook_file(file) and _OWN_WORK.search(file or "") for file in files)


def _only(patterns: RankPatterns, kept: list[int]) -> RankPatterns:
    columns = {
        one.name: value[kept]
        for one in fields(patterns)
        if one.name.endswith("_F") and (value := getattr(patterns, one.name)) is not None
    }
    return replace(patterns, functions=tuple(patterns.functions[i] for i in kept), **columns)


def clean_stacks(process: ProcessStacks) -> ProcessStacks:
    """Drop the hook's frames, and its own thread."""
    threads = [
        msgspec.structs.replace(thread, frames=without_hook(thread.frames))
        for thread in process.threads
        if not _is_hook_thread(thread)
    ]
    return msgspec.structs.replace(process, threads=tuple(threads))


def _is_hook_thread(thread: ThreadStack) -> bool:
    return bool(thread.frames) and is_hook_file(thread.frames[-1].file)


def clean_flight(flight: FlightRecord) -> FlightRecord:
    """Drop the hook's frames from the collectives' call stacks."""

    def clean(entry: CollectiveEntry) -> CollectiveEntry:
        frames = without_hook(entry.frames)
        if frames is entry.frames:
            return entry
        return msgspec.structs.replace(entry, frames=frames)

    return msgspec.structs.replace(flight, entries=tuple(clean(e) for e in flight.entries))
