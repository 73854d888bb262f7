"""Faults of the watch and around it: none costs the job, its exit code or the verdict."""

import logging
import socket
import socketserver
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from eroica.collect.processes import LiveRank
from eroica.config import Parameters
from eroica.errors import InputError
from eroica.watch import command as commands
from eroica.watch import continuous, warm, webhook
from eroica.watch.command import Command
from eroica.watch.continuous import Continuous
from eroica.watch.exchange import Exchange
from eroica.watch.folder_carrier import FolderServer, _Signed
from eroica.watch.http_carrier import HttpLink
from eroica.watch.iteration import Iteration, Step
from eroica.watch.live import WatchedJob
from eroica.watch.plain_server import PlainHandler, PlainServer
from eroica.watch.ranks import Ending, WatchedRank
from eroica.watch.run import Watcher
from eroica.watch.shelves import FolderShelf, StoreShelf, open_shelf
from eroica.watch.windows import Window
from eroica.watch.wire import Orders, Status

MS = 1_000_000


@pytest.fixture
def loop(tmp_path):
    """A watch that goes on, of a job that has no rank yet; ``said`` is what its user reads."""
    said, incidents = [], []
    job = WatchedJob(0, tmp_path, Parameters())
    found = Continuous(
        job, tmp_path, Parameters(), on_incident=incidents.append, progress=said.append
    )
    found.said, found.incidents = said, incidents
    yield found
    found.close()
    job.close()


def ranks_with_steps(job, counts):
    """Ranks that took so many steps of 10 ms each, the first of them the one seen first."""
    for rank, count in counts.items():
        iteration = Iteration(num_steps=count, period=1)
        iteration.steps.extend(Step(i * 10 * MS, (i + 1) * 10 * MS) for i in range(count))
        job.ranks[rank] = WatchedRank(LiveRank(rank, 4_000_000 + rank), iteration)


def fail(*args, **kwargs):
    raise ZeroDivisionError("a fault of ours")


# --- the loop ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["wait", "tick", "refresh"])
def test_a_fault_anywhere_in_the_loop_turns_the_watch_off_and_no_more(loop, monkeypatch, part):
    monkeypatch.setattr(loop.job, part, fail)
    loop.run(lambda: False)
    assert loop.said == ["watching is off (ZeroDivisionError('a fault of ours')); the job runs on"]


def test_a_fault_at_the_very_end_is_only_logged(loop, monkeypatch, caplog):
    monkeypatch.setattr(loop.job, "tick", fail)
    loop.run(lambda: True)
    assert "a fault of ours" in caplog.text
    assert loop.metrics.state == "ended"


def test_a_healthy_window_that_cannot_be_read_costs_no_incident(loop):
    loop.looks._baseline = Future()
    loop.looks._baseline.set_exception(FileNotFoundError("rank-00000.0.json"))
    loop._tell("failed", None)
    loop._tell("stuck", None)
    assert [incident.hint for incident in loop.incidents] == ["failed", "stuck"]
    assert loop.incidents[0].baseline == []


def test_what_could_not_be_had_is_told_with_the_next_incident_only(loop):
    loop.looks.note(["window of rank 3: skipped", "window of rank 3: skipped"])
    loop._tell("failed", None)
    loop._tell("failed", None)
    told = [[one.what for one in found.evidence.warnings] for found in loop.incidents]
    assert told == [["window of rank 3: skipped"], []]


def test_the_slow_rule_goes_on_with_the_next_rank_where_its_own_has_left(loop):
    ranks_with_steps(loop.job, {3: 5, 1: 7})
    assert loop._reference() == [10 * MS] * 7  # of the lowest, whichever was seen first
    assert loop._reference() == []
    loop.job.ranks[1].ending = Ending(0, 0)
    assert loop._reference() == []  # rank 3's so far were those of the same steps
    iteration = loop.job.ranks[3].iteration
    iteration.steps.append(Step(50 * MS, 70 * MS))
    iteration.num_steps += 1
    assert loop._reference() == [20 * MS]
    loop.job.ranks[3].ending = Ending(0, 0)
    assert loop._reference() == []


