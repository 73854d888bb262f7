"""The user's source tree: finding a cause's files in it and parsing them, read-only."""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import libcst as cst

from eroica.files import NOT_OURS, is_inside, read_plain
from eroica.fix.context import Spot
from eroica.fix.distributed import UNREADABLE, parse
from eroica.fix.tree import Source
from eroica.records import Cause, Finding, Place

log = logging.getLogger(__name__)
MAX_FILES = 60  # parsed for one incident: the cause's files and what they import
MAX_SCANNED = 2000  # files looked into for an import of the cause's files


def python_files(root: Path) -> Iterator[Path]:
    """Yield the project's Python files; environments, builds and links to elsewhere left out."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in NOT_OURS and not f.startswith("."))
        for name in sorted(files):
            path = Path(folder) / name
            if name.endswith(".py") and is_inside(path, root):
                yield path


def locate(file: str, root: Path) -> str | None:
    """Return a file's path below the root; one of another machine is matched by its end."""
    if "site-packages" in file or "dist-packages" in file or file.startswith("<"):
        return None
    path = Path(file)
    inside = path if path.is_absolute() else root / path
    try:
        relative = Path(os.path.realpath(inside)).relative_to(os.path.realpath(root))
    except ValueError:
        relative = None
    if relative is not None and is_inside(root / relative, root):
        return relative.as_posix()
    wanted = PurePosixPath(file).parts
    best: list[tuple[int, str]] = []
    for found in python_files(root):
        parts = found.relative_to(root).parts
        common = 0
        while common < min(len(parts), len(wanted)) and parts[-1 - common] == wanted[-1 - common]:
            common += 1
        if common:
            best.append((common, "/".join(parts)))
    best.sort(reverse=True)
    if not best or (len(best) > 1 and best[0][0] == best[1][0]):
        return None
    return best[0][1]


class Tree:
    """The sources of one project, parsed when asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources: dict[str, Source] = {}
        self._failed: set[str] = set()

    def load(self, path: str) -> Source | None:
        """Return a parsed file; None (logged once) where it cannot be read or parsed."""
        if path in self.sources or path in self._failed:
            return self.sources.get(path)
        file = self.root / path
        try:
            if not is_inside(file, self.root):
                raise OSError("no plain file of the project")
            text = read_plain(file).decode("utf-8")
            parse(text)  # Python refuses at once what libcst takes half a minute to fail on
            self.sources[path] = Source(path, text)
        except (OSError, cst.ParserSyntaxError, *UNREADABLE) as error:
            log.warning(
                "%s is left alone: %s", path, (str(error) or type(error).__name__).splitlines()[0]
            )
            self._failed.add(path)
        return self.sources.get(path)

    def _with_lines(self, path: str) -> Source | None:
        """As ``load``, and the file's lines are known: that takes a deeper look into the tree."""
        source = self.load(path)
        try:
            if source is not None:
                source.line(source.module)
        except RecursionError as error:
            log.warning("%s is left alone: %s", path, error)
            self._failed.add(path)
            del self.sources[path]
            return None
        return source

    def load_with_imports(self, paths: Iterable[str]) -> None:
        """Load files and, breadth first, the project's files that they import."""
        queue = list(dict.fromkeys(paths))
        seen = set(queue)
        while queue and len(self.sources) < MAX_FILES:
            source = self.load(queue.pop(0))
            if source is None:
                continue
            for target in source.imports.values():
                path = self._module_file(source.path, target)
                if path is not None and path not in seen:
                    seen.add(path)
                    queue.append(path)

    def load_importers(self, paths: Iterable[str]) -> None:
        """Load the project's files that import one of the given ones: callers live there."""
        stems = {PurePosixPath(p).stem for p in paths} - {"__init__"}
        stems |= {PurePosixPath(p).parent.name for p in paths if p.endswith("/__init__.py")}
        if not stems:
            return
        rule = re.compile(
            rf"^\s*(?:from|import)\b.*\b(?:{'|'.join(map(re.escape, sorted(stems)))})\b", re.M
        )
        for number, file in enumerate(python_files(self.root)):
            if number > MAX_SCANNED or len(self.sources) >= MAX_FILES:
                return
            path = file.relative_to(self.root).as_posix()
            try:
                is_importer = path not in self.sources and rule.search(read_plain(file).decode())
            except (OSError, UnicodeDecodeError):
                continue
            if is_importer:
                self.load_with_imports([path])  # callers' helpers lead to collectives too

    def _module_file(self, importer: str, target: str) -> str | None:
        folder = PurePosixPath(importer).parent
        dots = len(target) - len(target.lstrip("."))
        bases = [folder, PurePosixPath(".")]
        if dots:
            for _ in range(dots - 1):
                folder = folder.parent
            bases = [folder]
        parts = target.lstrip(".").split(".")
        for base in bases:
            for end in range(len(parts), 0, -1):
                for tail in (f"{parts[end - 1]}.py", f"{parts[end - 1]}/__init__.py"):
                    path = base.joinpath(*parts[: end - 1], tail)
                    if (self.root / path).is_file():
                        return path.as_posix()
        return None

    def spots(self, places: Iterable[Place]) -> tuple[Spot, ...]:
        """Find places in the source, in order; those outside the project are dropped."""
        found: list[Spot] = []
        for place in places:
            path = locate(place.file, self.root) if place.file else None
            source = self._with_lines(path) if path else None
            if source is not None:
                spot = make_spot(source, place.name, place.line)
                if spot not in found:
                    found.append(spot)
        return tuple(found)


def make_spot(source: Source, name: str, line: int | None) -> Spot:
    """Return the spot of a function's name and line; the name wins where they disagree."""
    last = name.rpartition(".")[2]
    function = source.function_at(line) if line else None
    if last not in ("<module>", "") and (function is None or function.name.value != last):
        named = source.functions_named(last)
        if named and not (line and function is not None and last.startswith("<")):
            function = min(named, key=lambda f: abs(source.line(f) - (line or 0)))
            line = (
                line
                if line and source.line(function) <= line <= source.last_line(function)
                else None
            )
    statement = source.statement_at(line) if line else None
    return Spot(source, function, statement, line)


def places_of(cause: Cause, findings: Iterable[Finding]) -> list[Place]:
    """Return a cause's places: its functions, then those of the findings it rests on."""
    places = list(cause.functions)
    for finding in findings:
        if finding.id in cause.findings and finding.function is not None:
            function = finding.function
            if function.file is not None:
                places.append(Place(name=function.name, file=function.file, line=function.line))
            places.extend(function.stack)
    return [place for place in dict.fromkeys(places) if place.file]
