"""Jobs of two hosts: one verdict, on the host of rank 0, and nobody left behind.

The hosts are two torchruns on loopback, and two network namespaces where those are permitted.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from eroica.collect import proc

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.job, pytest.mark.timeout(280)]

HEAD = """
import os, signal, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""


class Hosts:
    """Two hosts of one job; ``inside`` puts a command on a host."""

    def __init__(self, tmp_path, body, options, *, inside=None, address="127.0.0.1", env=None):
        self.path = tmp_path
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
        self.script = str(script)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.processes = []
        for number in range(2):
            torchrun = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                *(f"--node_rank={number}", "--nproc_per_node=2"),
                *(f"--master_addr={address}", f"--master_port={port}", self.script),
            ]
            command = [sys.executable, "-m", "eroica", "run", *options, "--", *torchrun]
            given = os.environ | {
                "EROICA_HOME": str(tmp_path / f"home{number}"),
                "EROICA_HOST": f"node{number}",
                "OMP_NUM_THREADS": "1",
                **(env(number) if env else {}),
            }
            with (
                (tmp_path / f"out{number}").open("wb") as out,
                (tmp_path / f"err{number}").open("wb") as err,
            ):
                self.processes.append(
                    subprocess.Popen(
                        [*(inside(number) if inside else []), *command],
                        env=given,
                        cwd=tmp_path,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                    )
                )

    def wait(self, seconds=200):
        until = time.monotonic() + seconds
        codes = [one.wait(max(1, until - time.monotonic())) for one in self.processes]
        left = [pid for pid in proc.all_stats() if self.script in " ".join(proc.read_command(pid))]
        assert left == []
        return codes

    def out(self, number):
        return (self.path / f"out{number}").read_text()

    def err(self, number):
        return (self.path / f"err{number}").read_text(errors="replace")

    def verdict(self):
        return json.loads(self.out(0))

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for pid in list(proc.all_stats()):
            if self.script in " ".join(proc.read_command(pid)):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(body, *options, **where):
        started.append(Hosts(tmp_path, body, options, **where))
        return started[-1]

    yield begin
    for one in started:
        one.end()


BARRIER = """
for i in range(4000):
    step()
    if i == 60 and rank == 3:
        dist.barrier()
"""


@pytest.mark.parametrize("carrier", ["http", "folder"])
def test_a_stuck_job_of_two_hosts_has_one_verdict(start, tmp_path, carrier):
    share = tmp_path / "share"
    share.mkdir()
    if carrier == "folder":
        # As in a training operator's pods, which have a RANK of their own.
        pods = {"env": lambda number: {"RANK": str(number), "WORLD_SIZE": "2"}}
        hosts = start(BARRIER, "--once", "--json", "--share-dir", str(share), **pods)
    else:
        hosts = start(BARRIER, "--once", "--json")
    assert hosts.wait() == [0, 0], hosts.err(0)
    found = hosts.verdict()
    assert found["symptom"] == "stuck"
    assert found["job"]["ranks"] == [0, 1, 2, 3]
    assert found["job"]["hosts"] == {"node0": [0, 1], "node1": [2, 3]}
    assert found["job"]["missing_ranks"] == []
    cause = found["causes"][0]
    assert (cause["category"], cause["ranks"]) == ("rank_conditional_collective", [3])
    assert cause["hosts"] == ["node1"]
    other = json.loads(hosts.out(1))["verdict"]
    assert (other["host"], other["id"], other["symptom"]) == ("node0", found["id"], "stuck")
    assert not (tmp_path / "home1" / "incidents").exists()


def test_a_slow_rank_on_the_other_host_is_found(start):
    body = """
    def load():
        time.sleep(0.05 if rank == 3 else 0.001)
    for i in range(4000):
        load()
        step()
    """
    hosts = start(body, "--once", "--json", "--after", "12")
    assert hosts.wait() == [0, 0], hosts.err(0)
    found = hosts.verdict()
    assert found["symptom"] == "slow"
    assert found["causes"][0]["ranks"] == [3]
    assert found["causes"][0]["functions"][0]["name"] == "load"
    assert found["job"]["hosts"] == {"node0": [0, 1], "node1": [2, 3]}
    # Profiled at the same steps, not only sampled.
    assert "window 1: profiling" in hosts.err(0) and "window 1: profiling" in hosts.err(1)


