"""Compiling beforehand is done once and never twice."""

import subprocess
import sys

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


def test_what_a_verdict_takes_is_there_before_it_is_needed():
    code = (
        "import sys\nfrom eroica.watch import warm\nwarm.preload().join()\n"
        "missing = [name for name in warm._NEEDED if name not in sys.modules]\n"
        "assert not missing, missing\n"
        "assert not {'torch', 'openai', 'langchain', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
