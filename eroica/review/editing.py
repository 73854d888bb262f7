"""A hunk in the person's own editor."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from eroica.fix.diff import lines_of
from eroica.review.hunks import Hunk, combine


def edited(hunk: Hunk, before: str) -> list[str] | None:
    """Return the lines that shall stand for all the hunk spans; None if nothing was changed.

    Opens $VISUAL or $EDITOR on the proposed lines and waits; the terminal must be free. Line ends
    stay what they are in the file, whatever the editor makes of them.
    """
    proposed = proposed_lines(hunk, before)
    with tempfile.TemporaryDirectory(prefix="eroica-edit-") as folder:
        path = Path(folder) / f"hunk{Path(hunk.path).suffix or '.txt'}"
        with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(proposed)
        try:
            editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
            status = subprocess.call([*(editor or ["vi"]), str(path)])
            with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
        except (OSError, ValueError):  # ValueError: a quote left open in $EDITOR
            return None
    lines = with_ends_of(proposed or lines_of(before), text)
    return lines if status == 0 and lines != proposed else None


def with_ends_of(model: list[str], text: str) -> list[str]:
    """Return the text's lines with line ends like the model's, the last one's included."""
    is_crlf = bool(model) and all(line.endswith("\r\n") for line in model if line[-1:] == "\n")
    is_crlf = is_crlf and any(line.endswith("\n") for line in model)
    plain = text.replace("\r\n", "\n") if is_crlf else text
    lines = lines_of(plain)
    if lines and (not model or model[-1].endswith("\n")):
        lines[-1] += "" if lines[-1].endswith("\n") else "\n"
    elif lines:
        lines[-1] = lines[-1].rstrip("\n")
    return [line.replace("\n", "\r\n") for line in lines] if is_crlf else lines


def proposed_lines(hunk: Hunk, before: str) -> list[str]:
    """The lines from the hunk's first to its last change, as proposed."""
    first, last = hunk.changes[0].start, hunk.changes[-1].end
    old = lines_of(before)
    after = lines_of(combine(before, list(hunk.changes)))
    return after[first : len(after) - (len(old) - last)]
