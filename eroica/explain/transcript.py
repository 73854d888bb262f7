"""The record of every call to a model, kept beside the incident for its owner alone."""

import json
from contextlib import suppress
from pathlib import Path

import msgspec

from eroica.errors import EroicaError
from eroica.explain.model import Usage
from eroica.files import append_line, read_plain

_LARGEST = 1 << 30


class _Call(msgspec.Struct):
    """What is summed up of a call."""

    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    model: str = ""


def append_private(path: Path, record: dict[str, object]) -> None:
    """Append one JSON line to a file that only its owner can read; EroicaError if it cannot be."""
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_line(path, line)
    except OSError as error:
        raise EroicaError(
            f"the call to the model cannot be written down in {path}",
            str(error),
            next_step="free some space, or move the file away",
        ) from error


def used(path: Path) -> tuple[Usage, tuple[str, ...]]:
    """Return what all calls of a transcript used together, and of which models."""
    usage, models = Usage(), dict[str, None]()
    lines = read_plain(path, _LARGEST).splitlines() if path.is_file() else ()
    for line in lines:
        with suppress(msgspec.DecodeError):  # a line that was cut off by a full disk
            call = msgspec.json.decode(line, type=_Call)
            usage.calls += 1
            usage.input_tokens += call.input_tokens
            usage.output_tokens += call.output_tokens
            usage.seconds += call.seconds
            models[call.model] = None
    return usage, tuple(models)
