"""Whether anything was compiled here before: the first reading says that it takes longer."""

from pathlib import Path

import pytest

from eroica import gathering
from eroica.read import kernel_files


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(
        kernel_files, "_folders", lambda is_to_write: iter([tmp_path / "a", tmp_path])
    )
    return tmp_path


def test_a_machine_is_new_until_a_kernel_is_kept(folders):
    assert not kernel_files.is_any_kept()
    (folders / ".half.part").touch()
    assert not kernel_files.is_any_kept()
    kernel_files.write("f", b"code")
    assert kernel_files.is_any_kept()
    assert kernel_files.read("f") == b"code"


@pytest.mark.parametrize("is_new", [True, False])
def test_the_first_reading_on_a_machine_says_that_it_compiles(is_new, monkeypatch):
    monkeypatch.setattr(kernel_files, "is_any_kept", lambda: not is_new)
    data = Path(__file__).parent / "data" / "dlrm_8ranks_v100"
    said = []
    gathering.from_paths([next(data.glob("worker0_*"))], progress=said.append)
    assert any("compiling the readers" in line for line in said) is is_new
