"""The MCP server as a process: over HTTP, how fast it starts, and seen by a foreign client."""

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from make_assistant import BAD, GOOD, command, make_project, start

mcp = pytest.importorskip("mcp", reason="the MCP server is an extra: pip install 'eroica[mcp]'")

INSPECTOR = "@modelcontextprotocol/inspector"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    root = tmp_path / "project"
    monkeypatch.setenv("EROICA_HOME", str(tmp_path / "home"))
    make_project(root)
    return root


@pytest.fixture
def served(project):
    """The address of a server over HTTP on a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = start(project, "--http", str(port), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        for _ in range(600):
            assert process.poll() is None, process.stderr.read().decode()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.communicate(timeout=20)


async def test_over_http_the_whole_case_goes_as_in_memory(served, project):
    async with mcp.Client(served) as client:
        listed = (await client.call_tool("list_incidents", {})).structured_content
        name = listed["incidents"][0]["id"]
        found = await client.call_tool("get_evidence", {"incident": name, "finding": "F1"})
        assert found.structured_content["findings"][0]["text"] == "finding 1"
        bad = await client.call_tool("propose_patch", {"incident": name, "patch": BAD})
        assert not bad.structured_content["accepted"]
        good = await client.call_tool("propose_patch", {"incident": name, "patch": GOOD})
        assert good.structured_content["accepted"]


def test_over_http_only_this_machine_can_connect(served):
    port = int(served.split(":")[2].split("/")[0])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    listening = [line.split()[1] for line in lines if line.split()[3] == "0A"]
    assert [one for one in listening if int(one.split(":")[1], 16) == port] == [
        f"0100007F:{port:04X}"
    ]


def cpu_s(run) -> float:
    """Seconds of processor time of the processes that a call starts and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_the_server_adds_little_to_what_its_sdk_takes_to_load(project):
    """Start-up in processor time: other work on this machine does not count."""

    def serve():
        process = start(project, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdin.write(json.dumps(HELLO).encode() + b"\n")
        process.stdin.flush()
        assert b'"serverInfo"' in process.stdout.readline()
        process.communicate(timeout=30)

    sdk = min(
        cpu_s(lambda: subprocess.run([sys.executable, "-c", "import mcp.server"], check=True))
        for _ in range(2)
    )
    whole = min(cpu_s(serve) for _ in range(2))
    assert whole - sdk < 0.5, f"{whole:.2f} s, of which the SDK {sdk:.2f} s"


@pytest.fixture(scope="module")
def inspect():
    """Call the MCP inspector's command line; nothing is downloaded for it."""
    inspector = shutil.which("mcp-inspector")
    if inspector is None:
        pytest.skip("the MCP inspector is not installed: npm install -g " + INSPECTOR)

    def run(root, method, *more):
        done = subprocess.run(
            [inspector, "--cli", *command(), "--method", method, *more],
            cwd=root,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return json.loads(re.sub(r"^[^{]*", "", done.stdout))

    return run


def test_a_foreign_client_lists_and_calls_the_tools(inspect, project):
    names = {tool["name"] for tool in inspect(project, "tools/list")["tools"]}
    assert {"list_incidents", "get_incident", "propose_patch"} <= names
    result = inspect(project, "tools/call", "--tool-name", "list_incidents")
    assert "rank 0 waits in a barrier" in json.dumps(result)


def test_the_transcript_in_the_docs_is_what_happens():
    script = Path(__file__).parents[1] / "docs" / "assistants.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
