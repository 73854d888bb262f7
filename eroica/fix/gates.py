"""Gates a patch must pass before it may be applied; each says why it refuses."""

import ast
import builtins
import re
import symtable
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from eroica.files import NOT_FOR_PATCHES
from eroica.fix.distributed import UNREADABLE
from eroica.fix.safety import one_sided
from eroica.records import FileEdit, Gate

MAX_LINES = 200  # changed lines of one patch: beyond that nobody reviews it
# Bidirectional controls, zero-width characters and other controls hide code from a reviewer.
_INVISIBLE = re.compile(
    "[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u00ad\x00-\x08\x0b\x0e-\x1f\x7f]"
)


def check(
    edits: Sequence[FileEdit],
    *,
    sources: Mapping[str, str] | None = None,
    root: Path | None = None,
    allowed: Iterable[str] | None = None,
) -> list[Gate]:
    """Return every gate's answer for a patch.

    ``sources``: other files of the project, for calls that lead to collectives; ``root``: checks
    links on disk; ``allowed``: the evidence's files, where the patch must stay within them.
    """
    return [
        _gate("inside the project", _outside(edits, root)),
        _gate("evidence files", _not_allowed(edits, allowed)),
        _gate("ordinary files", _forbidden(edits)),
        _gate("size", _too_large(edits)),
        _gate("visible", _invisible(edits)),
        _gate("compiles", _broken(edits)),
        _gate("names", _undefined(edits)),
        _gate("collectives", _collectives(edits, sources or {})),
    ]


def _gate(name: str, reason: str) -> Gate:
    return Gate(name=name, passed=not reason, reason=reason)


def outside(path: str, root: Path | None) -> str:
    """Return why a path may not be written, or an empty string."""
    pure = PurePosixPath(path.replace("\\", "/"))
    if pure.is_absolute() or re.match(r"^[A-Za-z]:", path):
        return f"{path} is an absolute path"
    if ".." in pure.parts:
        return f"{path} leaves the project"
    if root is not None:
        at = root
        for part in pure.parts:
            at = at / part
            if at.is_symlink():
                return f"{path} goes through a link"
    return ""


def _outside(edits: Sequence[FileEdit], root: Path | None) -> str:
    return next(filter(None, (outside(edit.path, root) for edit in edits)), "")


def _not_allowed(edits: Sequence[FileEdit], allowed: Iterable[str] | None) -> str:
    if allowed is None:
        return ""
    known = set(allowed)
    extra = [edit.path for edit in edits if edit.path not in known]
    return f"{extra[0]} is not among the files of the evidence" if extra else ""


def _forbidden(edits: Sequence[FileEdit]) -> str:
    bad = [edit.path for edit in edits if NOT_FOR_PATCHES.search(edit.path)]
    return f"{bad[0]} is a test, a pipeline or may hold secrets" if bad else ""


def changed_lines(edit: FileEdit) -> list[str]:
    """Return the lines an edit adds."""
    before = set(edit.before.split("\n"))
    return [line for line in edit.after.split("\n") if line not in before]


def _too_large(edits: Sequence[FileEdit]) -> str:
    size = sum(len(changed_lines(edit)) for edit in edits)
    if size > MAX_LINES:
        return f"{size} changed lines, at most {MAX_LINES}"
    gone = sum(max(0, e.before.count("\n") - e.after.count("\n")) for e in edits)
    return f"{gone} lines removed, at most {MAX_LINES}" if gone > MAX_LINES else ""


def _invisible(edits: Sequence[FileEdit]) -> str:
    for edit in edits:
        for line in changed_lines(edit):
            found = _INVISIBLE.search(line)
            if found:
                return f"{edit.path}: an added line holds U+{ord(found[0]):04X}, which hides text"
    return ""


def _broken(edits: Sequence[FileEdit]) -> str:
    for edit in edits:
        if not edit.path.endswith(".py"):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(edit.after.removeprefix("\ufeff"), edit.path, "exec", dont_inherit=True)
        except UNREADABLE as error:
            return f"{edit.path} does not compile: {error}"
    return ""


def undefined_names(text: str) -> set[str]:
    """Return the global names a module reads and never binds; empty where it does not parse."""
    text = text.removeprefix("\ufeff")
    try:
        tree = ast.parse(text)
        top = symtable.symtable(text, "module", "exec")
    except UNREADABLE:
        return set()
    if any(
        isinstance(n, ast.ImportFrom) and any(a.name == "*" for a in n.names)
        for n in ast.walk(tree)
    ):
        return set()
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    bound |= {s.get_name() for s in top.get_symbols() if s.is_namespace()}
    used: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables.extend(table.get_children())
        for symbol in table.get_symbols():
            if symbol.is_global() or table is top:
                if symbol.is_assigned() and symbol.is_declared_global():
                    bound.add(symbol.get_name())
                if symbol.is_referenced():
                    used.add(symbol.get_name())
    known = set(dir(builtins)) | {"__file__", "__name__", "__doc__", "__spec__", "__path__"}
    return used - bound - known - {"__class__", "__annotations__", "__builtins__"}


def _undefined(edits: Sequence[FileEdit]) -> str:
    for edit in edits:
        if edit.path.endswith(".py"):
            new = undefined_names(edit.after) - undefined_names(edit.before)
            if new:
                return f"{edit.path} would use undefined {', '.join(sorted(new))}"
    return ""


def _collectives(edits: Sequence[FileEdit], sources: Mapping[str, str]) -> str:
    python = [edit for edit in edits if edit.path.endswith(".py")]
    before = {**sources, **{edit.path: edit.before for edit in python}}
    after = {**sources, **{edit.path: edit.after for edit in python}}
    return one_sided(before, after)
