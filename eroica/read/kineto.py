"""Kineto and Chrome traces -> ``Timeline``: every form torch has written since 1.8.

Object or bare list, integer microseconds or nanosecond decimals, absolute or relative to
``baseTimeNanoseconds``, .json, .gz or .zst whatever the name says, old capitalized categories,
CUDA, ROCm, XPU, MTIA and CPU. The format is described by pytorch/kineto, libkineto/src/
output_json.cpp and include/ActivityType.h.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.columns import Int16, Timeline
from eroica.errors import InputError
from eroica.read import scan
from eroica.read.collective_notes import CollectiveNote
from eroica.read.collectives import find_collectives
from eroica.read.kineto_columns import Marked
from eroica.read.kineto_document import BLOCK_BYTES, TraceDocument
from eroica.read.kineto_head import TraceHead, sniff
from eroica.read.kineto_info import span_ns, trace_info
from eroica.read.kineto_tracks import (
    DEVICE_CATEGORIES,
    build_tracks,
    fill_missing_categories,
    normalize_categories,
    unique_ids,
)
from eroica.read.names import rank_of
from eroica.read.opening import ByteStream, foreign_format
from eroica.read.scan import Columns
from eroica.records import Warning

__all__ = ["TraceHead", "read_timeline", "sniff"]

_CLAMPED_GAP_NS = 3600 * units.NS_PER_S
"""A start of 0 this far before all others is a time that Kineto clamped, not a time."""


@dataclass
class _Events:
    """The events on their way from document to timeline."""

    columns: Columns
    category_id_E: Int16
    categories: tuple[str, ...]
    notes: dict[int, CollectiveNote]
    window: tuple[int, int] | None
    warnings: list[Warning]


def read_timeline(
    path: str | Path, *, rank: int | None = None, block_bytes: int = BLOCK_BYTES
) -> Timeline:
    """Read one rank's trace; what is damaged is left out and told in ``warnings``.

    ``rank`` overrides what file and file name say. InputError only where there is no event at all.
    """
    document = _read_document(path, block_bytes)
    info = trace_info(document.metadata)
    events = _normalized(document)
    _drop_impossible(events, document.stream.path)
    name_id_E, names = unique_ids(events.columns.name_id_E, document.events.names)
    track_id_E, tracks = build_tracks(
        events.columns.track_id_E,
        events.category_id_E,
        categories=events.categories,
        tracks=document.events.tracks,
        marked=document.events.marked,
    )
    columns = events.columns._replace(name_id_E=name_id_E, track_id_E=track_id_E)
    collectives = find_collectives(
        columns,
        events.category_id_E,
        names=names,
        categories=events.categories,
        notes=events.notes,
        default_group=next(iter(info.groups)) if len(info.groups) == 1 else "",
    )
    told_ranks = (rank, info.rank, rank_of(Path(path)))
    return Timeline(
        path=document.stream.path,
        rank=next((told for told in told_ranks if told is not None), None),
        world_size=info.world_size,
        start_ns_E=columns.start_ns_E,
        duration_ns_E=columns.duration_ns_E,
        name_id_E=name_id_E,
        category_id_E=events.category_id_E,
        track_id_E=track_id_E,
        python_id_E=columns.python_id_E,
        python_parent_E=columns.python_parent_E,
        correlation_E=columns.correlation_E,
        names=names,
        categories=events.categories,
        tracks=tracks,
        collectives=collectives,
        base_ns=info.base_ns,
        host=info.host,
        backend=info.backend,
        groups=_all_groups(document.events.groups, info.groups),
        window=events.window,
        metadata=document.metadata,
        warnings=tuple(events.warnings),
        num_bytes=document.stream.num_bytes,
    )


def _read_document(path: str | Path, block_bytes: int) -> TraceDocument:
    with ByteStream(path) as stream:
        if foreign := foreign_format(stream.head):
            raise InputError(
                f"{path} is not a trace",
                f"found {foreign}",
                next_step="docs/formats.md lists what is read",
            )
        document = TraceDocument(stream, block_bytes=block_bytes)
        document.read()
    if not document.events.num_events:
        raise _nothing_in_it(document)
    return document


def _nothing_in_it(document: TraceDocument) -> InputError:
    told = "; ".join(warning.what for warning in document.warnings)
    found = "an empty list of events" if document.has_events else "JSON without traceEvents"
    return InputError(
        f"{document.stream.path} holds no trace events",
        f"found {found}" + (f" ({told})" if told else ""),
        "record again with torch.profiler and export_chrome_trace",
    )


def _all_groups(
    told_by_calls: dict[str, tuple[int, ...]], told_by_job: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Join both; where one has a group's name only, the other's ranks count."""
    names = (*told_by_job, *(name for name in told_by_calls if name not in told_by_job))
    return {name: told_by_job.get(name) or told_by_calls.get(name, ()) for name in names}


def _normalized(document: TraceDocument) -> _Events:
    """Take the columns over, with categories in today's words."""
    columns = document.events.finish()
    ids, categories = normalize_categories(columns.category_id_E, document.events.categories)
    ids, categories = fill_missing_categories(
        ids, categories, columns.track_id_E, document.events.tracks
    )
    window = _window(document.events.marked)
    return _Events(columns, ids, categories, document.events.notes, window, document.warnings)


def _window(marked: list[Marked]) -> tuple[int, int] | None:
    """Return the time the profiler recorded: from the start of its first span to the last's end."""
    spans = [span_ns(item.text) for item in marked if item.mark == scan.MARK_SPAN]
    edges = [(span[0], span[0] + span[1]) for span in spans if span and span[1] > 0]
    return (min(e[0] for e in edges), max(e[1] for e in edges)) if edges else None


def _drop_impossible(events: _Events, path: str) -> None:
    """Drop events at clamped times and device events longer than the recording, with a warning."""
    columns = events.columns
    clamped_E = _clamped(columns.start_ns_E)
    endless_E = np.zeros(len(clamped_E), bool)
    if events.window is not None:
        device_ids = [k for k, name in enumerate(events.categories) if name in DEVICE_CATEGORIES]
        length = events.window[1] - events.window[0]
        endless_E = (columns.duration_ns_E > length) & np.isin(events.category_id_E, device_ids)
    kept_E = ~(clamped_E | endless_E)
    if kept_E.all() or not kept_E.any():
        return
    for dropped_E, what in (
        (clamped_E, "start at time 0, before anything was recorded"),
        (endless_E & ~clamped_E, "run on the device for longer than was recorded"),
    ):
        if count := int(dropped_E.sum()):
            events.warnings.append(
                Warning(file=path, what=f"{count} x event said to {what}, left out")
            )
    new_index_E = np.cumsum(kept_E) - 1
    events.columns = columns.kept(kept_E)
    events.category_id_E = events.category_id_E[kept_E]
    events.notes = {
        int(new_index_E[index]): note for index, note in events.notes.items() if kept_E[index]
    }


def _clamped(start_ns_E: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which events start at or before 0 while all others start an hour later or more."""
    early_E = start_ns_E <= 0
    if early_E.any() and not early_E.all():
        rest = start_ns_E[~early_E]
        if rest.min() > _CLAMPED_GAP_NS:
            return early_E
    return np.zeros(len(start_ns_E), bool)
