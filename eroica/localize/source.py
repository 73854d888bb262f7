"""The user's project as syntax trees: where a frame is, what encloses it, what it calls.

A file is parsed when it is first asked for. Files outside the project's root, installed
packages, files that do not parse and those over ``files.MAX_SOURCE_BYTES`` are simply not part of
it: every question about them answers None or empty, never an exception.
"""

import ast
import itertools
import logging
import os
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePath

from eroica.files import is_inside, read_plain
from eroica.localize.source_tree import FunctionInfo, Module
from eroica.records import JobEvidence
from eroica.summarize.names import is_stdlib

__all__ = ["FunctionInfo", "Module", "Project", "is_library_file"]

logger = logging.getLogger(__name__)

MAX_FILES = 3_000  # of a project; more would take longer than the answer may
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "node_modules", "__pycache__", "venv", "build"}
)
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""What marks the folder of an environment, whatever its name; ``env`` may be the user's package."""
_PYTHON = re.compile(r"python\d")
_LIBRARIES = frozenset(
    {"torch", "numpy", "transformers", "accelerate", "lightning", "pytorch_lightning"}
    | {"deepspeed", "datasets", "tokenizers", "torchvision", "torchdata", "triton", "fsspec"}
    | {"aiohttp", "requests", "urllib3", "pandas", "sklearn", "scipy", "tqdm", "wandb", "apex"}
    | {"megatron", "ray", "eroica"}
)


def is_library_file(file: str | None) -> bool:
    """Whether a frame's file is the interpreter's, an installed package's or ours."""
    if not file or file.startswith("<"):
        return True
    parts = PurePath(file.replace("\\", "/")).parts
    if any(part in ("site-packages", "dist-packages") for part in parts):
        return True
    if "eroica" in parts and "collect" in parts:
        return True
    if _in_lib(parts):
        return True
    if file.startswith("/") or not parts:
        return False
    return parts[0].removesuffix(".py") in _LIBRARIES or is_stdlib("/".join(parts))


def _in_lib(parts: tuple[str, ...]) -> bool:
    """Whether a path leads through the library folder of an interpreter."""
    for parent, child in itertools.pairwise(parts):
        if parent in ("lib", "lib64") and _PYTHON.match(child):
            return True
    return False


def _is_environment(folder: Path) -> bool:
    try:
        return any((folder / mark).exists() for mark in _ENVIRONMENTS)
    except OSError:
        return True  # it may not be looked into


class Project:
    """The user's source below ``root``; ``root=None`` is a project nothing is known of."""

    def __init__(self, root: str | Path | None) -> None:
        self.root = Path(root).resolve() if root else None
        self._modules: dict[Path, Module | None] = {}
        self._resolved: dict[str, Path | None] = {}
        self._is_mine: dict[str, bool] = {}

    @classmethod
    def of(cls, evidence: JobEvidence) -> "Project":
        """The project of a job: its source root, else the folder of the script it ran."""
        root = evidence.source_root
        if root is None:
            scripts = [word for word in evidence.command if word.endswith(".py")]
            script = next((Path(s) for s in scripts if Path(s).is_file()), None)
            root = str(script.parent) if script else None
        return cls(root if root and Path(root).is_dir() else None)

    # files
    def resolve(self, file: str | None) -> Path | None:
        """Return the project's file that a frame means; None for library files.

        Frames carry absolute paths, paths cut at a ``sys.path`` entry, or paths of the machine
        the evidence came from; the longest tail that exists below the root decides.
        """
        if file is None or self.root is None:
            return None
        if file not in self._resolved:
            self._resolved[file] = self._find(file)
        return self._resolved[file]

    def _find(self, file: str) -> Path | None:
        assert self.root is not None
        if file.startswith("<"):
            return None
        path = Path(file)
        if path.is_absolute():
            real = Path(os.path.realpath(path))
            if real.is_relative_to(self.root):
                inside = real.relative_to(self.root)
                is_skipped = SKIPPED_FOLDERS & set(inside.parts[:-1]) or _in_lib(inside.parts)
                return None if is_skipped else self._mine(real)
            if real.exists():
                return None
        elif found := self._mine(self.root / path):
            return found
        if is_library_file(file):
            return None
        parts = path.parts[1:] if path.is_absolute() else path.parts
        for start in range(len(parts)):
            if found := self._mine(self.root.joinpath(*parts[start:])):
                return found
        return None

    def _mine(self, path: Path) -> Path | None:
        """A plain file below the root: what evidence names must not lead out of the project."""
        assert self.root is not None
        return path if is_inside(path, self.root) else None

    def contains(self, file: str | None) -> bool:
        """Whether a frame is the user's.

        Without sources, and for files that are not on this machine, it is when it is no library's.
        """
        if file is None:
            return False
        known = self._is_mine.get(file)
        if known is None:
            known = self._is_mine[file] = self._decide(file)
        return known

    def _decide(self, file: str) -> bool:
        if self.root is not None and self.resolve(file) is not None:
            return True
        if is_library_file(file):
            return False
        return self.root is None or not Path(file).exists()

    def module(self, file: str | None) -> Module | None:
        path = self.resolve(file)
        return self._parse(path) if path else None

    def _parse(self, path: Path) -> Module | None:
        if path not in self._modules:
            self._modules[path] = self._load(path)
        return self._modules[path]

    def _load(self, path: Path) -> Module | None:
        assert self.root is not None
        try:
            text = read_plain(path).decode("utf-8", "replace")
            tree = ast.parse(text)
            inside = path.relative_to(self.root).with_suffix("")
            return Module(path, str(path), ".".join(inside.parts), tree, text)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            logger.debug("%s is left out: %s", path, error)
            return None

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """Every module of the project that parses, at most ``MAX_FILES`` files."""
        found: list[Module] = []
        for path in self._files():
            module = self._parse(path)
            if module is not None:
                found.append(module)
        return tuple(found)

    def _files(self) -> Iterator[Path]:
        if self.root is None:
            return
        count = 0
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(
                f
                for f in folders
                if f not in SKIPPED_FOLDERS
                and not f.startswith(".")
                and not _is_environment(Path(folder) / f)
            )
            for name in sorted(files):
                if name.endswith(".py") and is_inside(Path(folder) / name, self.root):
                    count += 1
                    if count > MAX_FILES:
                        return
                    yield Path(folder) / name

    # places
    def enclosing(self, file: str | None, line: int | None) -> FunctionInfo | None:
        """Return the function around a place, ``<module>`` outside all functions."""
        module = self.module(file)
        return module.enclosing(line) if module and line else None

    def line_text(self, file: str | None, line: int | None) -> str:
        module = self.module(file)
        return module.line_text(line) if module and line else ""

    def name_in_root(self, file: str | None) -> str:
        """Return the file as people know it: relative to the root where it lies there."""
        path = self.resolve(file)
        if path is None or self.root is None:
            return file or "?"
        return path.relative_to(self.root).as_posix()

    @cached_property
    def makers(self) -> dict[str, list[str]]:
        """Attributes to the classes whose methods assign ``self.<attribute>``."""
        found: dict[str, list[str]] = {}
        for function in self.functions:
            for name in function.made_attributes if function.class_name is not None else ():
                classes = found.setdefault(name, [])
                if function.class_name not in classes:
                    classes.append(str(function.class_name))
        return found

    @cached_property
    def functions(self) -> tuple[FunctionInfo, ...]:
        return tuple(info for module in self.modules for info in module.functions)
