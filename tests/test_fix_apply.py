"""Applying, undoing and committing patches: all files or none, and no program of the repository."""

import json
import os
import subprocess
import sys
from importlib import import_module

import msgspec
import pytest

from eroica.errors import EroicaError, InputError, StaleSource
from eroica.fix.apply import apply, compatible, undo
from eroica.fix.branch import commit_message, commit_to_branch
from eroica.fix.diff import file_edit, lines_of, merge, sha256, unified
from eroica.incident import IncidentFolder, create
from eroica.records import Cause, Incident, Job, Patch, Place, Rehearsal

A, B = "a = 1\nb = 2\nc = 3\n", "x = 1\n"


def patch(*edits, patch_id="P1", label="review", **more):
    return Patch(
        id=patch_id, cause="C1", source="fixer COL001", label=label, title="Do it",
        edits=tuple(edits), diff=unified(edits), **more,
    )  # fmt: skip


@pytest.fixture
def root(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(A)
    (tmp_path / "src" / "b.py").write_text(B)
    return tmp_path / "src"


@pytest.fixture
def folder(tmp_path):
    return IncidentFolder(tmp_path / "incident")


def test_a_patch_is_applied_recorded_and_taken_back(root, folder):
    change = patch(file_edit("a.py", A, "a = 2\nb = 2\nc = 3\n"), file_edit("b.py", B, "x = 5\n"))
    (done,) = apply([change], root, folder)
    assert (root / "a.py").read_text() == "a = 2\nb = 2\nc = 3\n"
    assert done.applied is not None
    assert folder.read_patches()[0].applied == done.applied
    (decision,) = folder.read_decisions()
    assert decision.action == "apply"
    assert decision.files["b.py"] == (sha256(B), sha256("x = 5\n"))
    assert sorted(undo(folder)) == ["a.py", "b.py"]
    assert (root / "a.py").read_text() == A
    assert (root / "b.py").read_text() == B
    assert folder.read_patches()[0].applied is None
    with pytest.raises(InputError, match="nothing to undo"):
        undo(folder)


def test_undo_needs_no_patches_json(root, folder):
    apply([patch(file_edit("a.py", A, "a = 2\n"))], root, folder)
    folder.write_patches([])
    assert undo(folder) == ["a.py"]
    assert (root / "a.py").read_text() == A


def test_what_is_applied_together_carries_one_time_even_across_a_second(root, folder, monkeypatch):
    ticks = iter(f"2026-11-29T03:12:{n:02}Z" for n in range(60))
    monkeypatch.setattr(sys.modules[apply.__module__], "now", lambda: next(ticks))
    one, two = file_edit("a.py", A, "a = 2\n"), file_edit("b.py", B, "x = 5\n")
    apply([patch(one), patch(two, patch_id="P2")], root, folder)
    assert sorted(undo(folder)) == ["a.py", "b.py"]


def test_two_patches_of_one_file_are_merged_and_undone_together(root, folder):
    one = patch(file_edit("a.py", A, "a = 9\nb = 2\nc = 3\n"))
    two = patch(file_edit("a.py", A, "a = 1\nb = 2\nc = 7\n"), patch_id="P2")
    apply([one, two], root, folder)
    assert (root / "a.py").read_text() == "a = 9\nb = 2\nc = 7\n"
    undo(folder)
    assert (root / "a.py").read_text() == A


def test_two_patches_of_the_same_lines_are_refused_and_one_can_be_chosen(root):
    one = patch(file_edit("a.py", A, "a = 9\nb = 2\nc = 3\n"))
    two = patch(file_edit("a.py", A, "a = 8\nb = 2\nc = 3\n"), patch_id="P2")
    with pytest.raises(EroicaError, match=r"same lines of a\.py"):
        apply([one, two], root)
    assert (root / "a.py").read_text() == A
    assert compatible([one, two]) == [one]


def test_a_file_changed_since_stops_all_files(root, folder):
    (root / "b.py").write_text("x = 3\n")
    change = patch(file_edit("a.py", A, "a = 2\n"), file_edit("b.py", B, "x = 5\n"))
    with pytest.raises(StaleSource, match=r"b\.py changed since"):
        apply([change], root, folder)
    assert (root / "a.py").read_text() == A
    assert folder.read_decisions() == []


def test_a_failure_to_write_leaves_every_file_as_it_was(root, monkeypatch):
    from pathlib import Path

    replace = Path.replace

    def fail(self, target):
        if str(target).endswith("b.py"):
            raise OSError("disk full")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    change = patch(file_edit("a.py", A, "a = 2\n"), file_edit("b.py", B, "x = 5\n"))
    with pytest.raises(EroicaError, match="no file was changed"):
        apply([change], root)
    assert (root / "a.py").read_text() == A
    assert (root / "b.py").read_text() == B
    assert sorted(os.listdir(root)) == ["a.py", "b.py"]


def test_undo_refuses_a_file_edited_after_the_patch(root, folder):
    apply([patch(file_edit("a.py", A, "a = 2\n"))], root, folder)
    (root / "a.py").write_text("mine\n")
    with pytest.raises(StaleSource, match="changed since the patch was applied"):
        undo(folder)
    assert (root / "a.py").read_text() == "mine\n"


def test_display_only_is_applied_by_nothing(root):
    with pytest.raises(EroicaError, match="display-only"):
        apply([patch(file_edit("a.py", A, "a = 2\n"), label="display-only")], root)
    assert (root / "a.py").read_text() == A


@pytest.mark.parametrize("path", ["../a.py", "/abs/a.py"])
def test_a_path_outside_is_refused_even_here(root, path):
    with pytest.raises(EroicaError, match="outside the project"):
        apply([patch(file_edit(path, A, "a = 2\n"))], root)


def test_a_link_is_never_written_through(root, tmp_path):
    (tmp_path / "real.py").write_text(A)
    (root / "link.py").symlink_to(tmp_path / "real.py")
    with pytest.raises(EroicaError, match="through a link"):
        apply([patch(file_edit("link.py", A, "a = 2\n"))], root)
    assert (tmp_path / "real.py").read_text() == A


def test_the_files_mode_is_kept(root):
    (root / "a.py").chmod(0o755)
    apply([patch(file_edit("a.py", A, "a = 2\n"))], root)
    assert (root / "a.py").stat().st_mode & 0o777 == 0o755


def test_git_applies_every_diff(root):
    cases = [
        (A, "a = 2\nb = 2\nc = 3\n"),
        (A, A.rstrip("\n")),
        (A.rstrip("\n"), A),
        (A, A + "\n\n"),
    ]
    for before, after in cases:
        (root / "a.py").write_text(before)
        diff = unified([file_edit("a.py", before, after)])
        subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=root, check=True)
        assert (root / "a.py").read_text() == after


