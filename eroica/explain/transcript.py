"""The record of every call to a model, kept beside the incident for its owner alone."""

import json
import os
from pathlib import Path

from eroica.explain.model import Usage


def append_private(path: Path, record: dict[str, object]) -> None:
    """Append one JSON line to a file that only its owner can read."""
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "ab") as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.write(line)


def used(path: Path) -> tuple[Usage, tuple[str, ...]]:
    """Return what all calls of a transcript used together, and of which models."""
    usage, models = Usage(), dict[str, None]()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:  # a line that was cut off by a full disk
            continue
        usage.calls += 1
        usage.input_tokens += int(record.get("input_tokens") or 0)
        usage.output_tokens += int(record.get("output_tokens") or 0)
        usage.seconds += float(record.get("seconds") or 0.0)
        models[str(record.get("model") or "")] = None
    return usage, tuple(models)
