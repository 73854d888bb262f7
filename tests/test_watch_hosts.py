"""Hosts of one job find each other, believe only their own, and agree."""

import http.client
import json
import os
import socket
import stat
import time
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.columns import RankPatterns
from eroica.errors import InputError
from eroica.records import Function, JobEvidence, RankEvidence
from eroica.watch import folder_carrier, http_carrier, wire
from eroica.watch.agreement import Said, decide, is_stuck_everywhere, joined_hint
from eroica.watch.exchange import Exchange, hold_s
from eroica.watch.folder_carrier import FolderLink, FolderServer
from eroica.watch.http_carrier import HttpLink, HttpServer, own_addresses, ports_of
from eroica.watch.joining import join_reports, make_report, missing_hosts
from eroica.watch.membership import Membership, expand_hosts, read_membership
from eroica.watch.result import WatchResult
from eroica.watch.shelves import FolderShelf, open_shelf

KEY = b"k" * 32
TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}


def wait_for(is_met, seconds=8.0):
    until = time.monotonic() + seconds
    while not is_met():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


def membership(**changes):
    base = {"key": "ab" * 32, "address": "127.0.0.1", "first_rank": 0, "world_size": 4}
    return Membership(**(base | changes))


# --- who is who


def test_torchrun_tells_place_and_leader():
    found = read_membership(TORCHRUN, [5, 6], 8, is_settled=False)
    assert (found.first_rank, found.is_leader, found.num_hosts) == (4, False, 2)
    assert found.address == "10.0.0.1"
    first = read_membership(TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0"}, [0], 8, is_settled=False)
    assert first.is_leader
    assert first.key == found.key


@pytest.mark.parametrize(
    "changes",
    [{"LOCAL_WORLD_SIZE": "8"}, {"GROUP_WORLD_SIZE": "1"}, {"MASTER_ADDR": ""}],
)
def test_a_job_on_one_host_or_without_an_address_has_no_team(changes):
    assert read_membership(TORCHRUN | changes, [5], 8, is_settled=True) is None


def test_without_a_launcher_it_waits_until_the_ranks_have_come():
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0"}
    assert read_membership(given, [1], 2, is_settled=False) is None
    found = read_membership(given, [1], 2, is_settled=True)
    assert (found.first_rank, found.address) == (1, "job-master-0")
    assert read_membership(given, [0, 1], 2, is_settled=True) is None


def test_slurm_names_the_first_host_and_each_ranks_host():
    given = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "gpu-[001-002]",
        "SLURM_NNODES": "2",
        "MASTER_ADDR": "localhost",
        "LOCAL_WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "RANK": "2",
    }
    found = read_membership(given, [2, 3], 4, is_settled=False)
    assert found.address == "gpu-001"
    assert [found.name_of(rank) for rank in range(4)] == ["gpu-001"] * 2 + ["gpu-002"] * 2


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu-[001-003,007],login", ["gpu-001", "gpu-002", "gpu-003", "gpu-007", "login"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("n1,n2", ["n1", "n2"]),
        ("", []),
        ("x[1-", []),
        ("x[a-b]", []),
    ],
)
def test_a_list_of_hosts_is_expanded(text, hosts):
    assert expand_hosts(text) == hosts


@given(st.text(alphabet="ab0129-,[]", max_size=30))
def test_any_list_of_hosts_is_read_or_refused(text):
    assert len(expand_hosts(text)) <= 100_000


def test_jobs_of_other_runs_have_other_keys_and_ports():
    one = read_membership(TORCHRUN, [5], 8, is_settled=True)
    other = read_membership(TORCHRUN | {"MASTER_PORT": "29501"}, [5], 8, is_settled=True)
    assert one.key != other.key
    assert all(20_000 <= port < 30_000 for port in ports_of(one.key))


def test_the_port_can_be_given(monkeypatch):
    monkeypatch.setenv("EROICA_PORT", "4711")
    assert ports_of("ab" * 32) == [4711]


def test_it_listens_where_the_job_meets_and_never_everywhere(monkeypatch):
    assert own_addresses(membership(address="127.0.0.2"))[0] == (socket.AF_INET, "127.0.0.2")
    # As in Debian's /etc/hosts: the host's own name is a loopback address here.
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *a, **k: [(socket.AF_INET, 1, 6, "", ("127.0.1.1", 0))]
    )
    monkeypatch.setattr(http_carrier, "_way_out", lambda: "10.0.0.1")
    assert own_addresses(membership(address="gpu-001")) == [(socket.AF_INET, "10.0.0.1")]
    given = membership(address="gpu-001", interfaces=("lo", "none0"))
    assert own_addresses(given) == [(socket.AF_INET, "127.0.0.1")]


