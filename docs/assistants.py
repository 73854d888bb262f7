"""Write docs/assistants.md, or with --check say whether it is stale.

    python docs/assistants.py [--check]
    python docs/assistants.py --measure    also measure the start of the server anew

The transcript in it is a run for real: the server as a process over stdio, the SDK's client, and
a scripted assistant that reads an incident and proposes a bad and a good patch.
"""

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import mcp  # noqa: E402
from make_assistant import BAD, GOOD, command, make_project  # noqa: E402

from eroica.incident import IncidentFolder  # noqa: E402

ID = "20261129-031205-barrier"
PAGE = """\
<!-- Made by docs/assistants.py; edit that instead. -->
# eroica inside a coding assistant

`eroica plugin install claude` (or `cursor`, `vscode`, `codex`) puts the MCP server and a skill into
the assistant's own files; `--dry-run` shows what would change, `eroica plugin uninstall` takes it
out again. By hand: the server is `eroica mcp` on stdio, `eroica mcp --http PORT` on loopback.

The assistant reads incidents and sources below the folder the server was started in, and proposes
patches. It cannot write to the work tree and runs nothing, unless the server was started with
`--allow-rehearse CMD`. Secrets, user names and mail addresses are blotted out of every answer;
hosts and paths of the project stay, because the answer is for the person at this machine. Files
and folders whose names begin with a dot, and files that usually hold keys, do not exist for it.

{start}

## Tools

{tools}

## What it looks like

A job of two ranks is stuck; the incident is in the store. A scripted assistant, the server as a
process. Empty fields of the answers are left out here.

{transcript}
"""


async def page() -> str:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "project"
        os.environ["EROICA_HOME"] = str(root / ".eroica")
        name = make_project(root, num_findings=2).id
        words = command("--allow-rehearse", "true")
        server = mcp.StdioServerParameters(
            command=words[0], args=words[1:], cwd=str(root), env=dict(os.environ)
        )
        async with mcp.Client(server) as client:
            tools = [_row(tool) for tool in (await client.list_tools()).tools]
            transcript = await _case(client, name)
        patches = IncidentFolder(root / ".eroica" / "incidents" / name).read_patches()
        kept = ", ".join(f"{one.id} from {one.source}, to {one.label}" for one in patches)
        transcript.append(f"In `eroica review {ID}` a person now decides on: {kept}.")
        text = "\n\n".join(transcript).replace(name, ID).replace(f"{root}", "project")
    table = "| Tool | | |\n|---|---|---|\n" + "\n".join(tools)
    start = _start_line(ROOT / "docs" / "assistants.md")
    return PAGE.format(tools=table, transcript=text, start=start)


def start_up(times: int = 7) -> str:
    """One line on how long the server takes from its start to the list of its tools."""
    load = os.getloadavg()[0]
    walls, cpus = zip(*(_start() for _ in range(times)), strict=True)
    return (
        f"From its start to the answer with its tools the server takes {min(walls):.2f} s, "
        f"{statistics.median(walls):.2f} s in the middle of {times} starts; "
        f"{statistics.median(cpus):.2f} s of it is processor time "
        f"(Python {sys.version_info[0]}.{sys.version_info[1]}, {os.cpu_count()} cores, on which "
        f"{load:.1f} programs ran meanwhile)."
    )


def _start() -> tuple[float, float]:
    """Seconds, and seconds of processor time, of one server that is asked for its tools."""
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.monotonic()
        pipe = subprocess.PIPE
        server = subprocess.Popen(command(), cwd=scratch, stdin=pipe, stdout=pipe, text=True)
        assert server.stdin is not None and server.stdout is not None
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
        hello["clientInfo"] = {"name": "stopwatch", "version": "1"}
        for number, (method, given) in enumerate((("initialize", hello), ("tools/list", {}))):
            asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": given}
            server.stdin.write(json.dumps(asked) + "\n")
            server.stdin.flush()
            while json.loads(server.stdout.readline()).get("id") != number:
                pass
        wall = time.monotonic() - begin
        server.stdin.close()
        _, _, usage = os.wait4(server.pid, 0)
        server.returncode = 0
        server.stdout.close()
    return wall, usage.ru_utime + usage.ru_stime


def _start_line(path: Path) -> str:
    """The line measured last; measured now where there is none, or where it is asked for."""
    known = re.search(r"^From its start to .*$", path.read_text() if path.exists() else "", re.M)
    return start_up() if known is None or "--measure" in sys.argv else known[0]


def _row(tool: mcp.types.Tool) -> str:
    hints = tool.annotations
    what = "reads" if hints is not None and hints.read_only_hint else "adds to the incident"
    text = " ".join((tool.description or "").split())
    return f"| `{tool.name}` | {what} | {text} |"


async def _case(client: mcp.Client, name: str) -> list[str]:
    steps = [
        ("Which incidents are there?", "list_incidents", {}),
        ("What is the cause?", "get_incident", {"incident": name}),
        ("What was measured?", "get_evidence", {"incident": name, "finding": "F1"}),
        ("The code it names:", "get_source", {"path": "train.py"}),
        (
            "A bad patch: one more collective that only rank 0 reaches. It is refused.",
            "propose_patch",
            {"incident": name, "patch": BAD},
        ),
        (
            "A good one: the barrier for all ranks. It waits for the person.",
            "propose_patch",
            {"incident": name, "patch": GOOD},
        ),
    ]
    shown = []
    for said, tool, arguments in steps:
        result = await client.call_tool(tool, arguments)
        answer, long = _shown(result.structured_content or {})
        patch = arguments.get("patch")
        asked = {key: value for key, value in arguments.items() if key != "patch"}
        call = f"{tool} {json.dumps(asked)}" + (f"\n{patch}" if patch else "\n")
        shown.append(f"{said}\n\n```text\n{call}```\n\n```json\n{answer}\n```{long}")
    return shown


def _shown(answer: dict[str, Any]) -> tuple[str, str]:
    """The answer without its empty fields, and its text of many lines as lines."""
    filled = _filled(answer)
    blocks = ""
    for key in ("text", "diff"):
        value = filled.get(key)
        if isinstance(value, str) and "\n" in value:
            filled[key] = "(below)"
            blocks += f"\n\n```{'diff' if key == 'diff' else 'text'}\n{value.rstrip()}\n```"
    return json.dumps(filled, indent=1), blocks


def _filled(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        kept = {key: _filled(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", [], {})}
    return [_filled(item) for item in value] if isinstance(value, list) else value


def main() -> int:
    path, text = ROOT / "docs" / "assistants.md", asyncio.run(page())
    is_current = path.exists() and path.read_text() == text
    if "--check" in sys.argv:
        if not is_current:
            print("docs/assistants.md is stale: python docs/assistants.py")
        return int(not is_current)
    if not is_current:
        path.write_text(text)
        print("docs/assistants.md written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