def test_merge_joins_changes_of_different_lines_only():
    assert merge("1\n2\n3\n4\n5\n", "0\n2\n3\n4\n5\n", "1\n2\n3\n4\n6\n") == "0\n2\n3\n4\n6\n"
    assert merge("1\n2\n", "0\n2\n", "5\n2\n") is None
    assert merge("import b\n", "import a\nimport b\n", "import a\nimport b\n") == (
        "import a\nimport b\n"
    )
    both = merge("import c\n", "import a\nimport c\n", "import b\nimport c\n")
    assert sorted(both.split()) == sorted(["import", "a", "import", "b", "import", "c"])
    assert lines_of("a\x0cb\nc") == ["a\x0cb\n", "c"]


# --- a branch ---------------------------------------------------------------------------------


def git(root, *words):
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words],
        cwd=root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def repository(root):
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "first")
    return root


def test_a_branch_gets_the_commit_and_the_work_tree_stays(repository):
    rehearsal = Rehearsal(command=("true",), verdict="cured", summary="It finishes.")
    change = patch(
        file_edit("a.py", A, "a = 2\nb = 2\nc = 3\n"), why="Because.", rehearsal=rehearsal
    )
    cause = Cause(
        id="C1", category="gc_pause", ranks="all", functions=(Place(name="f"),), share=0.2,
        confidence=0.9, summary="The collector pauses.", action="patch", why=("90 ms a pause",),
    )  # fmt: skip
    incident = Incident(
        id="inc-1", symptom="slow", onset=None, job=Job(world_size=1, ranks=(0,)),
        causes=(cause,), findings=(), warnings=(),
    )  # fmt: skip
    commit = commit_to_branch([change], repository, "eroica/fix", incident)
    assert git(repository, "rev-parse", "eroica/fix").strip() == commit
    assert git(repository, "show", "eroica/fix:a.py") == "a = 2\nb = 2\nc = 3\n"
    assert (repository / "a.py").read_text() == A
    assert git(repository, "status", "--porcelain") == ""
    message = git(repository, "log", "-1", "--format=%B", "eroica/fix")
    for part in ("gc_pause: Do it", "90 ms a pause", "Rehearsal: cured", "Incident: inc-1"):
        assert part in message
    with pytest.raises(InputError, match="exists"):
        commit_to_branch([change], repository, "eroica/fix")


