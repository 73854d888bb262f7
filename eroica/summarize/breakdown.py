"""What held the window: compute, exposed communication, memory, data, Python, idle.

The fractions come from one sweep in which every nanosecond has one owner, so they add up to 1 by
construction. ``data`` is the time the training thread was inside the loader's ``__next__`` while
the device did not compute; on a CPU-only job also the operators of a dataset run in the process.
``python`` is all other host work, operators and runtime calls of a GPU job included.
"""

import numpy as np

from eroica.columns import Int64, Timeline
from eroica.summarize.classify import (
    LANE_COLLECTIVE,
    LANE_DEVICE,
    LANE_MEMORY,
    LEVEL_COLLECTIVE,
    LEVEL_COMPUTE,
    LEVEL_HOST,
    LEVEL_MEMORY,
    NUM_LEVELS,
    classify,
)
from eroica.summarize.steps import union_of

PARTS = ("compute", "exposed_communication", "memory", "data", "python", "idle")


def break_down(level_ns_LD: Int64, *, has_device: bool) -> dict[str, float]:
    """Return the six fractions from the sweep's time by level and by inside-loader-or-not."""
    total = int(level_ns_LD.sum())
    if total <= 0:
        return {part: 1.0 if part == "idle" else 0.0 for part in PARTS}
    outside, inside = level_ns_LD[:, 0], level_ns_LD[:, 1]
    compute = int(outside[LEVEL_COMPUTE]) + (int(inside[LEVEL_COMPUTE]) if has_device else 0)
    data = int(inside.sum()) - (int(inside[LEVEL_COMPUTE]) if has_device else 0)
    ns = {
        "compute": compute,
        "exposed_communication": int(outside[LEVEL_COLLECTIVE]),
        "memory": int(outside[LEVEL_MEMORY]),
        "data": data,
        "python": int(outside[LEVEL_HOST:NUM_LEVELS].sum()),
        "idle": int(outside[NUM_LEVELS]),
    }
    return {part: value / total for part, value in ns.items()}


def device_times(timeline: Timeline) -> dict[str, int]:
    """Return ns of compute, non_compute, idle and kernel time between first and last device event.

    The definition of HolisticTraceAnalysis' temporal breakdown: compute is the union of kernels
    that are no collective, non-compute what is left of the union of all device work.
    """
    lane_E = classify(timeline).lane_E
    order = np.argsort(timeline.start_ns_E, kind="stable")
    end_ns_E = timeline.end_ns_E

    def covered(lanes: tuple[int, ...]) -> tuple[int, int, int]:
        events = order[np.isin(lane_E[order], lanes)]
        start, end = union_of(timeline.start_ns_E[events], end_ns_E[events])
        return (int((end - start).sum()), int(start[0]), int(end[-1])) if len(start) else (0, 0, 0)

    compute = covered((LANE_DEVICE,))[0]
    busy, first, last = covered((LANE_DEVICE, LANE_MEMORY, LANE_COLLECTIVE))
    return {
        "compute": compute,
        "non_compute": busy - compute,
        "idle": last - first - busy,
        "kernel": last - first,
    }
