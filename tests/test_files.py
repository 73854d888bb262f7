"""Source trees and evidence with pipes, devices and links that lead elsewhere."""

import os
from pathlib import Path

import pytest

from eroica.explain.sources import Sources
from eroica.files import MAX_SOURCE_BYTES, is_inside, may_be_patched, read_plain
from eroica.fix.project import Tree, locate, python_files
from eroica.localize.source import Project
from eroica.records import Place

SOURCE = "def f():\n    return 1\n"


@pytest.fixture
def hostile(tmp_path):
    """A project with one honest file; all others are traps. Beside it lies a file not its own."""
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "outside.py").write_text("KEY = 'not for others'\n\ndef f():\n    pass\n")
    (root / "train.py").write_text("import pipe, zero, link, loop, large\n\n" + SOURCE)
    os.mkfifo(root / "pipe.py")
    (root / "zero.py").symlink_to("/dev/zero")
    (root / "link.py").symlink_to(tmp_path / "outside.py")
    (root / "loop.py").symlink_to("loop.py")
    (root / "dangling.py").symlink_to("nowhere.py")
    (root / "alias.py").symlink_to("train.py")
    (root / "large.py").write_text("#" * (MAX_SOURCE_BYTES + 1))
    (root / "folder.py").mkdir()
    return root


TRAPS = ("pipe.py", "zero.py", "link.py", "loop.py", "dangling.py", "folder.py", "../outside.py")


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.timeout(20)
def test_no_reader_of_sources_steps_into_a_trap(hostile, name):
    assert not is_inside(hostile / name, hostile)
    assert Tree(hostile).load(name) is None
    assert Sources(hostile).lines(name) is None
    project = Project(hostile)
    assert project.module(name) is None
    assert project.module(str(hostile / name)) is None
    assert Sources(hostile).lines(str(hostile / name)) is None


def test_a_link_within_the_project_is_followed(hostile):
    assert is_inside(hostile / "alias.py", hostile)
    assert Tree(hostile).load("alias.py").text.endswith(SOURCE)


@pytest.mark.timeout(20)
def test_a_walk_over_a_hostile_project_yields_plain_files_of_its_own(hostile):
    found = {path.name for path in python_files(hostile)}
    assert found == {"train.py", "alias.py", "large.py"}
    assert {Path(module.file).name for module in Project(hostile).modules} <= {
        "train.py",
        "alias.py",
    }
    tree = Tree(hostile)
    tree.load_with_imports(["train.py"])
    tree.load_importers(["train.py"])
    assert set(tree.sources) == {"train.py"}


@pytest.mark.parametrize("file", ["../outside.py", "/elsewhere/outside.py", "a/../../outside.py"])
def test_a_frame_never_names_a_file_outside(hostile, tmp_path, file):
    assert locate(file, hostile) is None
    assert Project(hostile).resolve(file) is None
    place = Place(name="f", file=file, line=3)
    assert Sources(hostile).function(place) is None
    assert Tree(hostile).spots([place]) == ()


def test_a_file_is_read_to_its_limit_and_no_further(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)
    assert read_plain(path, 10) == b"x" * 10
    with pytest.raises(OSError, match="more than 9 bytes"):
        read_plain(path, 9)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.timeout(20)
def test_what_is_no_plain_file_is_not_read(tmp_path, make):
    make(tmp_path / "a")
    with pytest.raises(OSError, match=r"no plain file|directory"):
        read_plain(tmp_path / "a")


def test_a_name_that_no_file_can_have_is_not_inside(tmp_path):
    assert not is_inside(tmp_path / "a\0b", tmp_path)
    assert not is_inside(tmp_path / ("x" * 5000), tmp_path)


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [
        ("train.py", True),
        ("pkg/trainer/loop.py", True),
        ("venv/lib/python3/site-packages/lib/fetch.py", False),
        ("build/lib/train.py", False),
        ("tests/test_train.py", False),
        ("conftest.py", False),
        (".github/hooks.py", False),
        ("secrets.py", False),
    ],
)
def test_what_others_wrote_and_what_holds_secrets_is_not_for_patches(path, is_ours):
    assert may_be_patched(path) is is_ours
