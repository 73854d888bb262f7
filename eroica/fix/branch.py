"""Commits patches to a branch of their own without touching the work tree or running a hook.

Only plumbing is used (hash-object, read-tree in an index of its own, write-tree, commit-tree,
update-ref): no hook, filter, diff driver or signing program of the repository runs.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from eroica import git
from eroica.errors import EroicaError, InputError, StaleSource
from eroica.fix.apply import combine
from eroica.records import Cause, Incident, Patch

_TIMEOUT_S = 60


def commit_to_branch(
    patches: Sequence[Patch], root: str | Path, name: str, incident: Incident | None = None
) -> str:
    """Commit the patched files on top of HEAD as a new branch and return the commit's hash.

    InputError where root is no repository or the branch exists; StaleSource where a committed
    file is not what the patch was made for.
    """
    base = Path(root)
    if not patches:
        raise InputError(
            "no patch to commit",
            found="none was accepted",
            next_step="eroica fix --accept all --branch NAME",
        )
    top = _git(base, "rev-parse", "--show-toplevel").strip()
    if not base.resolve().is_relative_to(Path(top).resolve()):
        raise InputError(
            f"the repository of {base} has its work tree elsewhere",
            f"core.worktree is {top}",
            f"eroica fix --source {top}",
        )
    prefix = base.resolve().relative_to(Path(top).resolve())
    if name.startswith("-") or _status(base, "check-ref-format", "--branch", name):
        raise InputError(
            f"{name!r} is no name for a branch",
            found="git does not take it",
            next_step="eroica fix --branch fix-barrier",
        )
    if not _status(base, "rev-parse", "--verify", "--quiet", f"refs/heads/{name}"):
        raise InputError(
            f"the branch {name} exists",
            next_step="choose another --branch",
            found="an existing branch is never moved",
        )
    texts = combine([edit for patch in patches for edit in patch.edits])
    with tempfile.TemporaryDirectory(prefix="eroica-index-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(base, "read-tree", "HEAD", env=index)
        for path, (old, new) in texts.items():
            where = (prefix / path).as_posix()
            mode = _check_committed(base, where, old)
            blob = _git(base, "hash-object", "-w", "--no-filters", "--stdin", text=new).strip()
            _git(base, "update-index", "--cacheinfo", f"{mode},{blob},{where}", env=index)
        tree = _git(base, "write-tree", env=index).strip()
    message = commit_message(patches, incident)
    commit = _git(base, "commit-tree", tree, "-p", "HEAD", text=message).strip()
    _git(base, "update-ref", f"refs/heads/{name}", commit, "")
    return commit


def _check_committed(base: Path, where: str, old: str) -> str:
    """Return a committed file's mode after checking its text."""
    listed = _git(base, "ls-tree", "--full-tree", "HEAD", "--", where).split()
    if len(listed) < 3 or listed[0] not in ("100644", "100755"):
        raise StaleSource(
            f"{where} is not committed as a file",
            next_step="commit it first",
            found="git has no plain file there at HEAD",
        )
    if _git(base, "cat-file", "blob", listed[2]) != old:
        raise StaleSource(
            f"{where} has changes that are not committed",
            next_step="commit them, or apply without --branch",
            found="the patch was made for the file as it is now",
        )
    return listed[0]


def commit_message(patches: Sequence[Patch], incident: Incident | None = None) -> str:
    """Return a message that carries the cause, its evidence and the rehearsal."""
    causes = {c.id: c for c in incident.causes} if incident is not None else {}
    first = causes.get(patches[0].cause)
    about = f"{first.category}: " if first is not None else ""
    lines = [f"{about}{patches[0].title}"[:72], ""]
    for patch in patches:
        cause = causes.get(patch.cause)
        lines += [line for line in (patch.why, *_evidence(cause), patch.behaviour) if line]
        if patch.rehearsal is not None:
            lines.append(f"Rehearsal: {patch.rehearsal.verdict}. {patch.rehearsal.summary}")
        lines.append(f"Source: {patch.source}, label {patch.label}.")
        lines.append("")
    if incident is not None:
        lines.append(f"Incident: {incident.id}")
    return "\n".join(lines).rstrip() + "\n"


def _evidence(cause: Cause | None) -> list[str]:
    if cause is None:
        return []
    return [cause.summary, *[f"- {sentence}" for sentence in cause.why[:5]]]


_AUTHOR = {
    "GIT_AUTHOR_NAME": "eroica",
    "GIT_AUTHOR_EMAIL": "eroica@localhost",
    "GIT_COMMITTER_NAME": "eroica",
    "GIT_COMMITTER_EMAIL": "eroica@localhost",
}


def _call(
    base: Path, words: tuple[str, ...], env: dict[str, str] | None, text: str | None
) -> "subprocess.CompletedProcess[bytes]":
    given = {**_AUTHOR, **(env or {})}
    try:
        return git.call(base, *words, seconds=_TIMEOUT_S, text=text, environment=given)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EroicaError(
            f"git {words[0]} cannot be run in {base}",
            str(error),
            "eroica fix --apply writes to the work tree, without git",
        ) from error


def _status(base: Path, *words: str) -> int:
    return _call(base, words, None, None).returncode


def _git(
    base: Path, *words: str, env: dict[str, str] | None = None, text: str | None = None
) -> str:
    done = _call(base, words, env, text)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise InputError(
            f"git {words[0]} failed in {base}",
            message,
            next_step="eroica fix --apply writes to the work tree, without git",
        )
    return done.stdout.decode("utf-8", "surrogateescape")