def test_hooks_filters_and_diff_drivers_of_the_repository_never_run(repository):
    trap = repository / "ran"
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    for name in ("pre-commit", "commit-msg", "reference-transaction", "post-commit"):
        (hook.parent / name).write_text(f"#!/bin/sh\ntouch {trap}\n")
        (hook.parent / name).chmod(0o755)
    for key in (
        "filter.t.clean",
        "filter.t.smudge",
        "diff.t.command",
        "diff.t.textconv",
        "core.fsmonitor",
    ):
        git(repository, "config", key, f"touch {trap}; cat")
    git(repository, "config", "commit.gpgsign", "true")
    (repository / ".git" / "info" / "attributes").write_text("*.py filter=t diff=t\n")
    commit_to_branch([patch(file_edit("a.py", A, "a = 2\n"))], repository, "eroica/fix")
    assert not trap.exists()


def test_a_file_with_uncommitted_changes_is_refused(repository):
    (repository / "a.py").write_text("a = 5\n")
    with pytest.raises(StaleSource, match="not committed"):
        commit_to_branch([patch(file_edit("a.py", "a = 5\n", "a = 2\n"))], repository, "fix")


@pytest.mark.parametrize("name", ["-x", "a b", "a..b", ""])
def test_a_bad_branch_name_is_refused(repository, name):
    with pytest.raises(InputError):
        commit_to_branch([patch(file_edit("a.py", A, "a = 2\n"))], repository, name)


def test_a_folder_without_a_repository_is_refused(root):
    with pytest.raises(InputError, match="git"):
        commit_to_branch([patch(file_edit("a.py", A, "a = 2\n"))], root, "fix")


def test_a_commit_message_without_an_incident_names_the_patch():
    assert commit_message([patch(file_edit("a.py", A, "a = 2\n"))]).startswith("Do it\n")


def test_an_undone_record_is_plain_json(root, folder):
    apply([patch(file_edit("a.py", A, "a = 2\n"))], root, folder)
    line = (folder.path / "decisions.jsonl").read_text().splitlines()[0]
    assert json.loads(line)["action"] == "apply"


# --- an incident from somebody else -----------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "after", "why"),
    [
        ("tests/test_a.py", "a = 2\n", "test"),
        (".git/hooks/pre-commit.py", "a = 2\n", "git"),
        ("a.py", "a = 2  # \u202e\n", "invisible"),
    ],
)
def test_a_patch_that_never_passed_a_gate_is_not_applied_whatever_its_record_says(
    root, path, after, why
):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(A)
    forged = patch(file_edit(path, A, after), label="safe")
    with pytest.raises(EroicaError, match="is not applied"):
        apply([forged], root)
    assert (root / path).read_text() == A


def test_a_patch_that_shows_another_diff_than_it_writes_is_not_applied(root):
    shown = patch(file_edit("a.py", A, "a = 2\nb = 2\nc = 3\n"))
    forged = msgspec.structs.replace(shown, edits=(file_edit("a.py", A, "import os\n"),))
    with pytest.raises(EroicaError, match="not what it would write"):
        apply([forged], root)
    assert (root / "a.py").read_text() == A
    assert apply([shown], root)[0].applied


def test_only_a_fixers_patch_is_read_back_as_safe(tmp_path):
    folder = create("x", tmp_path)
    edit = file_edit("a.py", A, "a = 2\n")
    by_fixer = patch(edit, label="safe")
    by_model = msgspec.structs.replace(by_fixer, id="M1", source="model openai:x")
    folder.write_patches([by_fixer, by_model])
    assert [one.label for one in folder.read_patches()] == ["safe", "review"]


def test_only_the_last_application_is_taken_back(root, folder, monkeypatch):
    room = import_module("eroica.fix.apply")
    for n, (path, old) in enumerate((("a.py", A), ("b.py", B)), 1):
        monkeypatch.setattr(room, "now", lambda n=n: f"2026-01-01T00:00:0{n}Z")
        apply([patch(file_edit(path, old, f"n = {n}\n"), patch_id=f"P{n}")], root, folder)
    assert undo(folder) == ["b.py"]
    assert (root / "a.py").read_text() == "n = 1\n"
    assert undo(folder) == ["a.py"]
    assert (root / "a.py").read_text() == A