def test_a_rank_that_is_killed_on_the_other_host_is_named(start):
    body = """
    for i in range(4000):
        step()
        if i == 60 and rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    hosts = start(body, "--once", "--json")
    assert hosts.wait() == [0, 0], hosts.err(0)
    found = hosts.verdict()
    assert found["symptom"] in ("failed", "stuck")
    assert (found["causes"][0]["category"], found["causes"][0]["ranks"]) == ("rank_exited", [3])
    assert found["job"]["hosts"]["node1"] == [2, 3]


def test_a_job_that_turns_slow_is_told_once_as_a_line_and_runs_on(start, tmp_path):
    body = f"""
    def load(i):
        time.sleep(0.09 if rank == 3 and i > 500 else 0.001)
    for i in range(850):
        load(i)
        step()
    print("done", flush=True)
    open({str(tmp_path / "done")!r} + str(rank), "w").close()
    """
    hosts = start(body, "--json")
    assert hosts.wait() == [0, 0], hosts.err(0)
    assert all((tmp_path / f"done{rank}").exists() for rank in range(4))
    lines = [json.loads(line) for line in hosts.out(0).splitlines()]
    slow = [line for line in lines if line["symptom"] == "slow"]
    assert slow, hosts.err(0)
    assert slow[0]["job"]["ranks"] == [0, 1, 2, 3], hosts.err(0) + hosts.err(1)
    assert slow[0]["causes"][0]["ranks"] == [3]
    assert hosts.out(1) == ""
    assert f"incident {slow[0]['id']} on node0" in hosts.err(1)
    assert "done" in hosts.err(0)


def test_a_host_without_an_agent_is_named_and_the_rest_is_diagnosed(start):
    hosts = start(BARRIER, "--once", "--json", env=lambda number: {"EROICA_TOKEN": str(number)})
    assert hosts.wait() == [0, 0], hosts.err(0)
    found = hosts.verdict()
    assert found["symptom"] == "stuck"
    assert found["job"]["missing_ranks"] == [2, 3]
    assert any("ranks 2-3: no agent was heard of" in one["what"] for one in found["warnings"])
    alone = json.loads(hosts.out(1))
    assert alone["job"]["missing_ranks"] == [0, 1]
    assert any("of this host only" in one["what"] for one in alone["warnings"])


# --- network namespaces


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def namespaces():
    """Two hosts joined by one cable."""
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    mark = secrets.token_hex(3)
    names = [f"eroica-{mark}-{number}" for number in range(2)]
    if ip("netns", "add", names[0]).returncode:
        pytest.skip("network namespaces are not permitted here")
    try:
        ip("netns", "add", names[1])
        cable = [f"er{mark}{number}" for number in range(2)]
        made = ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        if made.returncode:
            pytest.skip(f"no virtual cable: {made.stderr.strip()}")
        for number in range(2):
            ip("link", "set", cable[number], "netns", names[number])
            here = ("-n", names[number])
            ip(*here, "addr", "add", f"10.231.7.{number + 1}/24", "dev", cable[number])
            ip(*here, "link", "set", cable[number], "up")
            ip(*here, "link", "set", "lo", "up")
        yield names, cable
    finally:
        for name in names:
            ip("netns", "del", name)


def in_namespaces(namespaces):
    names, cable = namespaces
    return {
        "inside": lambda number: ["ip", "netns", "exec", names[number]],
        "address": "10.231.7.1",
        "env": lambda number: {
            "GLOO_SOCKET_IFNAME": cable[number],
            "TP_SOCKET_IFNAME": cable[number],
        },
    }


def test_two_network_namespaces_give_one_verdict(start, namespaces):
    hosts = start(BARRIER, "--once", "--json", **in_namespaces(namespaces))
    assert hosts.wait() == [0, 0], hosts.err(0)
    found = hosts.verdict()
    assert found["job"]["hosts"] == {"node0": [0, 1], "node1": [2, 3]}
    cause = found["causes"][0]
    assert (cause["category"], cause["ranks"]) == ("rank_conditional_collective", [3])
    assert json.loads(hosts.out(1))["verdict"]["id"] == found["id"]


def test_a_host_that_is_cut_off_is_named_and_the_rest_is_diagnosed(start, namespaces, tmp_path):
    begun = tmp_path / "begun"
    body = f"""
    for i in range(20000):
        step()
        if i == 80 and rank == 0:
            open({str(begun)!r}, "w").close()
    """
    hosts = start(body, "--once", "--json", "--after", "60", **in_namespaces(namespaces))
    until = time.monotonic() + 120
    while not begun.exists():
        assert time.monotonic() < until, hosts.err(0)
        time.sleep(0.1)
    time.sleep(1.0)
    names, cable = namespaces
    assert ip("-n", names[1], "link", "set", cable[1], "down").returncode == 0
    cut_at = time.monotonic()
    assert hosts.wait() == [0, 0], hosts.err(0)
    assert time.monotonic() - cut_at < 75
    found = hosts.verdict()
    assert found["symptom"] == "stuck"
    assert found["job"]["missing_ranks"] == [2, 3]
    told = [one["what"] for one in found["warnings"]]
    assert any("host node1 (ranks 2-3) fell silent" in text for text in told), told
    alone = json.loads(hosts.out(1))
    assert alone["job"]["missing_ranks"] == [0, 1]
