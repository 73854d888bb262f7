"""A model's answer -> a patch that passed every gate, or the reasons why not."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from eroica.files import read_plain
from eroica.fix.diff import file_edit, unified
from eroica.fix.gates import check, outside
from eroica.fix.matcher import NoMatch, apply_edits
from eroica.fix.patches import Edit, parse_answer
from eroica.fix.project import Tree, places_of
from eroica.records import Cause, FileEdit, Gate, Incident, Patch


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why an answer is no patch: what a repair turn quotes back to the model."""

    reasons: tuple[str, ...]
    nearest: tuple[str, ...] = ()
    """The file's lines most like those that were not found, with numbers."""
    patch: Patch | None = None
    """The change as text, display-only, where it could be made but failed a gate."""


def from_answer(
    text: str,
    incident: Incident,
    root: str | Path,
    *,
    cause: Cause | None = None,
    allowed: Iterable[str] | None = None,
    source: str = "model",
    patch_id: str = "M1",
    why: str = "",
    behaviour: str = "",
) -> Patch | Refusal:
    """Match, splice and check an answer's edits; all of them hold, or none is offered.

    ``allowed``: the files the model was shown; by default the cause's files and what they import.
    """
    base = Path(root)
    chosen = cause or (incident.causes[0] if incident.causes else None)
    try:
        edits = parse_answer(text)
    except ValueError as error:
        return Refusal(reasons=(str(error),))
    if not edits:
        return Refusal(reasons=("the answer holds no patch",))
    tree = Tree(base)
    if allowed is None:
        allowed = evidence_files(tree, incident, chosen)
    known = set(allowed)
    try:
        changed = [_file(base, path, known, some) for path, some in by_file(edits, known).items()]
    except NoMatch as error:
        return Refusal(reasons=(str(error),), nearest=error.nearest)
    changed = [edit for edit in changed if edit.before != edit.after]
    if not changed:
        return Refusal(reasons=("the answer changes nothing",))
    gates = check(changed, sources=_texts(tree, known), root=base, allowed=known)
    failed = [gate for gate in gates if not gate.passed]
    patch = _patch(changed, gates, chosen, patch_id, source, why, behaviour)
    if failed:
        return Refusal(reasons=tuple(f"{g.name}: {g.reason}" for g in failed), patch=patch)
    return patch


def evidence_files(tree: Tree, incident: Incident, cause: Cause | None) -> list[str]:
    """Return the files a patch may touch: the cause's, and the project's that they import."""
    causes = [cause] if cause is not None else list(incident.causes)
    for item in causes:
        spots = tree.spots(places_of(item, incident.findings))
        tree.load_with_imports(spot.source.path for spot in spots)
    return sorted(tree.sources)


def by_file(edits: list[Edit], known: set[str]) -> dict[str, list[Edit]]:
    """Group edits by the file they name; a bare name is taken for the only file of that name."""
    found: dict[str, list[Edit]] = {}
    for edit in edits:
        path = edit.path
        if not path and len(known) == 1:
            path = next(iter(known))
        if path.startswith("./"):
            path = path[2:]
        if path and path not in known and "/" not in path:
            same = [name for name in known if name.rpartition("/")[2] == path]
            path = same[0] if len(same) == 1 else path
        found.setdefault(path, []).append(edit)
    return found


def _file(root: Path, path: str, known: set[str], edits: list[Edit]) -> FileEdit:
    if not path:
        raise NoMatch("a block does not name its file")
    reason = outside(path, root)
    if reason:
        raise NoMatch(reason)
    file = root / path
    if path not in known or not file.is_file():
        listed = ", ".join(sorted(known)[:8])
        raise NoMatch(f"{path} is not among the files of the evidence: {listed}")
    try:
        text = read_plain(file).decode("utf-8")
    except OSError as error:
        raise NoMatch(str(error)) from error
    except UnicodeDecodeError as error:
        raise NoMatch(f"{path} is not UTF-8") from error
    if "\0" in text:
        raise NoMatch(f"{path} is no text file")
    try:
        return file_edit(path, text, apply_edits(text, edits))
    except NoMatch as error:
        raise NoMatch(f"{path}: {error}", error.nearest) from error


def _texts(tree: Tree, known: set[str]) -> dict[str, str]:
    for path in known:
        tree.load(path)
    return {path: source.text for path, source in tree.sources.items()}


def _patch(
    edits: list[FileEdit],
    gates: list[Gate],
    cause: Cause | None,
    patch_id: str,
    source: str,
    why: str,
    behaviour: str,
) -> Patch:
    passed = all(gate.passed for gate in gates)
    return Patch(
        id=patch_id,
        cause=cause.id if cause is not None else "",
        source=source,
        label="review" if passed else "display-only",
        title=f"Change {', '.join(edit.path for edit in edits)}",
        edits=tuple(edits),
        diff=unified(edits),
        why=why,
        behaviour=behaviour,
        gates=tuple(gates),
    )
