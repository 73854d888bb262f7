"""Nsight Systems on request, against a made-up nsys on PATH that writes a real export."""

import shutil
import stat
import sys
import textwrap
import time
from pathlib import Path

import pytest

from eroica.errors import InputError
from eroica.watch.nsight import Nsight

EXPORT = Path(__file__).parent / "data" / "read" / "healthy_1pct.710487.sqlite"
FAKE = """
    #!{python}
    import os, pathlib, shutil, sys
    log = pathlib.Path("{log}")
    with log.open("a") as stream:
        stream.write(" ".join(sys.argv[1:]) + "\\n")
    what, *words = sys.argv[1:]
    if what == "launch":
        command = [word for word in words if not word.startswith("--")]
        os.execvp(command[0], command)
    if what == "{failing}":
        sys.exit("no such session")
    if what == "start":
        output = next(word[9:] for word in words if word.startswith("--output="))
        pathlib.Path("{log}.output").write_text(output)
    if what == "stop":
        output = pathlib.Path("{log}.output").read_text()
        shutil.copy("{export}", output + ".sqlite")
"""


def install_fake(folder, monkeypatch, failing="nothing"):
    """Put a made-up nsys on PATH; returns the file in which it notes how it was called."""
    path = folder / "bin" / "nsys"
    path.parent.mkdir(exist_ok=True)
    values = {"python": sys.executable, "log": folder / "log", "failing": failing}
    path.write_text(textwrap.dedent(FAKE).strip().format(**values, export=EXPORT))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return folder / "log"


@pytest.fixture
def fake(tmp_path, monkeypatch):
    return lambda failing="nothing": install_fake(tmp_path, monkeypatch, failing)


def record(nsight):
    nsight.poll(0.0, 100e6, 20.0)
    while not nsight._step.done():
        time.sleep(0.01)
    assert nsight.is_busy
    nsight.poll(1.9, 100e6, 20.0)
    assert not nsight._is_stopping, "ten steps, and two seconds at least"
    nsight.poll(2.1, 100e6, 20.0)


def test_some_steps_are_recorded_and_each_rank_of_the_report_becomes_patterns(tmp_path, fake):
    log = fake()
    nsight = Nsight(tmp_path / "out")
    record(nsight)
    found = nsight.patterns()
    nsight.close()
    assert nsight.problems == [] and not nsight.is_busy
    assert len(found) >= 1 and found[0].functions
    lines = log.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["start", "stop"]
    assert "--export=sqlite" in lines[0] and lines[1].split()[1] in lines[0]


def test_the_job_is_started_in_the_session(tmp_path, fake):
    fake()
    nsight = Nsight(tmp_path / "out")
    words = nsight.wrap(["torchrun", "train.py"])
    assert words[1] == "launch" and words[-2:] == ["torchrun", "train.py"]
    assert f"--session-new={nsight._session}" in words
    nsight.close()


@pytest.mark.parametrize("failing", ["start", "stop"])
def test_an_nsys_that_fails_is_a_problem_that_is_told(tmp_path, fake, failing):
    fake(failing)
    nsight = Nsight(tmp_path / "out")
    record(nsight)
    nsight.patterns()
    nsight.close()
    assert any(f"nsys {failing} failed: no such session" in text for text in nsight.problems)


def test_a_job_that_ends_before_the_recording_does_is_recorded_up_to_there(tmp_path, fake):
    fake()
    nsight = Nsight(tmp_path / "out")
    nsight.poll(0.0, 100e6, 20.0)
    assert nsight.patterns()
    nsight.close()


def test_reports_that_lay_there_before_are_not_this_jobs(tmp_path, fake):
    fake("stop")
    (tmp_path / "out").mkdir()
    shutil.copy(EXPORT, tmp_path / "out" / "old.sqlite")
    nsight = Nsight(tmp_path / "out")
    nsight.poll(0.0, 100e6, 20.0)
    assert nsight.patterns() == []
    assert any("wrote no SQLite report" in text for text in nsight.problems)
    nsight.close()


def test_without_nsys_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="--nsys needs Nsight Systems") as caught:
        Nsight(tmp_path / "out")
    assert "no `nsys` on PATH" in str(caught.value)
