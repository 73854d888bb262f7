"""Compiled functions work, and are kept where they can be, whatever folders may be written."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from eroica.read import compiled as module
from eroica.read import kernel_files
from eroica.read.compiled import compiled, flatten


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


def double(x: int) -> int:
    return x * 2


def halve(x: int) -> int:
    return x // 2


def weigh(pair: Pair, share: float, scale: int, matrix: np.ndarray) -> tuple[int, float, bool]:
    total = 0.0
    for i in range(len(pair.left)):
        total += pair.left[i] * pair.right[i] * share
    matrix[1, 2] = scale
    return len(pair.right) + matrix.shape[0] * matrix.shape[1], total, total > scale


@compiled
def inner(x: int) -> int:
    return x + FACTOR


FACTOR = 3


def outer(x: int) -> int:
    return inner(x) * 10


@pytest.fixture
def folders(monkeypatch, tmp_path):
    """Three places of the test's own instead of the package's, the user's and the system's."""
    package, home = tmp_path / "package", tmp_path / "home"
    monkeypatch.setattr(kernel_files, "__file__", str(package / "kernel_files.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return package / "__pycache__", home / "eroica", tmp_path / f"eroica-kernels-{os.getuid()}"


def close(folder):
    """A folder that cannot be made, even by root: a file stands in the way."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file stands in the way")


def kept(folder):
    return list(folder.glob("*.kernel")) if folder.is_dir() else []


@pytest.fixture
def count_compilations(monkeypatch):
    from eroica.read import compiling

    compiled_kernels = []
    compile_kernel = compiling.compile_kernel

    def counting(kernel, arguments, name):
        compiled_kernels.append(kernel.function.__name__)
        return compile_kernel(kernel, arguments, name)

    monkeypatch.setattr(compiling, "compile_kernel", counting)
    return compiled_kernels


def test_arrays_tuples_and_numbers_go_in_and_numbers_come_out(folders):
    pair = Pair(np.array([1, 2, 3], np.int32), np.array([0.5, 1.0, 2.0]))
    matrix = np.zeros((2, 3), np.int64)
    assert compiled(weigh)(pair, 2.0, 7, matrix) == (9, 17.0, True)
    assert matrix.tolist() == [[0, 0, 0], [0, 0, 7]]


def test_other_types_are_another_kernel(folders):
    kernel = compiled(weigh)
    matrix = np.zeros((2, 3), np.int64)
    for dtype in (np.int8, np.float32):
        pair = Pair(np.array([1, 2], dtype), np.array([4, 8], np.int64))
        assert kernel(pair, 0.5, 100, matrix) == (8, 10.0, False)
    assert len(kept(folders[0])) == 2


def test_arrays_with_gaps_are_read_and_written_as_well(folders):
    wide = np.arange(12, dtype=np.int32).reshape(3, 4)
    pair = Pair(wide[:, 1], np.array([9.0, 1.0, 9.0, 10.0, 9.0, 100.0])[1::2])
    matrix = np.zeros((3, 4), np.int64)
    expected = 1 * 1 + 5 * 10 + 9 * 100
    assert compiled(weigh)(pair, 1.0, 7, matrix[:2, ::2][:, [0, 1]]) == (7, expected, True)
    assert compiled(weigh)(pair, 1.0, 7, matrix[1:, 1:]) == (9, expected, True)
    assert matrix.tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 7]]


def test_arrays_that_cannot_be_written_can_be_read(folders):
    frozen = np.arange(12, dtype=np.int32).reshape(3, 4)
    frozen.flags.writeable = False
    pair = Pair(frozen[:, 1], np.array([1.0, 10.0, 100.0]))
    assert compiled(weigh)(pair, 1.0, 7, np.zeros((2, 3), np.int64)) == (9, 951.0, True)


def test_what_is_no_array_number_or_tuple_is_refused():
    with pytest.raises(TypeError, match="list"):
        flatten([1], [], [], [])


def test_a_kernel_is_compiled_once_and_then_loaded(folders, count_compilations):
    assert compiled(double)(21) == 42
    assert compiled(double)(-4) == -8
    assert count_compilations == ["double"]


def test_kept_code_needs_no_numba(folders):
    """Else every command would pay for importing it."""
    program = (
        "import sys; import numpy as np; from eroica.read import scan\n"
        "print(scan.end_of_value(np.frombuffer(b'[1, 2]', np.uint8), 0, 6), 'numba' in sys.modules)"
    )
    for expected in ("6 True", "6 False"):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        if expected == "6 True" and done.stdout.strip() == "6 False":
            continue  # another test, or process, has compiled it already
        assert done.stdout.strip() == expected, done.stderr


