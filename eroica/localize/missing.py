"""Ranks of which nothing was collected, named without going through a million of them."""

from collections.abc import Iterable

MAX_RANGES = 16
"""A person reads no more; the rest is counted."""


def absent_ranges(present: Iterable[int], world_size: int) -> list[tuple[int, int]]:
    """Return the gaps of ``range(world_size)`` as (first, last)."""
    found = []
    begin = 0
    for rank in sorted({r for r in present if 0 <= r < world_size}):
        if rank > begin:
            found.append((begin, rank - 1))
        begin = rank + 1
    if begin < world_size:
        found.append((begin, world_size - 1))
    return found


def absent_phrase(present: Iterable[int], world_size: int) -> str:
    """``rank 2``, ``ranks 1,4-7`` or ``ranks 0,2,... and 40 more``; empty where nobody lacks."""
    gaps = absent_ranges(present, world_size)
    said, rest = gaps[:MAX_RANGES], gaps[MAX_RANGES:]
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in said)
    more = sum(b - a + 1 for a, b in rest)
    if not said:
        return ""
    is_one = not rest and len(said) == 1 and said[0][0] == said[0][1]
    return f"{'rank' if is_one else 'ranks'} {text}{f' and {more} more' if more else ''}"
