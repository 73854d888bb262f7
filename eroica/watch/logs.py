"""Reads the job's output as a log."""

import tempfile
from pathlib import Path

from eroica.errors import EroicaError
from eroica.records import LogEvent


def read_log_text(text: str) -> tuple[LogEvent, ...]:
    """Return what matters in a text of log lines; empty where there is nothing."""
    if not text.strip():
        return ()
    try:
        from eroica.read.logs import read_log
    except ModuleNotFoundError:
        return ()

    with tempfile.TemporaryDirectory(prefix="eroica-") as name:
        path = Path(name) / "output.log"
        path.write_text(text, errors="replace")
        try:
            events: tuple[LogEvent, ...] = read_log(path)
        except EroicaError:
            return ()
    return events
