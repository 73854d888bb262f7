"""The MCP server: what an assistant can read, what it can propose, and what it cannot do."""

import os
from pathlib import Path

import msgspec
import pytest
from make_assistant import BAD, GOOD, SCRIPT, command, make_project

from eroica import incident as incidents
from eroica.records import Patch, Rehearsal

mcp = pytest.importorskip("mcp", reason="the MCP server is an extra: pip install 'eroica[mcp]'")

from eroica.assistants.server import MAX_PROPOSALS, build  # noqa: E402


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    root = tmp_path / "project"
    root.parent.mkdir(exist_ok=True)
    monkeypatch.setenv("EROICA_HOME", str(root / ".eroica"))
    make_project(root)
    monkeypatch.chdir(root)
    monkeypatch.delenv("EROICA_HOME")
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


SECRET_FILES = [
    ".env",
    ".env.local",
    ".npmrc",
    ".ssh/config",
    ".git/config",
    "certs/server.pem",
    "id_ed25519",
    "credentials.json",
    ".eroica/incidents/x/pseudonyms.json",
]


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../../etc/passwd", "link", "nothing.py", "a" * 300, "a\0b", *SECRET_FILES],
)
async def test_nothing_outside_the_roots_can_be_read(connect, project, path):
    async with connect() as client:
        (project / "link").symlink_to("/etc/passwd")
        for name in SECRET_FILES:
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text("root:x:0")
        result = await call(client, "get_source", path=path)
        assert result.is_error
        assert "root:" not in result.content[0].text


def test_a_store_below_a_root_cannot_be_read_whatever_its_name(project, monkeypatch):
    from eroica.assistants.roots import Roots
    from eroica.errors import InputError

    monkeypatch.setenv("EROICA_HOME", str(project / "incidents_here"))
    folder = incidents.create("x")
    (folder.path / "notes.txt").write_text("x")
    with pytest.raises(InputError):
        Roots([project]).resolve(str(folder.path / "notes.txt"))


def test_code_that_is_named_like_a_secret_can_be_read(project):
    from eroica.assistants.roots import Roots

    for name in ("secrets.py", "id_mapping.py", "keys.py"):
        (project / name).write_text("x = 1")
        assert Roots([project]).read_source(name)[1] == "x = 1"


async def test_an_incident_is_named_by_id_and_never_by_path(connect, project, tmp_path):
    import shutil

    outside = tmp_path / "outside"
    shutil.copytree(incidents.find(None).path, outside)
    shutil.copytree(outside, project / "inside")
    (incidents.store() / "20990101-000000-link").symlink_to(outside)
    async with connect() as client:
        for name in (str(outside), "../../../outside", "inside", "./inside", "link", "", "/"):
            for tool, more in (
                ("get_incident", {}),
                ("get_evidence", {}),
                ("get_report", {}),
                ("propose_patch", {"patch": GOOD}),
            ):
                result = await call(client, tool, incident=name, **more)
                assert result.is_error, (name, tool)
        assert not (outside / "patches.json").exists()
        latest = (await call(client, "get_incident", incident="latest")).structured_content
        assert "link" not in latest["id"]


SECRET = "hunter2secret99"


@pytest.fixture
def leaky(project):
    """An incident whose every text holds a password, a home and a mail address."""
    telling = f"DB_PASS={SECRET} in /home/ada/run by ada@example.org"
    folder = incidents.find(None)
    record = folder.read_incident()
    cause = msgspec.structs.replace(
        record.causes[0], summary=telling, why=(telling,), against=(telling,), advice=telling
    )
    details = {"log": telling, "set": {"key": "env.API_TOKEN", "value": SECRET}}
    finding = msgspec.structs.replace(record.findings[0], text=telling, details=details)
    folder.write_incident(
        msgspec.structs.replace(
            record,
            headline=telling,
            causes=(cause,),
            findings=(finding,),
            not_seen=(telling,),
            job=msgspec.structs.replace(record.job, command=("train", "--db-pass", SECRET)),
        )
    )
    (project / "train.py").write_text(SCRIPT + f"# {telling}\n")
    return folder