# --- secrets


def test_a_token_makes_another_key(monkeypatch, tmp_path):
    plain = wire.job_secret("job")
    monkeypatch.setenv("EROICA_TOKEN", "secret")
    with_token = wire.job_secret("job")
    assert with_token != plain != wire.job_secret("other job")
    monkeypatch.delenv("EROICA_TOKEN")
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o600)
    monkeypatch.setenv("EROICA_TOKEN_FILE", str(path))
    assert wire.job_secret("job") == with_token


def test_a_token_file_that_others_read_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "token"
    path.write_text("secret")
    path.chmod(0o644)
    monkeypatch.setenv("EROICA_TOKEN_FILE", str(path))
    with pytest.raises(InputError, match="can be read by others"):
        wire.job_secret("job")


# --- reports


def patterns_of(rank, *, is_sampled=False):
    return RankPatterns(
        rank=rank,
        functions=(Function(id="f", kind="python", name="load"),),
        beta_F=np.array([0.5], np.float32),
        mu_F=np.array([0.5], np.float32),
        sigma_F=np.array([0.1], np.float32),
        count_F=np.array([3], np.int32),
        total_ns_F=np.array([10], np.int64),
        window_ns=100,
        is_sampled=is_sampled,
    )


def result_of(*ranks, hint="stuck", host="h0", window=1):
    evidence = JobEvidence(
        ranks=tuple(RankEvidence(rank=rank, host=host) for rank in ranks),
        world_size=4,
        symptom_hint=hint,
    )
    return WatchResult(
        evidence=evidence, patterns=[patterns_of(r) for r in ranks], hint=hint, window=window
    )


def report_of(*ranks, host="h1", **options):
    result = result_of(*ranks, host=host, **options)
    return wire.encode_report(make_report(result, 1, min(ranks), host))


def test_a_report_comes_back_as_it_was():
    report = wire.decode_report(report_of(2, 3))
    assert [rank.rank for rank in report.evidence.ranks] == [2, 3]
    assert [one.rank for one in report.unpacked()[0]] == [2, 3]


@given(st.binary(max_size=200))
def test_bytes_that_are_no_report_are_refused(data):
    with pytest.raises(InputError, match="cannot be read"):
        wire.decode_report(data)


