"""Numbers to text for people; the only place that rounds."""

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def duration(ns: float) -> str:
    """Return a duration with the unit a person would pick, e.g. ``34 s`` or ``8.5 ms``."""
    seconds = ns / NS_PER_S
    if seconds < 0:
        return "-" + duration(-ns)
    if seconds >= 5400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    if seconds >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"  # the micro sign people type


def share(fraction: float) -> str:
    """Return a fraction 0..1 as whole percent, keeping small ones visible."""
    percent = fraction * 100
    if 0 < percent < 1:
        return "<1 %"
    return f"{percent:.0f} %"


def size(num_bytes: float) -> str:
    """Return a number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def ranks(values: "list[int] | tuple[int, ...]") -> str:
    """Fold ranks into ranges: ``[0, 1, 2, 5]`` becomes ``0-2,5``."""
    parts: list[str] = []
    ordered = sorted(set(values))
    start = previous = None
    for value in [*ordered, None]:
        if start is None:
            start = previous = value
        elif previous is not None and value == previous + 1:
            previous = value
        else:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = previous = value
    return ",".join(parts)


def rank_phrase(values: "list[int] | tuple[int, ...]") -> str:
    """``rank 2`` or ``ranks 0-2,5``."""
    return ("rank " if len(set(values)) == 1 else "ranks ") + ranks(values)
