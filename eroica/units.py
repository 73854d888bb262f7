"""Numbers to text for people; the only place that rounds."""

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def duration(ns: float) -> str:
    """Return a duration with the unit a person would pick, e.g. ``34 s`` or ``8.5 ms``."""
    if ns < 0:
        return "-" + duration(-ns)
    # Rounded first, then the unit: 119.6 s is 2 min 0 s, 999.96 ms is 1.0 s.
    seconds = ns / NS_PER_S
    whole = round(seconds)
    if whole >= 5400:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60} min"
    if whole >= 120:
        return f"{whole // 60} min {whole % 60} s"
    if round(seconds, 1) >= 10:
        return f"{whole} s"
    if _three_digits(seconds * 1e3) >= 1000:
        return f"{seconds:.1f} s"
    if _three_digits(seconds * 1e6) >= 1000:
        return f"{_three_digits(seconds * 1e3):g} ms"
    return f"{_three_digits(seconds * 1e6):g} µs"  # the micro sign people type


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def share(fraction: float) -> str:
    """Return a fraction 0..1 as whole percent, keeping small ones visible."""
    percent = fraction * 100
    if 0 < percent < 0.5:
        return "<1 %"
    if 99.5 <= percent < 100:
        return ">99 %"
    return f"{percent:.0f} %"


def size(num_bytes: float) -> str:
    """Return a number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(_three_digits(num_bytes)) < 1000:
            return f"{_three_digits(num_bytes):g} {unit}"
        num_bytes /= 1000
    return f"{_three_digits(num_bytes):g} TB"


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
