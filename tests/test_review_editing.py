"""A hunk in an editor: line ends and the last line stay what they were."""

import sys

import pytest

from eroica.review.editing import edited
from eroica.review.hunks import hunks_of


@pytest.fixture
def editor(monkeypatch, tmp_path):
    """Set an editor that runs Python code on the bytes of the file."""

    def use(code):
        script = tmp_path / "editor.py"
        script.write_text(
            "import sys, pathlib\n"
            "path = pathlib.Path(sys.argv[1])\n"
            "data = path.read_bytes()\n"
            f"{code}\n"
            "path.write_bytes(data)\n"
        )
        monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")

    return use


def hunk(before, after):
    (only,) = hunks_of("P1", "a.py", before, after)
    return only


def test_a_missing_line_end_at_the_end_of_the_file_is_put_back(editor):
    editor("data = data.replace(b'two', b'three').rstrip(b'\\n')")
    before = "a\nb\nc\n"
    assert edited(hunk(before, "a\ntwo\nc\n"), before) == ["three\n"]


def test_the_last_line_of_a_file_without_line_end_gets_none(editor):
    editor("data = data.replace(b'two', b'three') + b'\\n'")
    assert edited(hunk("a\nb", "a\ntwo"), "a\nb") == ["three"]


def test_windows_line_ends_stay_even_if_the_editor_drops_them(editor):
    editor("assert b'\\r\\n' in data; data = data.replace(b'\\r\\n', b'\\n') + b'more\\n'")
    before = "a\r\nb\r\nc\r\n"
    assert edited(hunk(before, "a\r\ntwo\r\nc\r\n"), before) == ["two\r\n", "more\r\n"]


def test_windows_line_ends_alone_are_no_change(editor):
    editor("data = data.replace(b'\\r\\n', b'\\n')")
    before = "a\r\nb\r\nc\r\n"
    assert edited(hunk(before, "a\r\ntwo\r\nc\r\n"), before) is None


def test_bytes_that_are_no_utf8_pass_through(editor):
    editor("data = data.replace(b'two', b'three')")
    assert edited(hunk("a\n", "two \udcff\n"), "a\n") == ["three \udcff\n"]


def test_all_lines_taken_out_is_an_edit(editor):
    editor("data = b''")
    assert edited(hunk("a\nb\n", "a\ntwo\n"), "a\nb\n") == []


def test_a_failing_editor_changes_nothing(editor):
    editor("data = b'x'; path.write_bytes(data); sys.exit(1)")
    assert edited(hunk("a\nb\n", "a\ntwo\n"), "a\nb\n") is None
