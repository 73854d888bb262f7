"""The few facts of a trace that stand in its head: rank and world size."""

from pathlib import Path

from eroica.errors import InputError
from eroica.read import kineto_head
from eroica.read.inputs import TraceInput
from eroica.read.source import warning_of
from eroica.records import Warning


def trace_head(path: Path, rank: int | None, warnings: list[Warning]) -> TraceInput | None:
    """Look into a trace's head; what it says of its rank counts before its name."""
    try:
        head = kineto_head.sniff(path)
    except InputError as error:
        warnings.append(warning_of(error, path))
        return None
    num_bytes = path.stat().st_size
    if head is None:  # cut off before its events, perhaps; the reader says what is wrong
        return TraceInput(path, rank, None, num_bytes)
    return TraceInput(
        path,
        head.rank if head.rank is not None else rank,
        head.world_size,
        num_bytes,
        head.host,
        backend=head.backend,
    )
