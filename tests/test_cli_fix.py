"""``eroica fix`` and ``undo`` as typed: a small project, a recorded stuck job, a plain script."""

import json
import subprocess
import sys

import make_cli
import pytest
from make_cli import FIXED, Shell, patch

from eroica import incident as incidents
from eroica.commands import proposing
from eroica.errors import EroicaError
from eroica.fix.diff import file_edit
from eroica.incident import IncidentFolder
from eroica.records import Rehearsal

CHECK = f"""import sys
text = open("train.py").read()
sys.exit(0 if {FIXED!r} in text else 1)
"""


@pytest.fixture
def shell(tmp_path, monkeypatch, capfd):
    (tmp_path / "job").mkdir()
    return Shell(make_cli.job(tmp_path / "job"), monkeypatch, capfd)


def text(shell):
    return (shell.folder / "train.py").read_text()


def newest() -> IncidentFolder:
    return incidents.list_folders()[-1]


def git(shell, *words):
    return subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words],
        cwd=shell.folder, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def test_fix_shows_the_patch_and_writes_nothing(shell):
    before = text(shell)
    done = shell("fix", ".")
    assert done.code == 0
    assert f"+    model = DDP(Encoder(), bucket_cap_mb=0.001, {FIXED})" in done.out
    assert f"eroica fix {newest().id} --accept all --apply" in done.out
    assert text(shell) == before


def test_accept_and_apply_write_it_and_undo_takes_it_back(shell):
    before = text(shell)
    done = shell("fix", ".", "--accept", "all", "--apply", "--json")
    (row,) = json.loads(done.out)["patches"]
    assert row["files"] == ["train.py"] and row["applied"]
    assert FIXED in text(shell)
    assert "restored train.py" in shell("undo").out
    assert text(shell) == before
    assert shell("undo").code == 2


def test_a_second_fix_keeps_what_is_applied_and_undo_still_works(shell):
    before = text(shell)
    shell("fix", ".", "--accept", "all", "--apply")
    folder = newest()
    assistant = patch("A1", file_edit("train.py", text(shell), "x = 1\n"), source="assistant")
    folder.write_patches([*folder.read_patches(), assistant])
    done = shell("fix", folder.id)
    assert done.code == 0
    known = {one.id: one for one in folder.read_patches()}
    assert known["P1"].applied and "A1" in known
    assert shell("undo").code == 0
    assert text(shell) == before


def test_the_same_proposal_keeps_its_id_rehearsal_and_mark():
    rehearsal = Rehearsal(command=("x",), verdict="cured", summary="")
    edit = file_edit("a.py", "1\n", "2\n")
    known = [
        patch("P1", file_edit("b.py", "1\n", "2\n"), applied="t"),
        patch("P2", edit, rehearsal=rehearsal),
        patch("P3", file_edit("c.py", "1\n", "2\n")),
        patch("A1", file_edit("d.py", "1\n", "2\n"), source="assistant"),
    ]
    other = file_edit("e.py", "1\n", "2\n")
    merged = proposing.merged([patch("P1", edit), patch("P2", other)], known)
    assert [(one.id, one.edits[0].path) for one in merged] == [
        ("P2", "a.py"), ("P4", "e.py"), ("P1", "b.py"), ("A1", "d.py"),
    ]  # fmt: skip
    assert merged[0].rehearsal == rehearsal


def test_undo_takes_the_newest_application_not_the_newest_incident(shell):
    store = shell.folder / ".eroica" / "incidents"
    old, new = make_cli.incident(store), make_cli.incident(store)
    assert old.id < new.id
    from eroica.fix import apply
    from eroica.records import Decision

    (shell.folder / "a.py").write_text("1\n")
    new.append_decision(Decision(time="2020-01-01T00:00:00Z", patch="P1", action="apply"))
    apply([patch("P1", file_edit("a.py", "1\n", "2\n"))], shell.folder, old)
    assert "restored a.py" in shell("undo").out
    assert (shell.folder / "a.py").read_text() == "1\n"


def test_a_branch_gets_the_commit_and_the_work_tree_nothing(shell):
    before = text(shell)
    (shell.folder / ".gitignore").write_text(".eroica\n")
    git(shell, "init", "-q", "-b", "main")
    git(shell, "add", "-A")
    git(shell, "commit", "-q", "-m", "first")
    done = shell("fix", ".", "--accept", "all", "--branch", "eroica/fix")
    commit = git(shell, "rev-parse", "eroica/fix").strip()
    assert f"committed to branch eroica/fix as {commit[:12]}" in done.out
    assert "undo" not in done.out and "applied P1" not in done.out
    assert FIXED in git(shell, "show", "eroica/fix:train.py")
    assert text(shell) == before and git(shell, "status", "--porcelain") == ""
    assert shell("undo").code == 2