def test_where_the_package_cannot_be_written_the_users_cache_is_used(folders):
    package, home, apart = folders
    close(package)
    assert compiled(double)(21) == 42
    assert kept(home) and not apart.exists()


def test_without_a_home_a_private_folder_is_used(folders, count_compilations):
    package, home, apart = folders
    close(package)
    close(home)
    assert compiled(double)(21) == 42
    assert kept(apart)
    assert apart.stat().st_mode & 0o077 == 0
    assert compiled(double)(21) == 42
    assert count_compilations == ["double"]


def test_a_folder_others_could_fill_is_neither_written_nor_read(folders, count_compilations):
    package, home, apart = folders
    close(package)
    close(home)
    assert compiled(double)(21) == 42
    assert kept(apart)
    apart.chmod(0o777)
    assert compiled(double)(21) == 42
    assert count_compilations == ["double", "double"]
    for file in kept(apart):
        file.unlink()
    assert compiled(double)(21) == 42
    assert not kept(apart)


def test_no_folder_at_all_still_compiles(folders):
    for folder in folders:
        close(folder)
    assert compiled(double)(21) == 42


@pytest.mark.parametrize("left", [0, 1, 40, 200])
def test_a_file_that_a_crash_cut_short_is_made_anew(folders, left, count_compilations):
    assert compiled(double)(21) == 42
    (file,) = kept(folders[0])
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    assert compiled(double)(21) == 42
    assert count_compilations == ["double", "double"]
    assert len(file.read_bytes()) == len(whole)
    assert compiled(double)(21) == 42
    assert count_compilations == ["double", "double"]


def test_flipped_bits_are_never_run(folders, count_compilations):
    assert compiled(double)(21) == 42
    (file,) = kept(folders[0])
    damaged = bytearray(file.read_bytes())
    damaged[-9] ^= 0x40
    file.write_bytes(damaged)
    assert compiled(double)(21) == 42
    assert len(count_compilations) == 2


def test_a_changed_constant_of_a_called_kernel_is_noticed(folders, monkeypatch):
    """numba's own cache looks at the file of the outermost function alone."""
    assert compiled(outer)(4) == 70
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5)
    assert compiled(outer)(4) == 90
    assert len(kept(folders[0])) == 2


def test_a_changed_source_of_a_called_kernel_is_noticed(folders, monkeypatch):
    assert compiled(outer)(4) == 70

    @compiled
    def other(x: int) -> int:
        return x - 1

    monkeypatch.setattr(sys.modules[__name__], "inner", other)
    assert compiled(outer)(4) == 30


def test_another_processor_has_its_own_code(folders, monkeypatch):
    assert compiled(double)(21) == 42
    monkeypatch.setattr(module, "compiler_and_processor", lambda: "another")
    assert compiled(double)(21) == 42
    assert len(kept(folders[0])) == 2


def calls_in_other_processes(folder, names):
    """Results of kernels each called for 4 in a process of its own, all at the same time."""
    program = (
        "import sys; from eroica.read import kernel_files; from test_read_compiled import *\n"
        "kernel_files.__file__ = sys.argv[1]\n"
        "for name in sys.argv[2].split(): print(compiled(globals()[name])(4))"
    )
    start = [sys.executable, "-c", program, str(folder / "kernel_files.py")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    running = [
        subprocess.Popen([*start, name], stdout=subprocess.PIPE, text=True, env=environment)
        for name in names
    ]
    return [process.communicate(timeout=60)[0].split() for process in running]


def test_processes_that_compile_at_once_do_not_disturb_each_other(tmp_path):
    found = calls_in_other_processes(tmp_path, ["outer"] * 3)
    assert found == [["70"]] * 3
    assert len(kept(tmp_path / "__pycache__")) == 1
    assert not list((tmp_path / "__pycache__").glob(".*"))


def test_kernels_compiled_in_different_processes_are_told_apart(tmp_path):
    """Each was the first of its process, so numba numbered their functions alike."""
    names = ["double", "outer", "halve"]
    assert calls_in_other_processes(tmp_path, names) == [["8"], ["70"], ["2"]]
    files = {file: file.stat().st_mtime_ns for file in kept(tmp_path / "__pycache__")}
    assert len(files) == 3
    assert calls_in_other_processes(tmp_path, [" ".join(names)]) == [["8", "70", "2"]]
    assert {f: f.stat().st_mtime_ns for f in kept(tmp_path / "__pycache__")} == files
