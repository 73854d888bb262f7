"""A hunk in the person's own editor."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from eroica.review.hunks import Hunk, combine


def edited(hunk: Hunk, before: str) -> list[str] | None:
    """Return the lines that shall stand for all the hunk spans; None if nothing was changed.

    Opens $VISUAL or $EDITOR on the proposed lines and waits; the terminal must be free.
    """
    proposed = proposed_lines(hunk, before)
    with tempfile.TemporaryDirectory(prefix="eroica-edit-") as folder:
        path = Path(folder) / f"hunk{Path(hunk.path).suffix or '.txt'}"
        path.write_text("".join(proposed))
        editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
        try:
            status = subprocess.call([*editor, str(path)])
        except OSError:
            return None
        lines = path.read_text().splitlines(keepends=True)
    return lines if status == 0 and lines != proposed else None


def proposed_lines(hunk: Hunk, before: str) -> list[str]:
    """The lines from the hunk's first to its last change, as proposed."""
    first, last = hunk.changes[0].start, hunk.changes[-1].end
    old = before.splitlines(keepends=True)
    after = combine(before, list(hunk.changes)).splitlines(keepends=True)
    return after[first : len(after) - (len(old) - last)]
