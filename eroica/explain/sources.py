"""The user's source for a place in it: the enclosing function with real line numbers, commits.

Files are only read below the project's root, only as text, and only up to a size.
"""

import ast
import hashlib
import logging
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eroica import git
from eroica.files import is_inside, read_plain
from eroica.records import Place

_LOG = logging.getLogger(__name__)
_MAX_LINES = 120
_CONTEXT = 12
_MAX_USED_LINES = 60
_GIT_SECONDS = 5.0
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Excerpt:
    """Lines ``first``..``last`` of one file, 1-based and inclusive."""

    file: str
    """Relative to the root, with forward slashes."""
    first: int
    last: int
    lines: tuple[str, ...]
    about: str = ""
    mark: int | None = None
    """The line the excerpt is about."""

    @property
    def text(self) -> str:
        """The lines with their numbers; ``>`` marks the one it is about."""
        return "\n".join(
            f"{'>' if number == self.mark else ' '}{number:5d}  {line}"
            for number, line in enumerate(self.lines, self.first)
        )

    @property
    def sha256(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode("utf-8", "replace")).hexdigest()


class Sources:
    """Files below one root, each read once.

    ``recorded_root``: where the project lay when the job ran, so that paths of that machine are
    found below the root given here.
    """

    def __init__(self, root: str | Path | None, recorded_root: str | None = None) -> None:
        self.root = Path(root).resolve() if root else None
        self._recorded = recorded_root.rstrip("/") + "/" if recorded_root else ""
        self._files: dict[str, list[str] | None] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self._definitions: dict[str, list[Definition]] = {}

    def relative(self, file: str) -> str | None:
        """Return a file's path below the root, None where it lies outside or is not there."""
        if self.root is None or not file or file.startswith("<") or "\0" in file:
            return None
        if self._recorded and file.startswith(self._recorded):
            file = file[len(self._recorded) :]
        path = Path(os.path.realpath(self.root / file))
        if path.suffix != ".py" or not is_inside(path, self.root):
            return None
        return path.relative_to(self.root).as_posix()

    def lines(self, file: str) -> list[str] | None:
        """Return a file's lines, None where it cannot be shown."""
        if file not in self._files:
            self._files[file] = self._read(file)
        return self._files[file]

    def _read(self, file: str) -> list[str] | None:
        relative = self.relative(file)
        if relative is None or self.root is None:
            return None
        try:
            data = read_plain(self.root / relative)
        except OSError as error:
            _LOG.debug("no source for %s: %s", file, error)
            return None
        if b"\0" in data:
            return None
        return data.decode("utf-8", "replace").splitlines()

    def _tree(self, file: str) -> ast.Module | None:
        """A file's syntax, parsed once; None where it has none."""
        if file not in self._trees:
            self._trees[file] = _parse(self.lines(file) or [])
        return self._trees[file]

    def _defined_in(self, file: str) -> "list[Definition]":
        """Its functions and classes, in the order of ``ast.walk``."""
        if file not in self._definitions:
            tree = self._tree(file)
            nodes = ast.walk(tree) if tree is not None else ()
            self._definitions[file] = [node for node in nodes if isinstance(node, Definition)]
        return self._definitions[file]

    def function(self, place: Place, about: str = "") -> Excerpt | None:
        """Return the function around a place, cut to the lines near it where it is long."""
        relative = self.relative(place.file or "")
        lines = self.lines(place.file or "") if relative else None
        if not lines or relative is None or not place.line or place.line > len(lines):
            return None
        first, last = _enclosing(self._defined_in(relative), place.line, len(lines))
        if last - first + 1 > _MAX_LINES:
            first = max(first, place.line - _MAX_LINES // 2)
            last = min(last, first + _MAX_LINES - 1)
        return Excerpt(relative, first, last, tuple(lines[first - 1 : last]), about, place.line)

    def whole(self, file: str, about: str = "") -> Excerpt | None:
        relative = self.relative(file)
        lines = self.lines(file) if relative else None
        if not lines or relative is None:
            return None
        return Excerpt(relative, 1, len(lines), tuple(lines), about)

    def head(self, file: str) -> Excerpt | None:
        """Return a file's imports: a patch needs to know what is there already."""
        relative = self.relative(file)
        lines = self.lines(file) if relative else None
        if not lines or relative is None:
            return None
        last = _last_import(self._tree(relative))
        if not last:
            return None
        first = next(n for n, line in enumerate(lines, 1) if line.strip())
        first = max(first, last - 60)
        return Excerpt(relative, first, last, tuple(lines[first - 1 : last]), "imports")

    def used_by(self, excerpt: Excerpt, limit: int = 4) -> list[Excerpt]:
        """Return what the excerpt uses of its own file: functions, classes, constants."""
        lines = self.lines(excerpt.file) or []
        tree = self._tree(excerpt.file)
        words = set(re.findall(r"[A-Za-z_]\w*", "\n".join(excerpt.lines)))
        found: list[Excerpt] = []
        for node in tree.body if tree is not None else ():
            names = _defined(node)
            first, last = node.lineno, node.end_lineno or node.lineno
            is_shown = excerpt.first <= first and last <= excerpt.last
            if names & words and not is_shown and last - first < _MAX_USED_LINES:
                text = tuple(lines[first - 1 : last])
                found.append(Excerpt(excerpt.file, first, last, text, "used by it"))
        return found[:limit]

    def class_of(self, excerpt: Excerpt) -> list[Excerpt]:
        """Return the class a method stands in: whole where it is short, else how it is set up."""
        lines = self.lines(excerpt.file) or []
        around = [
            node
            for node in self._defined_in(excerpt.file)
            if isinstance(node, ast.ClassDef)
            and node.lineno < excerpt.first
            and excerpt.last <= (node.end_lineno or 0)
        ]
        if not around:
            return []
        found = max(around, key=lambda node: node.lineno)
        spans = [(found.lineno, found.end_lineno or found.lineno)]
        if spans[0][1] - spans[0][0] >= _MAX_USED_LINES:
            used = {"__init__", *re.findall(r"self\.(\w+)", "\n".join(excerpt.lines))}
            spans = [
                (node.lineno, min(node.end_lineno or node.lineno, node.lineno + _MAX_USED_LINES))
                for node in found.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in used
            ]
        return [
            Excerpt(excerpt.file, first, last, tuple(lines[first - 1 : last]), "its class")
            for first, last in spans
        ]

    def started_by(self, excerpt: Excerpt) -> list[Excerpt]:
        """Return the short scripts of the project that an excerpt names, e.g. to start them."""
        named = re.findall(r"""["']([\w./-]+\.py)["']""", "\n".join(excerpt.lines))
        found = [self.whole(file, "a script it names") for file in dict.fromkeys(named)]
        return [one for one in found if one is not None and one.last <= _MAX_LINES]

    def commits(self, excerpt: Excerpt, limit: int = 3) -> list[str]:
        """Return the last commits that touched the excerpt's lines: hash, date, subject."""
        if self.root is None or not any(
            (p / ".git").exists() for p in (self.root, *self.root.parents)
        ):
            return []
        words = (
            *("log", f"-n{limit}", "-s", "--no-ext-diff", "--no-textconv"),
            *("--format=%h %ad %s", "--date=short"),
            f"-L{excerpt.first},{excerpt.last}:{excerpt.file}",
        )
        try:
            done = git.call(self.root, *words, seconds=_GIT_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            _LOG.debug("no commits: %s", error)
            return []
        if done.returncode != 0:
            return []
        return done.stdout.decode(errors="replace").splitlines()[:limit]


def _parse(lines: list[str]) -> ast.Module | None:
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _enclosing(nodes: Sequence[Definition], line: int, num_lines: int) -> tuple[int, int]:
    """First and last line of the innermost function around a line, else the lines near it."""
    best: tuple[int, int] | None = None
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            last = node.end_lineno or first
            if first <= line <= last and (best is None or first >= best[0]):
                best = (first, last)
    if best is not None:
        return best
    return max(1, line - _CONTEXT), min(num_lines, line + _CONTEXT)


def _defined(node: ast.stmt) -> set[str]:
    """Names a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _last_import(tree: ast.Module | None) -> int:
    if tree is None:
        return 0
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return max((node.end_lineno or node.lineno for node in imports), default=0)