def test_a_dry_run_checks_everything_and_writes_nothing(shell):
    before = text(shell)
    done = shell("fix", ".", "--accept", "all", "--apply", "--dry-run")
    assert done.code == 0 and "would write train.py" in done.out
    assert text(shell) == before and not newest().read_decisions()
    assert "would write train.py" in shell("fix", ".", "--dry-run", "--json").err
    (shell.folder / "train.py").write_text(before + "# edited since\n")
    assert shell("fix", newest().id, "--dry-run").code == 0  # proposals are made anew


def test_two_patches_for_the_same_lines_are_named_with_the_place(tmp_path):
    record = make_cli.incident(tmp_path).read_incident()
    one = patch("P1", file_edit("a.py", "1\n2\n3\n", "1\ntwo\n3\n"))
    other = patch("M1", file_edit("a.py", "1\n2\n3\n", "1\nzwei\n3\n"), cause="C2")
    chosen = proposing.accepted(record, [one, other], "all")
    assert chosen == [one]
    (line,) = proposing.left_out([one, other], chosen, "all")
    assert line.startswith("M1 (") and "the same lines as P1" in line and "a.py:2-2" in line
    apart = patch("M2", file_edit("a.py", "1\n2\n3\n", "1\n2\ndrei\n"), cause="C2")
    assert proposing.left_out([one, apart], [one, apart], "all") == []


def test_verify_rehearses_with_a_plain_script_and_lets_the_cure_through(shell):
    (shell.folder / "check.py").write_text(CHECK)
    words = ("--verify", f"{sys.executable} check.py")
    done = shell("fix", ".", *words, "--accept", "all", "--apply", "--json")
    (row,) = json.loads(done.out)["patches"]
    assert row["rehearsal"]["verdict"] == "cured"
    assert row["applied"] and FIXED in text(shell)


def test_a_patch_that_fails_its_rehearsal_is_not_applied_and_it_is_said(shell):
    before = text(shell)
    words = ("--verify", f"{sys.executable} no-such-script.py")
    done = shell("fix", ".", *words, "--accept", "all", "--apply")
    assert "nothing was written: the rehearsal of P1 says failed" in done.out
    assert text(shell) == before


def test_display_only_is_not_rehearsed_and_a_rehearsal_that_breaks_is_told(tmp_path, monkeypatch):
    def broken(patch, *rest, **more):
        assert patch.label != "display-only"
        raise EroicaError("the scratch copy cannot be made", "disk full")

    monkeypatch.setattr("eroica.fix.rehearse", broken)
    folder = IncidentFolder(tmp_path)
    edit = file_edit("a.py", "1\n", "2\n")
    patches = [patch("P1", edit, label="display-only"), patch("P2", edit)]
    record = make_cli.incident(tmp_path / "other").read_incident()
    first, second = proposing.rehearse(folder, patches, ["true"], tmp_path, record, print)
    assert first.rehearsal is None
    assert second.rehearsal.verdict == "failed" and "disk full" in second.rehearsal.summary


@pytest.mark.parametrize("verdict", ["no change", "worse", "failed"])
def test_accept_all_leaves_out_what_did_not_help(tmp_path, verdict):
    record = make_cli.incident(tmp_path).read_incident()
    rehearsal = Rehearsal(command=("x",), verdict=verdict, summary="")
    made = patch("P1", file_edit("a.py", "1\n", "2\n"), rehearsal=rehearsal)
    assert proposing.accepted(record, [made], "all") == []
    assert proposing.why_none([made], "all") == f"the rehearsal of P1 says {verdict}"