async def test_no_answer_and_no_resource_holds_a_secret_or_a_user(connect, leaky):
    import json

    patch = "train.py\n<<<<<<< SEARCH\n# DB_PASS=x in run by\n=======\n# y\n>>>>>>> REPLACE\n"
    texts = []
    async with connect() as client:
        for tool, arguments in (
            ("list_incidents", {}),
            ("get_incident", {"incident": "latest"}),
            ("get_evidence", {"incident": "latest"}),
            ("get_report", {"incident": "latest"}),
            ("get_source", {"path": "train.py"}),
            ("propose_patch", {"incident": "latest", "patch": GOOD}),
            ("propose_patch", {"incident": "latest", "patch": patch}),
            ("get_incident", {"incident": f"DB_PASS={SECRET}"}),
            ("get_source", {"path": "/home/ada/x"}),
        ):
            result = await call(client, tool, **arguments)
            texts += [json.dumps(result.structured_content)]
            texts += [part.text for part in result.content]
        for name in ("incident.json", "report.md", "patches/A1.diff"):
            read = await client.read_resource(f"eroica://incident/{leaky.id}/{name}")
            texts.append(read.contents[0].text)
            if name == "incident.json":
                assert json.loads(texts[-1])["id"] == leaky.id
        for prompt in ("explain", "fix"):
            made = await client.get_prompt(prompt, {"incident": leaky.id})
            texts.append(made.messages[0].content.text)
    for text in texts:
        assert SECRET not in text, text[max(0, text.find(SECRET) - 80) :][:120]
        assert "/home/ada" not in text
        assert "ada@example.org" not in text


async def test_one_unreadable_incident_does_not_hide_the_others(connect, project):
    broken = incidents.create("broken")
    (broken.path / "incident.json").write_text("{")
    async with connect() as client:
        listed = (await call(client, "list_incidents")).structured_content
        assert listed["total"] == 2
        assert sorted(row["symptom"] for row in listed["incidents"]) == ["", "stuck"]


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


async def test_no_more_proposals_are_kept_than_a_person_reviews(connect):
    folder = incidents.find(None)
    async with connect() as client:
        for number, is_kept in ((MAX_PROPOSALS - 1, True), (MAX_PROPOSALS, False)):
            made = [
                Patch(id=f"X{n}", cause="C1", source="assistant", label="review", title="",
                      edits=(), diff="")
                for n in range(number)
            ]  # fmt: skip
            folder.write_patches(made)
            result = await call(client, "propose_patch", incident="latest", patch=GOOD)
            assert result.is_error is not is_kept
            assert len(folder.read_patches()) == number + is_kept


async def test_prompts_show_no_source_outside_the_allowed_folders(project, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "train.py").write_text(SCRIPT.replace("def main():", "def main(outside=1):"))
    folder = incidents.find(None)
    record = folder.read_incident()
    for root, is_shown in ((project, True), (outside, False)):
        job = msgspec.structs.replace(record.job, source_root=str(root))
        folder.write_incident(msgspec.structs.replace(record, job=job))
        (project / "train.py").write_text(SCRIPT if is_shown else "x = 1\n")
        async with mcp.Client(build([project])) as client:
            for name in ("explain", "fix"):
                text = str(await client.get_prompt(name, {"incident": "latest"}))
                assert ("def save(" in text) is is_shown
                assert "outside=1" not in text


async def test_resources_and_prompts_are_offered(connect, project):
    async with connect() as client:
        name = incidents.find(None).id
        read = await client.read_resource(f"eroica://incident/{name}/incident.json")
        assert read.contents[0].text.encode() == incidents.find(None).incident_bytes()
        prompt = await client.get_prompt("explain", {"incident": name})
        assert "rank_conditional_collective" in prompt.messages[0].content.text


async def test_over_stdio_only_protocol_is_on_stdout(project):
    name, *arguments = command()
    parameters = mcp.StdioServerParameters(
        command=name, args=arguments, cwd=str(project), env=dict(os.environ)
    )
    async with mcp.Client(parameters) as connected:
        listed = (await call(connected, "list_incidents")).structured_content
        assert listed["total"] == 1


async def test_an_assistants_rehearsal_looks_for_the_cause_of_a_slow_job_again(
    project, monkeypatch
):
    folder = incidents.find(None)
    folder.write_patches(
        [Patch(id="P1", cause="C1", source="f", label="review", title="t", edits=(), diff="")]
    )
    slow = msgspec.structs.replace(folder.read_incident(), symptom="slow")
    folder.write_incident(slow)
    given = {}

    def rehearse(patch, command, root, **more):
        given.update(more, patch=patch.id, command=command)
        return Rehearsal(command=tuple(command), verdict="improved", summary="3 ms")

    monkeypatch.setattr("eroica.fix.rehearse", rehearse)
    async with mcp.Client(build([project], rehearsal="torchrun train.py")) as client:
        answer = await call(client, "rehearse_patch", incident=slow.id, patch_id="P1")
    assert answer.structured_content["verdict"] == "improved"
    assert (given["patch"], given["command"]) == ("P1", ["torchrun", "train.py"])
    assert (given["symptom"], callable(given["detector"])) == ("slow", True)
    assert folder.read_patches()[0].rehearsal.summary == "3 ms"
