"""Steps and loader waits: what the annotations of the training thread say of the window."""

import re

import numpy as np

from eroica.columns import Int64, Timeline
from eroica.summarize.classify import (
    _ANNOTATION_CATEGORIES,
    _PYTHON_CATEGORIES,
    Bool,
    Lanes,
    NameSets,
)

_PROFILER_STEP = re.compile(r"^ProfilerStep#")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
_OPTIMIZER_FRAME = re.compile(
    r"^(?:.*/)?torch/optim/(?!lr_scheduler|optimizer|swa_utils)\w+\.py\(\d+\): step$"
)
_LOADER = re.compile(r"^enumerate\(DataLoader\)#.*__next__")
_LOADER_FRAME = re.compile(
    r"(?:torch/utils/data/dataloader|torchdata/stateful_dataloader/stateful_dataloader)\.py"
    r"\(\d+\): __next__$"
)


def count_steps(timeline: Timeline, lanes: Lanes) -> int | None:
    """Return the number of optimizer steps in the window, None where nothing tells.

    ``ProfilerStep#n`` counts first; then optimizer annotations or frames, of which several a step
    (one an optimizer) count once.
    """
    sets = NameSets(timeline)
    on_thread = lanes.track_E == lanes.training_track
    profiler = on_thread & sets.matching(_ANNOTATION_CATEGORIES, _PROFILER_STEP)
    if profiler.any():
        return len(np.unique(timeline.name_id_E[profiler]))
    for categories, pattern in (
        (_ANNOTATION_CATEGORIES, _OPTIMIZER_STEP),
        (_PYTHON_CATEGORIES, _OPTIMIZER_FRAME),
    ):
        found = on_thread & sets.matching(categories, pattern)
        if found.any():
            return int(np.bincount(timeline.name_id_E[found]).max())
    return None


def find_loader_waits(timeline: Timeline, lanes: Lanes) -> tuple[Int64, Int64]:
    """Return (start, end) of the loader's ``__next__`` on the training thread, disjoint."""
    sets = NameSets(timeline)
    on_thread = lanes.track_E == lanes.training_track
    waits = on_thread & sets.matching(_ANNOTATION_CATEGORIES, _LOADER)
    if not waits.any():
        waits = on_thread & sets.matching(_PYTHON_CATEGORIES, _LOADER_FRAME)
    return union(timeline, waits)


def union(timeline: Timeline, events: Bool) -> tuple[Int64, Int64]:
    """Return the union of the events as disjoint sorted intervals."""
    start = timeline.start_ns_E[events]
    end = start + timeline.duration_ns_E[events]
    order = np.argsort(start, kind="stable")
    return union_of(start[order], end[order])


def union_of(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Return the union of intervals that are sorted by start."""
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    begins = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(begins)[1:] - 1, [len(start) - 1]))
    return start[begins], reach[last]