def test_accept_takes_one_patch_a_cause_by_label_and_none_that_is_applied(tmp_path):
    record = make_cli.incident(tmp_path).read_incident()
    edit = file_edit("a.py", "1\n", "2\n")
    review, safe = patch("P1", edit), patch("P2", edit, label="safe")
    assert proposing.accepted(record, [review, safe], "safe") == [safe]
    assert proposing.accepted(record, [review, safe], "all") == [review]
    assert proposing.accepted(record, [review, safe], None) == []
    done = patch("P3", edit, applied="t")
    assert proposing.accepted(record, [done, review], "all") == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--apply"], "--accept safe or --accept all says which"),
        (["--accept", "safe", "--apply"], "P1 is labelled review"),
        (["--branch", "x"], "--accept safe or --accept all says which"),
    ],
)
def test_what_was_asked_for_and_not_done_is_explained(shell, words, reason):
    before = text(shell)
    assert f"nothing was written: {reason}" in shell("fix", ".", *words).out
    assert f"nothing was written: {reason}" in shell("fix", newest().id, *words, "--json").err
    assert text(shell) == before


@pytest.mark.parametrize("words", [["--apply"], ["--branch", "x"], ["--patch-out", "p.diff"], []])
def test_on_a_terminal_a_review_opens_only_where_nothing_else_was_asked(shell, monkeypatch, words):
    opened = []
    shell.terminal(monkeypatch)
    monkeypatch.setattr(
        "eroica.commands.reviewing.review_on_terminal",
        lambda folder, root, verify=None, **_: opened.append((root, verify)) or 0,
    )
    (shell.folder / "check.py").write_text(CHECK)
    command = [sys.executable, "check.py"]
    shell("fix", ".", *words, "--verify", " ".join(command))
    assert opened == ([] if words else [(shell.folder, command)])


def test_patch_out_writes_the_diff_that_git_takes(shell):
    assert shell("fix", ".", "--patch-out", "p.diff").code == 0
    git(shell, "init", "-q")
    git(shell, "apply", "p.diff")
    assert FIXED in text(shell)


def test_patch_out_to_nowhere_is_bad_input(shell):
    done = shell("fix", ".", "--patch-out", "/proc/x/p.diff")
    assert done.code == 2 and "cannot write /proc/x/p.diff" in done.err


def test_source_reaches_the_diagnosis_of_paths_and_of_an_incident(shell, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (shell.folder / "train.py").rename(project / "train.py")
    shell("fix", "evidence.json", "--source", str(project), "--no-llm")
    assert newest().read_incident().job.source_root == str(project)
    assert newest().read_incident().causes[0].functions[0].file == "train.py"
    shell("diagnose", "evidence.json")
    assert newest().read_incident().job.source_root is None
    shell("diagnose", newest().id, "--source", str(project))
    assert newest().read_incident().job.source_root == str(project)


def test_a_path_wins_over_incidents_with_the_same_word(shell):
    store = shell.folder / ".eroica" / "incidents"
    make_cli.incident(store)
    (shell.folder / "barrier").mkdir()
    (shell.folder / "evidence.json").rename(shell.folder / "barrier" / "evidence.json")
    assert shell("fix", "barrier").code == 0
    assert newest().read_incident().source == "barrier"


def test_a_model_without_a_key_costs_one_line_not_the_patches(shell, monkeypatch):
    monkeypatch.setenv("EROICA_MODEL", "replay:no-such-file")
    done = shell("fix", ".")
    assert done.code == 0 and FIXED in done.out
    assert "no patch from a model" in done.err and "no-such-file" in done.err


def test_a_model_named_by_hand_is_looked_for_first(shell):
    done = shell("fix", ".", "--model", "replay:no-such-file")
    assert done.code == 2 and done.out == ""
    assert not (shell.folder / ".eroica").exists()


@pytest.mark.parametrize("command", ['a "b', "", "  "])
def test_a_command_that_is_none_is_bad_input(shell, command):
    done = shell("fix", ".", "--verify", command)
    assert done.code == 2 and "--verify" in done.err
    assert "eroica itself" not in done.err


def test_a_hostile_patch_cannot_move_the_cursor(shell):
    folder = make_cli.incident(
        shell.folder / ".eroica" / "incidents",
        headline="\x1b[2Jgone\u202e", causes=(), symptom="stuck",
    )  # fmt: skip
    edit = file_edit("\x1b[31ma.py", "1\n", "2\n")
    folder.write_patches([patch("A1", edit, title="\x1b]0;t\x07", source="assistant\x1b[1m")])
    for words in (["list"], ["fix", folder.id], ["review"], ["fix", "\x1b[2Jx"], ["undo"]):
        done = shell(*words)
        assert "\x1b" not in done.out + done.err, words
        assert "\u202e" not in done.out + done.err, words
    assert "\\x1b[2Jgone" in shell("list").out
