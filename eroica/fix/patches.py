"""A model's answer in plain text -> edits: search/replace blocks, unified diffs, whole functions.

Code is never carried in JSON and line numbers are never trusted. What a block means is decided
by the matcher against the file; what may be written, by the gates.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

MAX_ANSWER = 400_000  # characters; nobody's patch is longer, but a runaway answer is

_SEARCH = re.compile(r"^\s{0,3}<{5,9}\s*(?:SEARCH|ORIGINAL|HEAD)?\b.*$", re.I)
_DIVIDE = re.compile(r"^\s{0,3}={5,9}\s*$")
_REPLACE = re.compile(r"^\s{0,3}>{5,9}\s*(?:REPLACE|UPDATED)?\b.*$", re.I)
_FENCE = re.compile(r"^\s{0,3}(```+|~~~+)\s*([\w+.-]*(?=\s|$)|)\s*(.*)$")
_PATH = re.compile(
    r"^[\s#>*\-]*(?:(?:file(?:name)?|path|in)\s*:?\s*)?[`*\"']*((?:[A-Za-z]:)?[^\s`*\"':]+\.\w+)[`*\"']*:?\s*$",
    re.I,
)
_OLD = re.compile(r"^--- (?:\"?)(.+?)(?:\"?)(?:\t.*)?$")
_NEW = re.compile(r"^\+\+\+ (?:\"?)(.+?)(?:\"?)(?:\t.*)?$")
_V4A = re.compile(r"^\*\*\* (Update|Add|Delete) File: (.+)$")
_DEFINITION = re.compile(r"^[ \t]*(?:@|(?:async\s+)?def\s|class\s)")


@dataclass(frozen=True)
class Line:
    """One line of a block: kept, taken out or put in."""

    mark: Literal[" ", "-", "+"]
    text: str


@dataclass(frozen=True)
class Edit:
    """One change an answer asks for. ``path`` is as the model wrote it, without a/ and b/."""

    path: str
    kind: Literal["block", "function"]
    lines: tuple[Line, ...] = field(default=())
    """Of a block: context, minus and plus lines in order."""
    text: str = ""
    """Of a function: its whole new text."""

    @property
    def old(self) -> list[str]:
        return [line.text for line in self.lines if line.mark != "+"]

    @property
    def new(self) -> list[str]:
        return [line.text for line in self.lines if line.mark != "-"]


def parse_answer(text: str) -> list[Edit]:
    """Return the edits of an answer, in order; an empty list where it holds none.

    ValueError for an answer that was cut off inside a block.
    """
    if len(text) > MAX_ANSWER:
        raise ValueError(f"the answer has {len(text)} characters, at most {MAX_ANSWER}")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    edits = _search_replace(lines)
    if not edits:
        edits = _diffs(lines)
    return edits or _functions(lines)


def _path_above(lines: list[str], at: int) -> str:
    """The file a block is for: named in the lines right above it, fences skipped."""
    for line in reversed(lines[max(0, at - 4) : at]):
        fence = _FENCE.match(line)
        if fence:
            named = _PATH.match(fence[3]) or _PATH.match(fence[2])
            if named:
                return named[1]
            continue
        named = _PATH.match(line)
        if named:
            return named[1]
        if line.strip() and not _SEARCH.match(line):
            return ""
    return ""


def _search_replace(lines: list[str]) -> list[Edit]:
    found: list[Edit] = []
    state, start, path = "", 0, ""
    search: list[str] = []
    replace: list[str] = []
    for at, line in enumerate(lines):
        if state == "" and _SEARCH.match(line):
            state, start, search, replace = "search", at, [], []
            path = _path_above(lines, at) or (found[-1].path if found else "")
        elif state == "search" and _DIVIDE.match(line):
            state = "replace"
        elif state == "replace" and _REPLACE.match(line):
            found.append(Edit(path, "block", tuple(marked(search, replace))))
            state = ""
        elif state == "search":
            search.append(line)
        elif state == "replace":
            replace.append(line)
    if state:
        raise ValueError(f"the block that begins on line {start + 1} of the answer has no end")
    return found


def marked(old: list[str], new: list[str]) -> list[Line]:
    """Return two versions as one list of kept, taken and added lines."""
    from difflib import SequenceMatcher

    out: list[Line] = []
    for tag, i, j, k, m in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag == "equal":
            out += [Line(" ", text) for text in old[i:j]]
        else:
            out += [Line("-", text) for text in old[i:j]]
            out += [Line("+", text) for text in new[k:m]]
    return out


def _strip_prefix(path: str) -> str:
    path = path.strip().strip("`\"'")
    return path[2:] if path.startswith(("a/", "b/")) else path


def _diffs(lines: list[str]) -> list[Edit]:
    """Hunks of unified diffs and of ``*** Update File`` patches; their numbers are ignored."""
    found: list[Edit] = []
    path, inside = "", False
    hunk: list[Line] = []

    def close() -> None:
        if any(line.mark != " " for line in hunk):
            while hunk and hunk[-1] == Line(" ", ""):
                hunk.pop()
            found.append(Edit(path, "block", tuple(hunk)))
        hunk.clear()

    at = 0
    while at < len(lines):
        line = lines[at]
        update, old = _V4A.match(line), _OLD.match(line)
        new = _NEW.match(lines[at + 1]) if old and at + 1 < len(lines) else None
        if old and new:
            close()
            target = _strip_prefix(new[1])
            path = _strip_prefix(old[1]) if target == "/dev/null" else target
            at, inside = at + 2, False
            continue
        if update:
            close()
            path, inside = update[2].strip(), False
        elif line.startswith("@@") and path:
            close()
            inside = True
        elif inside and (_FENCE.match(line) or line.startswith("*** End")):
            close()
            inside = False
        elif inside and line.startswith("\\ No newline"):
            pass
        elif inside and line[:1] in ("+", "-", " "):
            hunk.append(Line(line[0], line[1:]))  # type: ignore[arg-type]
        elif inside and line == "":
            hunk.append(Line(" ", ""))
        elif inside:
            close()
            inside = False
        at += 1
    close()
    return found


def _functions(lines: list[str]) -> list[Edit]:
    """Fenced code that is one definition, with the file named above it or in the fence."""
    found: list[Edit] = []
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if not fence:
            at += 1
            continue
        end = next((i for i in range(at + 1, len(lines)) if lines[i].strip() == fence[1]), None)
        if end is None:
            raise ValueError(f"the code that begins on line {at + 1} of the answer has no end")
        body = lines[at + 1 : end]
        named = _PATH.match(fence[3]) or _PATH.match(fence[2])
        comment = _PATH.match(body[0]) if body and body[0].lstrip().startswith("#") else None
        path = named[1] if named else (comment[1] if comment else _path_above(lines, at))
        if comment:
            body = body[1:]
        first = next((line for line in body if line.strip()), "")
        if path and _DEFINITION.match(first):
            found.append(Edit(path, "function", text="\n".join(body).strip("\n") + "\n"))
        at = end + 1
    return found
