"""Finds where a block belongs and puts it there: uniquely, or not at all.

Lines are compared exactly, then without trailing blanks, then shifted by one indentation, then
with whitespace collapsed. However loosely a block was found, it is spliced by its marks: kept
lines stay as the file has them, minus lines go, plus lines come in as written, moved by the
indentation their neighbors were found at.
"""

import ast
import difflib
import re
import textwrap
from collections.abc import Callable, Sequence

from eroica.fix.distributed import UNREADABLE
from eroica.fix.patches import Edit, Line

MAX_SHRINK = 3  # outer context lines of a hunk that may be wrong


class NoMatch(Exception):
    """A block has no place in the file, or several; ``nearest`` quotes the closest lines."""

    def __init__(self, reason: str, nearest: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.nearest = tuple(nearest)


def _exact(line: str) -> str:
    return line


def _right(line: str) -> str:
    return line.rstrip()


def _collapsed(line: str) -> str:
    return " ".join(line.split())


LEVELS: tuple[Callable[[str], str], ...] = (_exact, _right, _collapsed)


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return a file's text with all its edits; NoMatch where one has no unique place."""
    newline = "\r\n" if "\r\n" in text else "\n"
    plain = text.replace("\r\n", "\n")
    _refuse_rivals(edits)
    for edit in edits:
        plain = _function(plain, edit) if edit.kind == "function" else _block(plain, edit)
    return plain.replace("\n", newline) if newline == "\r\n" else plain


def _refuse_rivals(edits: Sequence[Edit]) -> None:
    """Two blocks that change the same lines differently are two patches: the answer must choose."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for edit in edits:
        key = tuple(edit.old)
        if edit.kind == "block" and key in seen and seen[key] != edit.new:
            raise NoMatch("the answer holds two different patches for the same lines")
        seen[key] = edit.new


def _block(text: str, edit: Edit) -> str:
    lines = text.split("\n")
    marks = list(edit.lines)
    while marks and marks[0] == Line(" ", "") and len(marks) > 1:
        marks.pop(0)
    if not any(line.mark != "+" and line.text.strip() for line in marks):
        raise NoMatch("the block does not say which lines it replaces")
    if all(line.mark == " " for line in marks):
        raise NoMatch("the block changes nothing")
    for shrink in range(MAX_SHRINK + 1):
        for head, tail in _shrinks(marks, shrink):
            part = marks[head : len(marks) - tail]
            for level in LEVELS:
                places = find_block(lines, [x.text for x in part if x.mark != "+"], level)
                if len(places) > 1:
                    where = ", ".join(str(p + 1) for p in places[:5])
                    raise NoMatch(f"the block fits more than one place: lines {where}")
                if places:
                    return "\n".join(splice(lines, part, places[0]))
    new = [x.text for x in marks if x.mark != "-"]
    if any(x.mark == "+" for x in marks) and find_block(lines, new, _right):
        raise NoMatch("the change is already in the file")
    raise NoMatch("the lines to replace are not in the file", nearest(lines, edit.old))


def _shrinks(marks: list[Line], count: int) -> list[tuple[int, int]]:
    """How many context lines to drop at each end so that ``count`` are gone in all."""
    head = next((i for i, x in enumerate(marks) if x.mark != " "), 0)
    tail = next((i for i, x in enumerate(reversed(marks)) if x.mark != " "), 0)
    old = sum(x.mark != "+" for x in marks)
    found = []
    for first in range(count + 1):
        last = count - first
        if first <= head and last <= tail and old - count >= 1:
            found.append((first, last))
    return found


def find_block(lines: list[str], block: list[str], level: Callable[[str], str]) -> list[int]:
    """Return every index at which a block stands, compared at one level."""
    wanted = [level(line) for line in block]
    if not any(line.strip() for line in wanted):
        return []
    have = [level(line) for line in lines]
    return [
        at for at in range(len(have) - len(wanted) + 1) if have[at : at + len(wanted)] == wanted
    ]


def splice(lines: list[str], part: list[Line], at: int) -> list[str]:
    """Put a block at its place by its marks."""
    indents = indent_map(lines, part, at)
    out: list[str] = []
    position = at
    for line in part:
        if line.mark == "+":
            out.append(_moved(line.text, indents))
            continue
        if line.mark == " ":
            out.append(lines[position])
        position += 1
    return [*lines[:at], *out, *lines[position:]]


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" \t"))]


def indent_map(lines: list[str], part: list[Line], at: int) -> dict[str, str]:
    """Map the block's indentations to the file's, where the two were found to differ."""
    found: dict[str, str] = {}
    for number, line in enumerate(x for x in part if x.mark != "+"):
        have = lines[at + number]
        if line.text.strip():
            found.setdefault(_indent(line.text), _indent(have))
    return found


def _moved(text: str, indents: dict[str, str]) -> str:
    """A plus line at the file's indentation; deeper than any known one keeps its extra depth."""
    if not text.strip() or all(k == v for k, v in indents.items()):
        return text
    own = _indent(text)
    if own in indents:
        return indents[own] + text[len(own) :]
    base = max((k for k in indents if own.startswith(k)), key=len, default=None)
    if base is None:
        return text
    extra = own[len(base) :]
    if "\t" in indents[base] and "\t" not in extra:
        extra = "\t" * max(1, len(extra) // 4)
    return indents[base] + extra + text[len(own) :]


def nearest(lines: list[str], wanted: list[str], around: int = 2) -> list[str]:
    """Return the lines of the file that are most like a block, with their numbers."""
    if not wanted or not lines:
        return []
    size, target = len(wanted), "\n".join(map(_collapsed, wanted))
    best, where = 0.0, None
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(target)
    for at in range(max(1, len(lines) - size + 1)):
        matcher.set_seq1("\n".join(map(_collapsed, lines[at : at + size])))
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best:
            ratio = matcher.ratio()
            if ratio > best:
                best, where = ratio, at
    if where is None or best < 0.4:
        return []
    first, last = max(0, where - around), min(len(lines), where + size + around)
    return [f"{number + 1}: {lines[number]}" for number in range(first, last)]


def _function(text: str, edit: Edit) -> str:
    """Replace the one definition of that name, decorators included."""
    new = textwrap.dedent(edit.text)
    try:
        made = ast.parse(new).body
        have = ast.parse(text.removeprefix("\ufeff"))
    except UNREADABLE as error:
        raise NoMatch(f"the function does not parse: {error}") from error
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if len(made) != 1 or not isinstance(made[0], kinds):
        raise NoMatch("the code is not one whole function")
    name = made[0].name
    same = [n for n in ast.walk(have) if isinstance(n, kinds) and n.name == name]
    if len(same) != 1:
        count = "no" if not same else f"{len(same)}"
        raise NoMatch(f"the file has {count} definitions of {name}")
    node = same[0]
    lines = text.split("\n")
    start = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    prefix = re.match(r"[ \t]*", lines[start])
    moved = textwrap.indent(new.rstrip("\n"), prefix[0] if prefix else "")
    return "\n".join([*lines[:start], *moved.split("\n"), *lines[node.end_lineno :]])