def test_what_a_rank_wrote_when_it_ended_stands_in_a_lasting_watchs_incident(loop, tmp_path):
    ranks_with_steps(loop.job, {0: 0})
    pid = loop.job.ranks[0].live.pid
    loop.job.ranks[0].ending = Ending(1, 0)
    (tmp_path / "rank-00000.exit.json").write_text(f'{{"pid": {pid}, "error_type": "KeyError"}}')
    (tmp_path / "rank-00000.facts.json").write_text('[{"key": "device", "value": "cpu"}]')
    (tmp_path / "rank-00000.flight.json").write_text(
        '{"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": [{"record_id": 0,'
        ' "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1,'
        ' "p2p_seq_id": 0, "op_id": 1, "profiling_name": "gloo:all_reduce", "retired": false,'
        ' "time_created_ns": 1, "input_sizes": [[1]], "input_dtypes": ["Float"],'
        ' "output_sizes": [[1]], "output_dtypes": ["Float"], "state": "scheduled",'
        ' "time_discovered_started_ns": null, "time_discovered_completed_ns": null,'
        ' "timeout_ms": 600000, "is_p2p": false}]}'
    )
    (rank,) = loop.evidence("failed", None, {}).ranks
    assert rank.exit.exit_code == 1
    assert [setting.key for setting in rank.settings] == ["device"]
    assert [entry.record_id for entry in rank.flight.entries] == [0]


def test_traces_that_came_too_late_are_taken_away_once_nothing_reads_them(loop, tmp_path):
    late, last = tmp_path / "rank-00000.0.json", tmp_path / "rank-00000.1.json"
    for number, path in enumerate((late, last)):
        path.write_text("{}")
        loop.looks.windows.done.append(Window(number, 2, 0.0, 1.0, {0: path}))
    loop.looks._baseline = Future()
    loop.looks.take_away_late_traces()
    assert late.exists()
    loop.looks._baseline.set_result([])
    loop.looks.take_away_late_traces()
    assert (late.exists(), last.exists()) == (False, True)


def test_a_rank_that_ends_while_the_others_are_looked_at_is_told_as_ended(loop, monkeypatch):
    """Those who lost it complain first, as a launcher may be quicker than the kernel's word."""
    ranks_with_steps(loop.job, {0: 0, 1: 0})
    monkeypatch.setattr(continuous, "gather", lambda job, **options: [])
    monkeypatch.setattr(
        loop.job, "tick", lambda: setattr(loop.job.ranks[1], "ending", Ending(-9, 7))
    )
    found = loop.evidence("failed", None, {})
    assert [rank.exit.signal if rank.exit else None for rank in found.ranks] == [None, "SIGKILL"]


# --- one verdict ------------------------------------------------------------------------------


def test_traces_that_cannot_be_kept_cost_no_verdict():
    watcher = SimpleNamespace(warnings=[])
    Watcher._keep_traces(watcher, Path("/proc/nowhere"))
    (said,) = watcher.warnings
    assert said.startswith("traces are not kept in /proc/nowhere: ")


def test_the_job_is_ended_whatever_else_cannot_be():
    ended = []

    def part(name):
        return lambda **options: ended.append(name) or fail()

    watcher = SimpleNamespace(
        _is_handed_on=False,
        team=SimpleNamespace(close=part("team")),
        hardware=SimpleNamespace(close=part("hardware")),
        collection=SimpleNamespace(close=part("collection")),
        command=SimpleNamespace(end=part("command"), remove_folder=part("folder")),
        job=SimpleNamespace(close=part("job")),
    )
    with pytest.raises(ZeroDivisionError):
        Watcher.close(watcher)
    assert ended == ["team", "hardware", "collection", "command", "job", "folder"]


def test_a_command_that_cannot_be_started_leaves_no_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for is_ours in (True, False):
        with pytest.raises(InputError, match="cannot start"):
            Command(["/nonexistent/program"], folder, is_ours=is_ours)
        assert not folder.exists()


def test_a_user_without_a_home_is_watched(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert warm.start() is None


def test_the_end_of_the_output_is_kept_whenever_the_log_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "_LOG_LIMIT", 100_000)
    script = (
        "import sys, time\n"
        "sys.stdout.write('x' * 95_000); sys.stdout.flush(); time.sleep(0.3)\n"
        "sys.stdout.write('y' * 9_000 + 'the error\\n'); sys.stdout.flush(); time.sleep(0.3)\n"
        "print('after')\n"
    )
    with (tmp_path / "out").open("wb") as out:
        (tmp_path / "run").mkdir()
        job = Command([sys.executable, "-c", script], tmp_path / "run", output=out)
        job.process.wait(60)
        job.end(grace_s=0)
    assert job.log_tail().endswith("ythe error\nafter\n")
    assert job.log_path.stat().st_size < 70_000


