"""Applying patches: all files or none, keyed on hashes, recorded, and taken back by undo."""

import getpass
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from eroica.errors import EroicaError, InputError, StaleSource
from eroica.fix.diff import merge, sha256, unified
from eroica.fix.gates import check
from eroica.incident import IncidentFolder, now
from eroica.records import Decision, FileEdit, Patch


def apply(
    patches: Sequence[Patch],
    root: str | Path,
    folder: IncidentFolder | None = None,
    *,
    is_dry: bool = False,
) -> list[Patch]:
    """Write the patches' files, all or none, and return the patches marked applied.

    ``is_dry``: everything is checked and nothing is written; the patches come back as they are.

    StaleSource where a file is not what a patch was made for; EroicaError for a display-only
    patch, or for two patches that change the same lines.
    """
    for patch in patches:
        if patch.label == "display-only":
            raise EroicaError(
                f"patch {patch.id} is display-only and is not applied",
                "; ".join(gate.reason for gate in patch.gates if not gate.passed),
                next_step="eroica review shows it; edit the file by hand",
            )
        _refuse_hidden(patch)
    if not patches:
        return []
    base = Path(root)
    texts = combine([edit for patch in patches for edit in patch.edits])
    before = {path: target(base, path, old) for path, (old, _) in texts.items()}
    if is_dry:
        return list(patches)
    write_all({before[path]: new for path, (_, new) in texts.items()})
    hashes = {path: (sha256(old), sha256(new)) for path, (old, new) in texts.items()}
    stamp = now()  # one for all: what was applied together is undone together
    done = [msgspec.structs.replace(patch, applied=stamp) for patch in patches]
    if folder is not None:
        record(folder, done, hashes, base, {path: old for path, (old, _) in texts.items()})
    return done


_ALWAYS = ("ordinary files", "visible")
"""Gates that are asked again: an incident is a folder, and may come from somebody else."""


def _refuse_hidden(patch: Patch) -> None:
    if unified(patch.edits) != patch.diff:
        raise EroicaError(
            f"patch {patch.id} is not applied",
            "the diff that was shown is not what it would write",
            "eroica fix makes patches anew",
        )
    for gate in check(patch.edits):
        if gate.name in _ALWAYS and not gate.passed:
            raise EroicaError(
                f"patch {patch.id} is not applied", gate.reason, "eroica fix makes patches anew"
            )


def combine(edits: Sequence[FileEdit]) -> dict[str, tuple[str, str]]:
    """Return each file's text before and after all edits, merged by lines."""
    texts: dict[str, tuple[str, str]] = {}
    for edit in edits:
        if edit.path not in texts:
            texts[edit.path] = (edit.before, edit.after)
            continue
        base, so_far = texts[edit.path]
        merged = merge(base, so_far, edit.after) if edit.before == base else None
        if merged is None:
            raise EroicaError(
                f"two patches change the same lines of {edit.path}",
                next_step="apply one, diagnose again, then the other",
                found="their hunks overlap",
            )
        texts[edit.path] = (base, merged)
    return texts


def compatible(patches: Sequence[Patch]) -> list[Patch]:
    """Return the patches, in order, without those that clash with an earlier one."""
    kept: list[Patch] = []
    for patch in patches:
        with suppress(EroicaError):
            combine([edit for item in (*kept, patch) for edit in item.edits])
            kept.append(patch)
    return kept


def target(root: Path, path: str, expected: str) -> Path:
    """Return the file to write after checking that it is inside, plain, and unchanged."""
    file = inside(root, path)
    try:
        data = file.read_bytes() if file.exists() or expected else b""
    except OSError as error:
        raise StaleSource(
            f"{path} cannot be read",
            str(error),
            next_step="eroica fix again, with --source DIR if the project moved",
        ) from error
    if data != expected.encode("utf-8", "surrogateescape"):
        raise StaleSource(
            f"{path} changed since the patch was made",
            f"its hash is {sha256(data)[:12]}, the patch is for {sha256(expected)[:12]}",
            "eroica fix again",
        )
    return file


def inside(root: Path, path: str) -> Path:
    """Return a file of the project by its relative path; EroicaError where that leads out of it."""
    file = root / path
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise EroicaError(
            f"{path} lies outside the project",
            next_step="nothing was written",
            found="a patch may change files below its root only",
        )
    for part in (file, *file.parents):
        if part == root:
            break
        if part.is_symlink():
            raise EroicaError(
                f"{path} is reached through a link",
                next_step="nothing was written",
                found="a link may lead out of the project",
            )
    return file


