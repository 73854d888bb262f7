"""Unified diffs and line-level merging of edits to one file."""

import difflib
import hashlib
import itertools
from collections.abc import Iterable

from eroica.records import FileEdit


def sha256(text: str | bytes) -> str:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()


def file_edit(path: str, before: str, after: str) -> FileEdit:
    return FileEdit(path=path, before=before, after=after, sha256=sha256(before))


def unified(edits: Iterable[FileEdit], context: int = 3) -> str:
    """Return a diff that ``git apply`` and ``patch -p1`` take, new and deleted files included."""
    return "".join(_one(edit, context) for edit in edits)


def lines_of(text: str) -> list[str]:
    """Split at newlines only: form feeds and other line ends stay inside their line."""
    parts = text.split("\n")
    lines = [part + "\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _one(edit: FileEdit, context: int) -> str:
    old = "/dev/null" if not edit.before else f"a/{edit.path}"
    out: list[str] = []
    lines = difflib.unified_diff(
        lines_of(edit.before), lines_of(edit.after), old, f"b/{edit.path}", n=context
    )
    for line in lines:
        out.append(line)
        if not line.endswith("\n"):
            out.append("\n\\ No newline at end of file\n")
    return "".join(out)


def merge(base: str, mine: str, theirs: str) -> str | None:
    """Return base with both changes; None where they touch the same or adjoining lines."""
    lines = lines_of(base)
    changes = sorted(
        {*_changes(lines, lines_of(mine)), *_changes(lines, lines_of(theirs))},
        key=lambda change: change[:2],
    )
    for (first, end, one), (start, last, two) in itertools.pairwise(changes):
        both_imports = first == end == start == last and _are_imports(one) and _are_imports(two)
        if start <= end and not both_imports:
            return None
    merged = list(lines)
    for start, end, new in reversed(changes):
        merged[start:end] = new
    return "".join(merged)


def _are_imports(lines: tuple[str, ...]) -> bool:
    return all(line.startswith(("import ", "from ")) for line in lines)


def _changes(base: list[str], new: list[str]) -> list[tuple[int, int, tuple[str, ...]]]:
    codes = difflib.SequenceMatcher(a=base, b=new, autojunk=False).get_opcodes()
    return [(i, j, tuple(new[k:m])) for tag, i, j, k, m in codes if tag != "equal"]