# --- whom it talks to -------------------------------------------------------------------------


def test_an_address_that_http_refuses_is_not_told_with_its_key(caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(webhook, "summary", lambda incident: {"id": incident.id})
    notes = []
    sender = webhook.Webhook("http://127.0.0.1:1/hooks/a-secret key", notes.append)
    sender.send(SimpleNamespace(id="i1"))
    sender.close()
    assert len(notes) == 1 and "i1 did not reach 127.0.0.1: InvalidURL" in notes[0]
    assert "secret" not in notes[0] + caplog.text


def test_a_server_that_can_start_no_thread_keeps_its_room(monkeypatch):
    server = PlainServer(("127.0.0.1", 0), PlainHandler, family=socket.AF_INET, max_connections=1)
    monkeypatch.setattr(socketserver.ThreadingMixIn, "process_request", fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            server.process_request(None, ("127.0.0.1", 1))
    server.server_close()


def test_another_service_at_the_leaders_port_is_one_that_cannot_be_reached():
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        with listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    link = HttpLink.__new__(HttpLink)
    link.address, link.key, link._ports = "127.0.0.1", b"k", [listener.getsockname()[1]]
    with pytest.raises(OSError, match="speaks no HTTP"):
        link.send_report(1, 2, b"report")
    thread.join(5)
    listener.close()


@pytest.mark.parametrize("url", ["nostore://bucket/x", "s3://bucket/x"])
def test_a_store_that_cannot_be_opened_is_bad_input_and_no_fault(url, monkeypatch):
    fsspec = pytest.importorskip("fsspec")

    def missing(url, **options):
        raise ImportError("Install s3fs to access S3")

    if url.startswith("s3"):
        monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(InputError, match=url.partition(":")[0]):
        open_shelf(url, "a" * 64)


def test_errors_of_a_stores_own_kind_are_tried_again():
    pytest.importorskip("fsspec")

    class StoreError(Exception):
        pass

    class Files:
        def __getattr__(self, name):
            def call(*args, **options):
                if name != "invalidate_cache":
                    raise StoreError("503 slow down")

            return call

    shelf = StoreShelf("memory://x")
    shelf._files = Files()
    for call in (
        lambda: shelf.write("orders", b""),
        lambda: shelf.read("orders", 10),
        shelf.names,
        lambda: shelf.remove("orders"),
    ):
        with pytest.raises(OSError, match="StoreError: 503 slow down"):
            call()


def test_reports_of_incidents_that_are_over_leave_the_shared_folder(tmp_path):
    shelf, key = FolderShelf(tmp_path / "shared"), b"k"
    exchange = Exchange(Orders(host="h0"))
    exchange.take_status(Status(first_rank=8, host="h1"))
    server = FolderServer(shelf, key, exchange)
    server.stop()  # it is turned by hand
    server.turn()
    exchange.announce(phase="collect", incident=1, hint="slow")
    _Signed(shelf, key).put("report-000000001-000000008", b"first")
    server.turn()
    assert exchange.reports == {(1, 8): b"first"}
    assert "report-000000001-000000008" in shelf.names()
    exchange.announce(phase="collect", incident=2, hint="slow")
    server.turn()
    assert [name for name in shelf.names() if name.startswith("report")] == []
    server.close()


# --- what a launcher leaves running -----------------------------------------------------------


def test_what_a_launcher_left_running_does_not_hold_the_collection(tmp_path, monkeypatch):
    """ssh's master connection keeps the launcher's stderr, some daemons its stdout."""
    from eroica.watch import launching

    monkeypatch.setattr(launching, "_GIVE_UP_S", 0.5)
    monkeypatch.setattr(launching, "_LAST_WORDS_S", 0.3)
    started = time.monotonic()
    for redirect in (">/dev/null", "2>/dev/null"):
        words = ["sh", "-c", f"setsid sleep 6 {redirect} & exit 0"]
        with pytest.raises(InputError, match="no host sent evidence"):
            launching.collect_elsewhere(tmp_path / "out", [words], limit_s=1.0)
    assert time.monotonic() - started < 5
