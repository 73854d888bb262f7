"""``eroica collect``: what it writes is for its owner alone, wherever that is."""

import os

import pytest
from make_patterns import make_patterns

from eroica.errors import InputError
from eroica.records import JobEvidence, RankEvidence
from eroica.watch import collecting
from eroica.watch.attach import Look


@pytest.fixture
def looked(monkeypatch):
    evidence = JobEvidence(ranks=(RankEvidence(rank=1),), world_size=4)
    found = Look(evidence, make_patterns(1, ()), "live", "healthy")
    monkeypatch.setattr(collecting, "look", lambda pid, progress: found)


def test_evidence_is_for_its_owner_alone(looked, tmp_path):
    before = os.umask(0)
    try:
        said = collecting.collect_to(tmp_path / "out")
    finally:
        os.umask(before)
    folder = tmp_path / "out" / f"host-{collecting.plain(collecting.host_name())}"
    files = sorted(folder.iterdir())
    assert [path.name for path in files] == ["evidence.json", "patterns.parquet"]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600, 0o600]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert said == f"{folder}: rank 1 of 4; 3 ranks are on other hosts"


def test_a_second_look_replaces_the_first(looked, tmp_path):
    assert collecting.collect_to(tmp_path) == collecting.collect_to(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(looked, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="cannot write to") as caught:
        collecting.collect_to(tmp_path / "out")
    assert caught.value.next_step == "eroica collect -o DIR"
