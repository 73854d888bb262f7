"""What a rank answers and writes is foreign: cut off, trickling, of another shape or user."""

import json
import os
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from eroica.collect import processes
from eroica.collect.asking import NoAnswer, ask
from eroica.collect.gather import read_ending, read_facts
from eroica.collect.hook import folder
from eroica.watch import command


@contextmanager
def a_rank_that_answers(folder, *pieces, pause_s=0.0):
    """A socket where the hook's would be; it sends the pieces, whatever it is asked."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(folder / "rank-00000.sock"))
    server.listen(1)

    def serve():
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            for piece in pieces:
                try:
                    connection.sendall(piece)
                except OSError:
                    return
                time.sleep(pause_s)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join(5)
        server.close()


@pytest.mark.parametrize(
    "line",
    [
        b"no json\n",
        b"[]\n",
        b"null\n",
        b"7\n",
        b"{}\n",
        b'{"ok": 1}\n',
        b"\xff\xfe\n",
        b'{"ok": tr',
    ],
)
def test_an_answer_that_is_none_is_said_to_be_none(tmp_path, line):
    with (
        a_rank_that_answers(tmp_path, line),
        pytest.raises(NoAnswer, match="rank 0 gave an answer that is none"),
    ):
        ask(tmp_path, 0, "ping")


def test_an_answer_in_pieces_is_put_together(tmp_path):
    pieces = (b'{"ok": true, ', b'"value": {"a": "', b"x" * 70_000, b'"}}\n')
    with a_rank_that_answers(tmp_path, *pieces, pause_s=0.02):
        assert ask(tmp_path, 0, "ping") == {"a": "x" * 70_000}


def test_what_the_hook_could_not_do_is_the_reason(tmp_path):
    with (
        a_rank_that_answers(tmp_path, b'{"ok": false, "error": "OSError: disk full"}\n'),
        pytest.raises(NoAnswer, match="rank 0: OSError: disk full"),
    ):
        ask(tmp_path, 0, "ping")


def test_an_answer_that_trickles_for_ever_takes_no_longer_than_the_limit(tmp_path):
    start = time.monotonic()
    with a_rank_that_answers(tmp_path, *[b"x"] * 12, pause_s=0.1):
        with pytest.raises(NoAnswer, match=r"did not answer within 0\.3 s"):
            ask(tmp_path, 0, "ping", limit_s=0.3)
        assert time.monotonic() - start < 1.0


def test_a_rank_that_hangs_up_is_said_to(tmp_path):
    with a_rank_that_answers(tmp_path), pytest.raises(NoAnswer, match="closed the line"):
        ask(tmp_path, 0, "ping")


@pytest.mark.parametrize("text", ["", "[1", "[]", "3", '"x"', "null", "\udcff", "[" * 100_000])
def test_an_ending_of_another_shape_is_none(tmp_path, text):
    (tmp_path / "rank-00003.exit.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_ending(tmp_path, 3) is None


def test_an_ending_of_another_process_is_none(tmp_path):
    (tmp_path / "rank-00003.exit.json").write_text(json.dumps({"pid": 7, "code": 1}))
    assert read_ending(tmp_path, 3, 8) is None
    assert read_ending(tmp_path, 3, 7) == {"pid": 7, "code": 1}


@pytest.mark.parametrize(
    ("text", "facts"),
    [("", []), ("{}", []), ('[{"key": "a"}, 3, null]', [{"key": "a"}]), ("[{", [])],
)
def test_facts_of_another_shape_are_left_out(tmp_path, text, facts):
    (tmp_path / "rank-00003.facts.json").write_text(text)
    assert read_facts(tmp_path, 3) == facts


# --- folders in places that all may write -----------------------------------------------------


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Two places that all may write, in which the hook looks for its folder."""
    memory, disk = tmp_path / "shm", tmp_path / "tmp"
    for place in (memory, disk):
        place.mkdir(mode=0o1777)
    join = os.path.join
    moved = lambda first, *rest: join(str(memory) if first == "/dev/shm" else first, *rest)  # noqa: E731
    monkeypatch.setattr(folder.os.path, "join", moved)
    monkeypatch.setattr(folder.tempfile, "gettempdir", lambda: str(disk))
    monkeypatch.delenv("EROICA_RUN", raising=False)
    return memory, disk


def ours(place):
    return place / f"eroica-{os.getuid()}"


def test_the_hooks_folder_is_for_its_owner_alone(places):
    found = Path(folder.find_folder())
    assert found.parent == ours(places[0])
    for made in (found, found.parent):
        assert made.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("trap", ["link", "open to all", "open to a group", "a file", "another's"])
def test_a_folder_that_somebody_laid_there_is_not_used(places, trap, monkeypatch):
    memory, disk = places
    laid = ours(memory)
    if trap == "link":
        (disk / "theirs").mkdir()
        laid.symlink_to(disk / "theirs")
    elif trap == "a file":
        laid.touch()
    else:
        laid.mkdir()
        laid.chmod({"open to all": 0o702, "open to a group": 0o720}.get(trap, 0o755))
    if trap == "another's":
        real = os.lstat
        owner = os.getuid() + 1
        monkeypatch.setattr(
            folder.os,
            "lstat",
            lambda path: (
                os.stat_result((0o40755, 0, 0, 1, owner, 0, 0, 0, 0, 0))
                if str(path) == str(laid)
                else real(path)
            ),
        )
    assert Path(folder.find_folder()).parent == ours(disk)


def test_where_both_places_are_taken_the_hook_stays_off(places):
    for place in places:
        ours(place).touch()
    assert folder.find_folder() is None
    folder.sweep()


def test_a_rank_is_not_looked_for_in_anothers_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(processes.tempfile, "gettempdir", lambda: str(tmp_path))
    laid = ours(tmp_path) / "job-x"
    laid.mkdir(parents=True)
    (laid / "pid-999999999").touch()
    ours(tmp_path).chmod(0o700)
    assert processes.find_folder_of(999999999) == str(laid)
    ours(tmp_path).chmod(0o777)
    assert processes.find_folder_of(999999999) is None


def test_a_run_makes_its_folder_elsewhere_where_somebody_laid_one(tmp_path):
    ours(tmp_path).mkdir()
    ours(tmp_path).chmod(0o777)
    with pytest.raises(OSError, match="not ours alone"):
        command._make_below(tmp_path)
    ours(tmp_path).chmod(0o700)
    assert command._make_below(tmp_path).stat().st_mode & 0o077 == 0
