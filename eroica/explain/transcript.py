"""The record of every call to a model, kept beside the incident for its owner alone."""

import json
import os
from pathlib import Path


def append_private(path: Path, record: dict[str, object]) -> None:
    """Append one JSON line to a file that only its owner can read."""
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "ab") as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.write(line)
