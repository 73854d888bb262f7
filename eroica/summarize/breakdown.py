"""What held the window: compute, exposed communication, memory, data, Python, idle.

The fractions come from one sweep in which every nanosecond has one owner, so they add up to 1 by
construction. ``data`` is the time the training thread was inside the loader's ``__next__`` while
the device did not compute; on a CPU-only job also the operators of a dataset run in the process.
``python`` is all other host work, operators and runtime calls of a GPU job included.
"""

from eroica.columns import Int64
from eroica.summarize.classify import (
    LEVEL_COLLECTIVE,
    LEVEL_COMPUTE,
    LEVEL_HOST,
    LEVEL_MEMORY,
    NUM_LEVELS,
)

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
