"""Scratch copies: whatever a rehearsed job writes, the user's files stay as they were."""

import os

import pytest

from eroica.fix import scratch
from eroica.fix.scratch import copy_tree, notes_on, stamps


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose files over ten bytes are large, on a file system that shares no blocks."""
    monkeypatch.setattr(scratch, "LINK_BYTES", 10)
    monkeypatch.setattr(scratch, "COPY_BYTES", 30)
    monkeypatch.setattr(scratch, "_share_blocks", lambda file, target: False)
    root = tmp_path / "project"
    for folder in (".git", "data", "out"):
        (root / folder).mkdir(parents=True)
    (root / "small.py").write_text("x = 1\n")
    (root / "data" / "big.bin").write_bytes(b"d" * 11)
    (root / "out" / "last.ckpt").write_bytes(b"c" * 20)
    return root


def test_data_is_linked_and_the_rest_copied(project, tmp_path):
    (project / "gone").symlink_to("nowhere")
    os.mkfifo(project / "pipe")
    copied = copy_tree(project, tmp_path / "t")
    assert sorted(os.listdir(tmp_path / "t")) == ["data", "out", "small.py"]
    assert (tmp_path / "t" / "data" / "big.bin").is_symlink()
    assert copied.linked == [project / "data" / "big.bin"]
    assert not (tmp_path / "t" / "small.py").is_symlink()


def test_a_checkpoint_written_in_the_copy_does_not_reach_the_users(project, tmp_path):
    copy_tree(project, tmp_path / "t")
    (tmp_path / "t" / "out" / "last.ckpt").write_bytes(b"new")
    assert (project / "out" / "last.ckpt").read_bytes() == b"c" * 20


@pytest.mark.parametrize("name", ["train.log", "model.PT", "events.tfevents.1"])
def test_what_a_job_may_write_is_never_linked(project, tmp_path, name):
    (project / "out" / name).write_bytes(b"x" * 11)
    (project / "out" / "last.ckpt").unlink()
    copy_tree(project, tmp_path / "t")
    assert not (tmp_path / "t" / "out" / name).is_symlink()


def test_what_is_too_large_to_copy_is_left_out_and_named(project, tmp_path):
    (project / "out" / "old.ckpt").write_bytes(b"c" * 20)
    copied = copy_tree(project, tmp_path / "t")
    assert len(copied.left_out) == 1
    (note,) = notes_on(copied, {})
    assert note == f"{copied.left_out[0]} is too large to copy, and was left out"
    assert len(os.listdir(tmp_path / "t" / "out")) == 1


def test_a_shared_file_that_was_written_is_named(project, tmp_path):
    copied = copy_tree(project, tmp_path / "t")
    before = stamps(copied.linked)
    assert notes_on(copied, before) == []
    (tmp_path / "t" / "data" / "big.bin").write_bytes(b"changed")
    (note,) = notes_on(copied, before)
    assert note.startswith(f"{project / 'data' / 'big.bin'} was written")


def test_a_link_to_a_folder_stays_a_link(project, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (project / "link").symlink_to(tmp_path / "elsewhere")
    copy_tree(project, tmp_path / "t")
    assert (tmp_path / "t" / "link").resolve() == tmp_path / "elsewhere"


def test_where_blocks_can_be_shared_a_large_file_is_the_copys_own(project, tmp_path, monkeypatch):
    def share(file, target):
        target.write_bytes(file.read_bytes())
        return True

    monkeypatch.setattr(scratch, "_share_blocks", share)
    copied = copy_tree(project, tmp_path / "t")
    assert (copied.linked, copied.left_out) == ([], [])
    assert not (tmp_path / "t" / "data" / "big.bin").is_symlink()


def test_sharing_blocks_leaves_nothing_half_made_where_it_cannot_be(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100)
    made = scratch._share_blocks(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").exists() is made
    assert not made or (tmp_path / "b").read_bytes() == b"x" * 100