def test_a_report_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(wire, "_MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(InputError):
        wire.decode_report(zlib.compress(b"a" * 5000))


def join(result, reports, **options):
    where = {"host": "h0", "membership": membership(), "lost": []} | options
    return join_reports(result, reports, **where)


def test_reports_are_joined_by_rank():
    joined = join(result_of(0, 1), [report_of(2, 3)])
    assert [(rank.rank, rank.host) for rank in joined.evidence.ranks] == [
        (0, "h0"),
        (1, "h0"),
        (2, "h1"),
        (3, "h1"),
    ]
    assert [(one.rank, one.host) for one in joined.patterns] == [
        (0, "h0"),
        (1, "h0"),
        (2, "h1"),
        (3, "h1"),
    ]
    assert joined.evidence.warnings == ()


def test_a_host_that_fell_silent_is_named_with_its_ranks():
    lost = wire.Status(first_rank=2, host="gpu-7", ranks=(2, 3))
    joined = join(result_of(0, 1), [], lost=[lost])
    (warning,) = joined.evidence.warnings
    assert "gpu-7" in warning.what and "ranks 2-3" in warning.what


def test_a_host_never_heard_of_is_named_where_the_scheduler_says():
    found = missing_hosts({2, 3}, membership(node_names=("n0", "n1"), local_world_size=2), [])
    assert "host n1 (ranks 2-3)" in found[0].what
    found = missing_hosts({2, 3}, membership(), [])
    assert found[0].what.startswith("ranks 2-3:")


def test_a_report_that_cannot_be_read_costs_only_itself():
    joined = join(result_of(0, 1), [b"nonsense", report_of(2, 3)])
    assert len(joined.evidence.ranks) == 4
    assert "cannot be read" in joined.evidence.warnings[0].what


def test_arrivals_of_other_steps_are_not_compared(monkeypatch):
    from dataclasses import replace

    from eroica.columns import Arrivals

    times = np.array([1], np.int64)
    arrivals = Arrivals(("g|op|1",), times, times, times)
    result = result_of(2, 3, host="h1", window=2)
    result.patterns = [replace(one, arrivals=arrivals) for one in result.patterns]
    report = wire.encode_report(make_report(result, 1, 2, "h1"))
    same = join(result_of(0, 1, window=2), [report])
    assert same.patterns[2].arrivals is not None
    other = join(result_of(0, 1, window=1), [report])
    assert other.patterns[2].arrivals is None


# --- agreement


S, F, H, N = Said("stuck"), Said("failed"), Said("healthy"), Said("")
ENDED = Said("healthy", is_ended=True)


@pytest.mark.parametrize(
    ("own", "others", "hint"),
    [
        (N, [N], None),
        (S, [], "stuck"),
        (S, [N], None),  # the other host works: this one only waits for it
        (S, [S], "stuck"),
        (S, [S, N], None),
        (N, [F], "failed"),
        (F, [N], "failed"),
        (S, [F], "failed"),
        (H, [N], "healthy"),  # its time is up: that ends all
        (ENDED, [N], None),
        (ENDED, [ENDED], "healthy"),
        (ENDED, [S], "stuck"),
        (S, [ENDED], "stuck"),
        (S, [H], "healthy"),
        (Said("unknown"), [N], "unknown"),
    ],
)
def test_what_hosts_say_becomes_one_hint(own, others, hint):
    assert decide(own, others) == hint


def test_a_job_is_stuck_where_every_host_is():
    assert is_stuck_everywhere([S, ENDED])
    assert not is_stuck_everywhere([S, N])
    assert joined_hint("failed", ["stuck"]) == "stuck"
    assert joined_hint("slow", ["healthy"]) == "slow"


def test_many_hosts_ask_less_often():
    assert (hold_s(2), hold_s(200), hold_s(10_000)) == (4.0, 10.0, 30.0)


# --- HTTP


@pytest.fixture
def server(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("EROICA_PORT", str(probe.getsockname()[1]))
    exchange = Exchange(wire.Orders(host="h0", hold_s=0.3))
    serving = HttpServer(membership(), KEY, exchange)
    wait_for(lambda: serving.address is not None)
    yield serving
    serving.close()


@pytest.fixture
def link(server):
    status = wire.Status(first_rank=2, host="h1", ranks=(2, 3))
    line = HttpLink(membership(first_rank=2), KEY, status)
    yield line
    line.close()


def test_statuses_orders_and_reports_go_over_http(server, link):
    exchange = server.exchange
    wait_for(lambda: 2 in exchange.heard and link.orders is not None)
    before = time.monotonic()
    exchange.announce(phase="collect", incident=1, hint="stuck")
    wait_for(lambda: link.orders.phase == "collect")
    assert time.monotonic() - before < 1.0
    link.tell(wire.Status(first_rank=2, host="h1", serial=1, gathered=1))
    wait_for(lambda: exchange.heard[2].status.gathered == 1)
    link.send_report(1, 2, b"x" * 100_000)
    assert exchange.reports[1, 2] == b"x" * 100_000
    wait_for(lambda: exchange.delivered.get(2, 0) >= exchange.orders.sequence)


def test_a_host_that_is_gone_is_lost_after_a_while(server, link):
    exchange = server.exchange
    wait_for(lambda: 2 in exchange.heard)
    now = time.monotonic()
    assert [one.host for one in exchange.living(now)] == ["h1"]
    assert exchange.lost(now + 60)[0].host == "h1"
    assert exchange.living(now + 60) == []


def test_who_does_not_know_the_key_is_neither_heard_nor_believed(server):
    stranger = HttpLink(membership(), b"other", wire.Status(first_rank=2, host="evil"))
    time.sleep(0.6)
    stranger.close()
    assert stranger.orders is None
    assert server.exchange.heard == {}
    with pytest.raises(OSError, match="403"):
        stranger.send_report(1, 2, b"evil")


def post(server, path, body, headers):
    connection = http.client.HTTPConnection(*server.address, timeout=5)
    try:
        connection.request("POST", path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def signed(path, body, nonce="n" * 32):
    claimed = wire.digest(body)
    proof = wire.sign(KEY, path, nonce, len(body), claimed)
    return {"Authorization": f"{nonce}:{proof}", "X-Digest": claimed}


def test_bad_requests_are_answered_and_change_nothing(server):
    path = "/eroica/1/status/0"
    good = msgspec.json.encode(wire.Status(first_rank=2, host="h1"))
    assert post(server, path, good, {}) == 403
    assert post(server, path, good, signed(path, good) | {"X-Digest": "0" * 64}) == 403
    assert post(server, path, b"{]", signed(path, b"{]")) == 400
    assert post(server, "/else", good, signed("/else", good)) == 404
    report = "/eroica/1/report/1/2"
    assert post(server, report, b"x", signed(report, b"x")) == 409  # nobody said hello
    head = {"Content-Length": str(1 << 40)} | signed(path, good)
    assert post(server, path, b"", head) == 413
    assert server.exchange.heard == {}
    assert server.exchange.reports == {}
    assert post(server, path, good, signed(path, good)) == 200


def test_an_impostor_on_the_port_gets_no_report(monkeypatch):
    from http import server as plain

    class Impostor(plain.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"sequence": 9, "phase": "collect", "incident": 1}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    import threading

    serving = plain.HTTPServer(("127.0.0.1", 0), Impostor)
    thread = threading.Thread(target=serving.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setenv("EROICA_PORT", str(serving.server_address[1]))
    link = HttpLink(membership(), KEY, wire.Status(first_rank=2, host="h1"))
    try:
        time.sleep(0.5)
        assert link.orders is None and link.heard_at is None
    finally:
        link.close()
        serving.shutdown()
        thread.join()
        serving.server_close()


def test_only_the_incident_that_is_asked_for_is_taken():
    exchange = Exchange(wire.Orders())
    exchange.take_status(wire.Status(first_rank=2, host="h1"))
    assert exchange.take_report(1, 2, b"early") is None
    assert "nobody asks" in exchange.take_report(5, 2, b"x")
    assert "has not said" in exchange.take_report(1, 7, b"x")
    exchange.announce(incident=2)
    assert exchange.reports == {}


# --- a shared folder


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(folder_carrier, "_POLL_S", 0.03)
    monkeypatch.setattr(folder_carrier, "_AGAIN_S", 0.1)


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_statuses_orders_and_reports_go_through_a_shared_folder(tmp_path, quick, kind):
    if kind == "store":
        pytest.importorskip("fsspec")
    share = str(tmp_path) if kind == "folder" else f"file://{tmp_path}"
    exchange = Exchange(wire.Orders(host="h0"))
    serving = FolderServer(open_shelf(share, "ab" * 32), KEY, exchange)
    link = FolderLink(
        open_shelf(share, "ab" * 32), KEY, wire.Status(first_rank=2, host="h1", ranks=(2,))
    )
    try:
        wait_for(lambda: 2 in exchange.heard and link.orders is not None)
        exchange.announce(phase="collect", incident=1, hint="slow")
        wait_for(lambda: link.orders.phase == "collect")
        link.send_report(1, 2, b"report")
        wait_for(lambda: (1, 2) in exchange.reports)
        assert exchange.reports[1, 2] == b"report"
    finally:
        link.close()
        serving.close()
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == ["orders"]
    if kind == "folder":
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_files_of_an_earlier_run_and_of_strangers_are_not_believed(tmp_path, quick):
    shelf = open_shelf(str(tmp_path), "ab" * 32)
    good = msgspec.json.encode(wire.Status(first_rank=2, host="old"))
    proof = wire.sign(KEY, "file", "status-000000002", wire.digest(good)).encode()
    shelf.write("status-000000002", proof + good)
    exchange = Exchange(wire.Orders())
    serving = FolderServer(shelf, KEY, exchange)
    try:
        wait_for(lambda: "orders" in shelf.names() and "status-000000002" not in shelf.names())
        evil = wire.sign(b"evil", "file", "status-000000003", wire.digest(good)).encode()
        shelf.write("status-000000003", evil + good)
        # A good signature under another name is no good signature.
        shelf.write("status-000000004", proof + good)
        os.symlink("/etc/passwd", shelf.path / "status-000000005")
        time.sleep(0.4)
        assert exchange.heard == {}
    finally:
        serving.close()


def test_old_orders_are_not_obeyed(tmp_path, quick):
    shelf = open_shelf(str(tmp_path), "ab" * 32)
    old = msgspec.json.encode([1.0, wire.Orders(sequence=5, phase="end", incident=1)])
    shelf.write("orders", wire.sign(KEY, "file", "orders", wire.digest(old)).encode() + old)
    link = FolderLink(shelf, KEY, wire.Status(first_rank=2, host="h1"))
    try:
        time.sleep(0.4)
        assert link.orders is None
    finally:
        link.close()


def test_a_folder_that_is_a_link_or_a_file_of_too_many_bytes_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="no folder"):
        FolderShelf(tmp_path / "link")
    shelf = FolderShelf(tmp_path / "real")
    shelf.write("big", b"x" * 100)
    with pytest.raises(OSError, match="100 bytes"):
        shelf.read("big", 10)
