"""Terminals and locales of all kinds: narrow, dumb, without color, without UTF-8."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.text import SPELL_OUT

ROOT = Path(__file__).parents[1]
INCIDENTS = ROOT / "tests" / "data" / "incidents"
NO_UTF8 = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_marks_are_spelled_out_where_a_stream_cannot_show_them():
    shown = "rank 2 ██▏ 78 % · 3 µs → 4 µs ± 1".encode("ascii", SPELL_OUT)
    assert shown == b"rank 2 ##| 78 % - 3 us -> 4 us +- 1"
    assert "Größe 漢".encode("ascii", SPELL_OUT) == b"Gr\\xf6\\xdfe \\u6f22"
    assert "Größe 漢".encode("latin-1", SPELL_OUT) == "Größe ".encode("latin-1") + b"\\u6f22"


def test_bytes_that_are_no_text_are_still_an_error_when_read():
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", SPELL_OUT)


def eroica(*words, cwd, **given):
    env = os.environ | {"PYTHONPATH": str(ROOT)} | given
    return subprocess.run(
        [sys.executable, "-P", "-m", "eroica", *words],
        cwd=cwd, env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """An incident whose words hold every kind of letter, in the store of an empty folder."""
    store = tmp_path / ".eroica" / "incidents"
    shutil.copytree(INCIDENTS / "slow", store / "20261129-031205-slow")
    record = store / "20261129-031205-slow" / "incident.json"
    text = record.read_text()
    assert '"headline": "' in text
    record.write_text(text.replace('"headline": "', '"headline": "Größe 漢 → ', 1))
    return tmp_path


@pytest.mark.parametrize(
    "given",
    [NO_UTF8, {"PYTHONIOENCODING": "latin-1"}],
    ids=["posix", "latin-1"],
)
def test_a_locale_without_utf8_gets_every_word(folder, given):
    listed = eroica("list", cwd=folder, **given)
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert b"\\u6f22 -> " in listed.stdout
    fixed = eroica("fix", "slow", "--no-llm", cwd=folder, **given)
    assert fixed.returncode == 0, fixed.stderr
    assert b"##" in fixed.stdout
    failed = eroica("diagnose", "größer", cwd=folder, **given)
    assert failed.returncode == 2
    assert failed.stderr.startswith(b"eroica: ")


@pytest.mark.parametrize(
    "given",
    [{"COLUMNS": "1", "TERM": ""}, {"COLUMNS": "40", "TERM": "dumb"}],
    ids=["one column", "dumb"],
)
def test_no_terminal_is_too_small_or_too_dumb(folder, given):
    done = eroica("fix", "slow", "--no-llm", cwd=folder, FORCE_COLOR="", **given)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    assert "confidence" in done.stdout.decode()


def test_no_color_wins_over_a_terminal(folder):
    done = eroica("fix", "slow", "--no-llm", cwd=folder, FORCE_COLOR="1", NO_COLOR="1")
    assert b"\x1b[3" not in done.stdout
    assert b"\x1b[9" not in done.stdout


def test_a_json_record_is_utf8_in_every_locale(folder):
    shown = eroica("report", "--format", "json", "-o", "-", cwd=folder, **NO_UTF8)
    record = folder / ".eroica" / "incidents" / "20261129-031205-slow" / "incident.json"
    assert shown.stdout == record.read_bytes()
    assert "Größe 漢".encode() in shown.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(tmp_path, shell):
    words = {"COMP_WORDS": "eroica dia", "COMP_CWORD": "1"}
    words |= {"_TYPER_COMPLETE_ARGS": "eroica dia"}
    if shell == "fish":
        words["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    done = eroica(cwd=tmp_path, _EROICA_COMPLETE=f"complete_{shell}", **words)
    assert b"diagnose" in done.stdout, done.stderr
    assert b"doctor" not in done.stdout
