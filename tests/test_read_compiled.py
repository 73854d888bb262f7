"""Compiled functions work, and are kept where they can be, whatever folders may be written."""

import os
import tempfile

import numba.core.config
import pytest
from numba.core import caching

from eroica.read.compiled import compiled, compiled_lean


def double(x: int) -> int:
    return x * 2


@pytest.fixture
def no_place_of_numbas_own(monkeypatch, tmp_path):
    """A package folder that cannot be written and no home: numba finds no place for its cache."""
    named = [c for c in caching.CacheImpl._locator_classes if "UserProvided" in c.__name__]
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", named)
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"eroica-numba-{os.getuid()}"


def test_the_cache_moves_to_a_private_folder(no_place_of_numbas_own):
    assert compiled(double)(21) == 42
    assert list(no_place_of_numbas_own.rglob("*.nbi"))
    assert no_place_of_numbas_own.stat().st_mode & 0o077 == 0


def test_a_folder_others_could_fill_is_not_used(no_place_of_numbas_own):
    no_place_of_numbas_own.mkdir()
    no_place_of_numbas_own.chmod(0o777)
    assert compiled_lean(double)(21) == 42
    assert not list(no_place_of_numbas_own.rglob("*"))


def test_no_folder_at_all_still_compiles(no_place_of_numbas_own):
    no_place_of_numbas_own.write_text("a file stands in the way")
    assert compiled(double)(21) == 42
