"""``eroica review`` in a real terminal, held by tmux: keys go in, the file is looked at."""

import shutil
import subprocess
import sys
import time

import pytest
from make_review import BEFORE, changed, patch, session

from eroica import incident as incidents

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed: apt-get install tmux"
)


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, folder, command, **environment):
        self.base = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        variables = [f"{name}={value}" for name, value in environment.items()]
        shell = " ".join(["env", "-u", "CI", *variables, *command]) + "; echo ended with $?; cat"
        self.tmux("new-session", "-d", "-x", "120", "-y", "40", "-c", str(folder), shell)

    def tmux(self, *words):
        done = subprocess.run(
            [*self.base, *words], capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout

    def screen(self, *options):
        return self.tmux("capture-pane", "-p", *options)

    def wait_for(self, text, seconds=90):
        for _ in range(seconds * 5):
            shown = self.screen()
            if text in shown:
                return shown
            time.sleep(0.2)
        raise AssertionError(f"{text!r} did not appear:\n{self.screen()}")

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def close(self):
        subprocess.run([*self.base, "kill-server"], capture_output=True, timeout=30, check=False)


@pytest.fixture
def review(tmp_path, monkeypatch):
    """Start a review of two hunks of one file; returns a function that opens the terminal."""
    monkeypatch.setenv("EROICA_HOME", str(tmp_path / "home"))
    (tmp_path / "a.txt").write_text(BEFORE)
    folder = incidents.create("x")
    made = session(patch("P1", changed(2, 25)))
    folder.write_incident(made.incident)
    folder.write_patches(made.patches)
    opened = []

    def start(*more, **environment):
        words = [sys.executable, "-P", "-m", "eroica", "review", "--source", str(tmp_path), *more]
        terminal = Terminal(tmp_path, words, EROICA_HOME=tmp_path / "home", **environment)
        opened.append(terminal)
        return terminal

    yield start, tmp_path, folder
    for terminal in opened:
        terminal.close()


def test_a_hunk_is_accepted_and_written_and_undo_takes_it_back(review):
    start, root, folder = review
    terminal = start()
    terminal.wait_for("0 accepted, 0 rejected, 2 open")
    terminal.keys("y")
    terminal.wait_for("1 accepted, 0 rejected, 1 open")
    assert (root / "a.txt").read_text() == BEFORE
    terminal.keys("n")
    terminal.wait_for("1 accepted, 1 rejected, 0 open")
    terminal.keys("w")
    shown = terminal.wait_for("ended with 0")
    assert "written: a.txt" in shown and "eroica undo" in shown
    assert (root / "a.txt").read_text() == changed(2)
    assert [d.action for d in folder.read_decisions()] == ["apply", "accept", "reject"]


def test_q_leaves_the_file_and_the_terminal_as_they_were(review):
    start, root, folder = review
    terminal = start(NO_COLOR="1")
    terminal.wait_for("2 open")
    terminal.keys("y")
    terminal.wait_for("1 accepted")
    terminal.keys("q")
    terminal.wait_for("q again")
    terminal.keys("q")
    shown = terminal.wait_for("ended with 0")
    assert "nothing was written" in shown
    assert "accepted, 0 rejected" not in shown, "the app's screen is gone"
    assert (root / "a.txt").read_text() == BEFORE
    assert folder.read_decisions() == []


def test_without_a_capable_terminal_a_prompt_asks(review):
    start, root, _ = review
    terminal = start(TERM="dumb")
    terminal.wait_for("[y,n,a,d,s,u,w,q,?]")
    terminal.keys("n", "Enter")
    terminal.keys("y", "Enter")
    terminal.wait_for("[w,u,q]")
    assert "\x1b[" not in terminal.screen("-e")
    terminal.keys("w", "Enter")
    terminal.wait_for("ended with 0")
    assert (root / "a.txt").read_text() == changed(25)
