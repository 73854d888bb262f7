"""The MCP server: what an assistant can read, what it can propose, and what it cannot do."""

import os
import sys
from pathlib import Path

import pytest

from eroica import incident as incidents
from eroica.records import Cause, Finding, Incident, Job, Place

mcp = pytest.importorskip("mcp", reason="the MCP server is an extra: pip install 'eroica[mcp]'")

from eroica.assistants.server import build  # noqa: E402

SCRIPT = """\
import torch.distributed as dist

TOKEN = "sk-abcdefghijklmnopqrstuvwxyz0123456789"


def save(model, rank):
    if rank == 0:
        print("saving")
        dist.barrier()


def main():
    save(None, dist.get_rank())
"""

GOOD = """\
train.py
<<<<<<< SEARCH
        print("saving")
        dist.barrier()
=======
        print("saving")
    dist.barrier()
>>>>>>> REPLACE
"""

BAD = """\
train.py
<<<<<<< SEARCH
    save(None, dist.get_rank())
=======
    save(None, dist.get_rank())
    if dist.get_rank() == 0:
        dist.barrier()
>>>>>>> REPLACE
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(root)
    folder = incidents.create("barrier")
    cause = Cause(
        id="C1",
        category="rank_conditional_collective",
        ranks=(0,),
        functions=(Place(name="save", file="train.py", line=9),),
        share=None,
        confidence=0.97,
        summary="rank 0 waits in a barrier",
        action="patch",
        findings=("F1",),
    )
    findings = tuple(Finding(id=f"F{n}", kind="stack", text=f"finding {n}") for n in range(1, 46))
    folder.write_incident(
        Incident(
            id=folder.id,
            symptom="stuck",
            onset=None,
            job=Job(world_size=2, ranks=(0, 1), source_root=str(root)),
            causes=(cause,),
            findings=findings,
            warnings=(),
            headline="rank 0 waits in a barrier",
        )
    )
    return root


async def call(client, name, **arguments):
    return await client.call_tool(name, arguments)


@pytest.fixture(params=["auto", "legacy"])
def connect(project, request):
    """How to connect: in memory, in both eras of the protocol."""
    return lambda: mcp.Client(build([project]), mode=request.param)


async def test_the_tools_are_few_and_have_output_schemas(connect):
    async with connect() as client:
        tools = (await client.list_tools()).tools
        assert 5 <= len(tools) <= 10
        assert all(tool.output_schema for tool in tools)
        assert "rehearse_patch" not in {tool.name for tool in tools}


async def test_a_scripted_assistant_reads_and_has_one_good_and_one_bad_patch(connect, project):
    async with connect() as client:
        listed = (await call(client, "list_incidents")).structured_content
        name = listed["incidents"][0]["id"]
        summary = (await call(client, "get_incident", incident=name)).structured_content
        assert summary["causes"][0]["functions"][0]["file"] == "train.py"
        page = (await call(client, "get_evidence", incident=name, finding="F1")).structured_content
        assert page["findings"][0]["text"] == "finding 1"
        source = (await call(client, "get_source", path="train.py")).structured_content
        assert "dist.barrier()" in source["text"]
        bad = (await call(client, "propose_patch", incident=name, patch=BAD)).structured_content
        assert not bad["accepted"] and bad["reasons"]
        good = (await call(client, "propose_patch", incident=name, patch=GOOD)).structured_content
        assert good["accepted"], good
        assert (project / "train.py").read_text() == SCRIPT
        (patch,) = incidents.find(name).read_patches()
        assert (patch.id, patch.source) == (good["patch_id"], "assistant")


async def test_secrets_in_a_source_do_not_leave(connect):
    async with connect() as client:
        source = (await call(client, "get_source", path="train.py")).structured_content
        assert "sk-abcdefghijklmnop" not in source["text"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "link", ".env", "nothing.py"])
async def test_nothing_outside_the_roots_can_be_read(connect, project, path):
    async with connect() as client:
        (project / "link").symlink_to("/etc/passwd")
        (project / ".env").write_text("KEY=1")
        result = await call(client, "get_source", path=path)
        assert result.is_error
        assert "root:" not in result.content[0].text


async def test_findings_come_in_pages(connect):
    async with connect() as client:
        page = (await call(client, "get_evidence", incident="latest", page=3)).structured_content
        assert (page["page"], page["num_pages"], len(page["findings"])) == (3, 3, 5)


async def test_an_unknown_incident_is_told_in_words(connect):
    async with connect() as client:
        result = await call(client, "get_incident", incident="zzz")
        assert result.is_error and "is no incident" in result.content[0].text


async def test_proposals_cannot_fill_the_disk(connect):
    async with connect() as client:
        result = await call(client, "propose_patch", incident="latest", patch="x" * 500_000)
        assert result.is_error and "too large" in result.content[0].text


async def test_resources_and_prompts_are_offered(connect, project):
    async with connect() as client:
        name = incidents.find(None).id
        read = await client.read_resource(f"eroica://incident/{name}/incident.json")
        assert read.contents[0].text.encode() == incidents.find(None).incident_bytes()
        prompt = await client.get_prompt("explain", {"incident": name})
        assert "rank_conditional_collective" in prompt.messages[0].content.text


async def test_over_stdio_only_protocol_is_on_stdout(project):
    command = [sys.executable, "-P", "-m", "eroica", "mcp"]
    parameters = mcp.StdioServerParameters(
        command=command[0], args=command[1:], cwd=str(project), env=dict(os.environ)
    )
    async with mcp.Client(parameters) as connected:
        listed = (await call(connected, "list_incidents")).structured_content
        assert listed["total"] == 1
