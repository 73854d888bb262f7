"""The incident folder: private, whole or not at all, and readable after a crash or an attack."""

import json
import os
import stat

import pytest

from eroica import incident as incidents
from eroica.errors import InputError
from eroica.incident import write_atomic
from eroica.records import Decision, Incident, Job, JobEvidence, Patch


def incident(name="i", **more):
    return Incident(
        id=name, symptom="stuck", onset=None, job=Job(world_size=1, ranks=(0,)),
        causes=(), findings=(), warnings=(), **more,
    )  # fmt: skip


def patch(name):
    return Patch(
        id=name, cause="C1", source="fixer X", label="review", title="t", edits=(), diff="d\n"
    )


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_what_is_known_of_a_job_is_for_its_owner_only(tmp_path, umask):
    folder = incidents.create("barrier", tmp_path)
    folder.write_incident(incident())
    folder.write_evidence(JobEvidence(ranks=(), world_size=1))
    folder.write_patches([patch("P1")])
    folder.append_decision(Decision(time="t", patch="P1", action="accept"))
    write_atomic(folder.report_html_path, b"<html>")
    assert mode(folder.path) == 0o700
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    assert len(files) == 6
    assert {path.name: mode(path) for path in files} == {path.name: 0o600 for path in files}


def test_a_file_elsewhere_is_as_the_umask_says(tmp_path, umask):
    write_atomic(tmp_path / "new.html", b"x")
    assert mode(tmp_path / "new.html") == 0o644
    os.umask(0o077)
    write_atomic(tmp_path / "other.html", b"x")
    assert mode(tmp_path / "other.html") == 0o600


def test_an_existing_file_keeps_its_mode(tmp_path):
    path = tmp_path / ".claude.json"
    path.write_text("{}")
    path.chmod(0o600)
    write_atomic(path, b"{1}")
    assert (mode(path), path.read_bytes()) == (0o600, b"{1}")


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "config.toml"
    real.write_text("old")
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_inside_an_incident_a_link_is_replaced(tmp_path):
    folder = incidents.create("x", tmp_path)
    folder.write_incident(incident())
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder.report_markdown_path.symlink_to(victim)
    write_atomic(folder.report_markdown_path, b"report")
    assert victim.read_text() == "mine"
    assert folder.report_markdown_path.read_bytes() == b"report"


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("old")

    def fail(self, target):
        raise OSError("full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="full"):
        write_atomic(path, b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("name", ["../../../esc", "a/b", "", "..", "P1\n", "x" * 65])
def test_a_patch_id_is_no_path(tmp_path, name):
    folder = incidents.create("x", tmp_path / "store")
    with pytest.raises(InputError, match="no patch id"):
        folder.write_patches([patch(name)])
    (folder.path / "patches.json").write_bytes(incidents.encode([patch(name)]))
    with pytest.raises(InputError, match="no patch id"):
        folder.read_patches()
    assert not list(tmp_path.rglob("*esc*"))


def test_a_path_that_is_no_utf8_is_written_as_valid_json(tmp_path):
    name = os.fsdecode(b"/data/\xff/train.py")
    folder = incidents.create("x", tmp_path)
    folder.write_incident(incident(source=name))
    folder.write_evidence(JobEvidence(ranks=(), world_size=1, source_root=name))
    assert folder.read_incident().source == r"/data/\udcff/train.py"
    assert folder.read_evidence().source_root == r"/data/\udcff/train.py"
    assert json.loads(folder.incident_bytes())["schema"] == 1


def test_a_torn_last_line_of_the_journal_is_skipped_and_not_continued(tmp_path, caplog):
    folder = incidents.create("x", tmp_path)
    folder.append_decision(Decision(time="1", patch="P1", action="apply"))
    path = folder.path / "decisions.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time":"2","pa')
    assert [one.time for one in folder.read_decisions()] == ["1"]
    assert "line 2 is skipped" in caplog.text
    folder.append_decision(Decision(time="3", patch="P1", action="undo"))
    assert [one.time for one in folder.read_decisions()] == ["1", "3"]


def test_a_free_patch_id_is_free(tmp_path):
    folder = incidents.create("x", tmp_path)
    assert folder.free_patch_id("A") == "A1"
    folder.write_patches([patch("A2")])
    assert folder.free_patch_id("A") == "A3"


def test_a_store_that_cannot_be_made_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        incidents.create("x", tmp_path / "file")


def test_a_reference_of_any_length_is_only_not_found(tmp_path):
    folder = incidents.create("x", tmp_path)
    folder.write_incident(incident())
    with pytest.raises(InputError, match="is no incident"):
        incidents.find("y" * 5000, tmp_path)


def test_the_newest_of_one_second_is_the_one_written_last(tmp_path, monkeypatch):
    monkeypatch.setattr("eroica.incident.time.strftime", lambda *_: "20261129-031205")
    for number, slug in enumerate(("zebra", "apple")):
        folder = incidents.create(slug, tmp_path)
        folder.write_incident(incident())
        os.utime(folder.path / "incident.json", ns=(number, number))
    assert incidents.find(None, tmp_path).id == "20261129-031205-apple"


def test_a_part_of_an_id_names_an_incident_only_where_it_fits_one(tmp_path):
    made = [incidents.create(slug, tmp_path) for slug in ("barrier", "barrier-late", "loader")]
    for folder in made:
        folder.write_incident(incident(folder.id))
    assert incidents.find("loader", tmp_path).id == made[2].id
    assert incidents.find(made[0].id, tmp_path).id == made[0].id  # exact, though part of another
    with pytest.raises(InputError, match="fits more than one incident"):
        incidents.find("barrier", tmp_path)
    with pytest.raises(InputError, match="is no incident"):
        incidents.find("checkpoint", tmp_path)
    assert incidents.find(None, tmp_path).id == made[2].id