def write_all(texts: dict[Path, str]) -> None:
    """Write files so that a failure leaves every one as it was."""
    staged: list[tuple[str, Path]] = []
    kept: list[tuple[Path, bytes | None, int]] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            staged.append((name, path))
            with os.fdopen(handle, "wb") as stream:
                stream.write(text.encode("utf-8", "surrogateescape"))
            Path(name).chmod(mode)
            kept.append((path, path.read_bytes() if path.exists() else None, mode))
        for name, path in staged:
            Path(name).replace(path)
    except OSError as error:
        for path, data, mode in kept:
            _restore(path, data, mode)
        raise EroicaError(
            "the patch could not be written", str(error), "no file was changed"
        ) from error
    finally:
        for name, _ in staged:
            Path(name).unlink(missing_ok=True)


def _restore(path: Path, data: bytes | None, mode: int) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    elif path.read_bytes() != data:
        path.write_bytes(data)
        path.chmod(mode)


def record(
    folder: IncidentFolder,
    done: Sequence[Patch],
    hashes: dict[str, tuple[str, str]],
    root: Path,
    before: dict[str, str],
) -> None:
    """Note an application in the incident: a decision a patch, ``applied`` in patches.json."""
    known = {patch.id: patch for patch in folder.read_patches()}
    known.update({patch.id: patch for patch in done})
    folder.write_patches(list(known.values()))
    for patch in done:
        paths = {edit.path for edit in patch.edits}
        folder.append_decision(
            Decision(
                time=patch.applied or now(),
                patch=patch.id,
                action="apply",
                files={path: pair for path, pair in hashes.items() if path in paths},
                by=user_name(),
                root=str(root.resolve()),
                before={path: text for path, text in before.items() if path in paths},
            )
        )


def undo(folder: IncidentFolder, root: str | Path | None = None) -> list[str]:
    """Take the last application of an incident back and return the files restored.

    All patches applied in one go are taken back together. StaleSource where a file was edited
    since; nothing is written then.
    """
    patches = {patch.id: patch for patch in folder.read_patches()}
    last = last_application(folder)
    if not last:
        raise InputError(
            f"nothing to undo in {folder.id}", "no patch is applied", next_step="eroica list"
        )
    base = Path(root or last[0].root)
    texts: dict[Path, str] = {}
    for path, (old, new) in {p: h for item in last for p, h in item.files.items()}.items():
        before = _before(folder, last, patches, path, old)
        file = inside(base, path)
        if not file.exists() or sha256(file.read_bytes()) != new:
            raise StaleSource(
                f"{path} changed since the patch was applied",
                next_step=f"take {folder.patch_path(last[0].patch)} back by hand: git apply -R",
                found="it is not what the patch left there",
            )
        texts[file] = before
    write_all(texts)
    for item in last:
        folder.append_decision(
            Decision(
                time=now(),
                patch=item.patch,
                action="undo",
                files=item.files,
                by=user_name(),
                root=str(base),
            )
        )
    ids = {item.patch for item in last}
    folder.write_patches(
        [msgspec.structs.replace(p, applied=None) if p.id in ids else p for p in patches.values()]
    )
    return [str(path.relative_to(base)) for path in texts]


def _before(
    folder: IncidentFolder,
    last: Sequence[Decision],
    patches: dict[str, Patch],
    path: str,
    digest: str,
) -> str:
    """The text a file had before; the journal holds it, of older ones patches.json."""
    kept = [item.before[path] for item in last if path in item.before]
    for item in last:
        edits = patches[item.patch].edits if item.patch in patches else ()
        kept += [edit.before for edit in edits if edit.path == path]
    for text in kept:
        if sha256(text) == digest:
            return text
    raise InputError(
        f"the application in {folder.id} cannot be taken back",
        f"neither decisions.jsonl nor patches.json holds {path} as it was",
        f"git checkout {path}, if it was committed",
    )


def last_application(folder: IncidentFolder) -> list[Decision]:
    """Return the newest apply decisions that were not undone and were made together."""
    standing: list[Decision] = []
    for decision in folder.read_decisions():
        if decision.action == "apply":
            standing.append(decision)
        elif decision.action == "undo":
            standing = [item for item in standing if item.patch != decision.patch]
    return [item for item in standing if item.time == standing[-1].time]


def user_name() -> str:
    """Who decides; empty for a user id without a name, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
