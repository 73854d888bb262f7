"""Where two patches get in each other's way."""

from difflib import SequenceMatcher

from eroica.fix.diff import merge
from eroica.records import FileEdit, Patch


def overlaps(first: Patch, second: Patch) -> list[str]:
    """Return where two patches change the same lines: ``train.py:12-15``, of the file before."""
    found = []
    for one in first.edits:
        for other in second.edits:
            if one.path != other.path:
                continue
            if one.before != other.before:
                found.append(f"{one.path} (made for two versions of it)")
                continue
            if merge(one.before, one.after, other.after) is not None:
                continue
            mine, theirs = changed_spans(one), changed_spans(other)
            pairs = [(a, b) for a in mine for b in theirs if a[0] <= b[1] and b[0] <= a[1]]
            found += [f"{one.path}:{max(a[0], b[0])}-{min(a[1], b[1])}" for a, b in pairs] or [
                one.path
            ]
    return found


def changed_spans(edit: FileEdit) -> list[tuple[int, int]]:
    """Return the first and last line, from 1, of each run of lines that an edit changes."""
    matcher = SequenceMatcher(None, edit.before.split("\n"), edit.after.split("\n"), autojunk=False)
    return [
        (start + 1, max(start + 1, end))
        for tag, start, end, _, _ in matcher.get_opcodes()
        if tag != "equal"
    ]
