"""Repositories that would like to run something: none of it runs."""

import stat
import subprocess
from pathlib import Path

import pytest

from eroica import git
from eroica.errors import EroicaError
from eroica.explain.sources import Sources
from eroica.fix.branch import commit_to_branch
from eroica.fix.diff import file_edit, unified
from eroica.records import Patch, Place

SOURCE = "def f(x):\n    return x\n"
SIGNATURE = "-----BEGIN PGP SIGNATURE-----\n\nabc\n-----END PGP SIGNATURE-----"


def run(root, *words):
    words = ("git", "-c", "user.name=t", "-c", "user.email=t@t", *words)
    return subprocess.run(words, cwd=root, check=True, capture_output=True, text=True).stdout


def program(path, *lines):
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def trapped(tmp_path):
    """A repository with a signed commit, and every setting that runs a program set to a trap."""
    root = tmp_path / "project"
    root.mkdir()
    trap = program(tmp_path / "trap", f"touch {tmp_path}/sprung", "cat")
    signer = program(
        tmp_path / "signer",
        "cat >/dev/null",
        "echo '[GNUPG:] SIG_CREATED ' >&2",
        f"printf '%s\\n' '{SIGNATURE}'",
    )
    (root / "train.py").write_text(SOURCE)
    run(root, "init", "-q", "-b", "main")
    run(root, "add", "-A")
    run(root, "-c", f"gpg.program={signer}", "commit", "-q", "-S", "-m", "first")
    for key in (
        "core.fsmonitor", "core.pager", "pager.log", "gpg.program", "diff.external",
        "diff.t.command", "diff.t.textconv", "filter.t.clean", "filter.t.smudge", "core.editor",
        "core.sshCommand", "core.askPass", "credential.helper", "alias.log",
    ):  # fmt: skip
        run(root, "config", key, str(trap))
    run(root, "config", "log.showSignature", "true")
    run(root, "config", "commit.gpgsign", "true")
    (root / ".git" / "info" / "attributes").write_text("*.py filter=t diff=t\n")
    for name in ("pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        program(root / ".git" / "hooks" / name, f"touch {tmp_path}/sprung")
    return root


def make_patch(edit):
    return Patch(
        id="P1", cause="C1", source="fixer COL001", label="review", title="Do it",
        edits=(edit,), diff=unified((edit,)),
    )  # fmt: skip


def is_sprung(root):
    return (root.parent / "sprung").exists()


def test_the_trap_is_a_trap(trapped):
    subprocess.run(["git", "log", "-1"], cwd=trapped, capture_output=True)
    assert is_sprung(trapped)


def test_the_commits_of_a_line_are_read_without_running_anything(trapped):
    sources = Sources(trapped)
    excerpt = sources.function(Place(name="f", file="train.py", line=2))
    (commit,) = sources.commits(excerpt)
    assert commit.endswith(" first")
    assert not is_sprung(trapped)


def test_a_branch_is_made_without_running_anything(trapped):
    patch = make_patch(file_edit("train.py", SOURCE, SOURCE.replace("return x", "return 2 * x")))
    commit_to_branch([patch], trapped, "eroica/fix")
    assert not is_sprung(trapped)
    assert (trapped / ".git/refs/heads/eroica/fix").is_file()


def test_a_repository_that_says_it_lies_elsewhere_is_refused(trapped, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    run(trapped, "config", "core.worktree", str(other))
    patch = make_patch(file_edit("train.py", SOURCE, SOURCE + "\n"))
    with pytest.raises(EroicaError, match="other"):
        commit_to_branch([patch], trapped, "eroica/fix")


def test_a_missing_object_is_not_fetched(tmp_path, trapped):
    run(trapped, "config", "core.repositoryformatversion", "1")
    run(trapped, "config", "extensions.partialClone", "origin")
    run(trapped, "config", "remote.origin.url", f"ext::touch {tmp_path}/sprung")
    run(trapped, "config", "remote.origin.promisor", "true")
    run(trapped, "config", "protocol.ext.allow", "always")
    blob = run(trapped, "rev-parse", "HEAD:train.py").strip()
    (trapped / ".git/objects" / blob[:2] / blob[2:]).unlink()
    done = git.call(trapped, "cat-file", "blob", blob, seconds=20)
    assert done.returncode != 0
    assert not is_sprung(trapped)


def test_the_shells_git_variables_do_not_reach_it(trapped, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    done = git.call(trapped, "rev-parse", "--show-toplevel", seconds=20)
    assert Path(done.stdout.decode().strip()) == trapped.resolve()


def test_what_is_put_in_is_taken_byte_for_byte(trapped):
    text = b"x = '\xff'\r\n".decode("utf-8", "surrogateescape")
    made = git.call(
        trapped, "hash-object", "-w", "--no-filters", "--stdin", seconds=20, text=text
    ).stdout
    blob = made.decode().strip()
    assert git.call(trapped, "cat-file", "blob", blob, seconds=20).stdout == b"x = '\xff'\r\n"
