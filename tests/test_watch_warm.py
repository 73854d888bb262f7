"""Compiling beforehand is done once and never twice."""

from eroica.watch import warm


def test_readers_are_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(warm.os, "nice", lambda number: 0)
    assert not warm.stamp_path().exists()
    warm.compile_readers()
    assert warm.stamp_path().parent == tmp_path / "eroica"
    assert warm.stamp_path().exists()
    assert warm.start() is None


def test_an_unfinished_child_is_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    child = warm.start()
    warm.stop(child)
    assert child.returncode is not None
    warm.stop(None)
