"""Put the MCP server and the skill into a coding assistant's own files, and take them out again.

What is there is kept: the file is parsed, one entry is set, the rest is written back. A file that
does not parse is refused. Installing twice is installing once.
"""

import importlib.resources
import json
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eroica.errors import InputError
from eroica.files import read_plain
from eroica.incident import write_atomic

NAME = "eroica"
_LARGEST = 1 << 28  # an assistant may keep its history in the same file
COMMAND = {"command": "eroica", "args": ["mcp"]}


@dataclass(frozen=True)
class Change:
    """One file as it would be; ``after`` None removes it."""

    path: Path
    before: str | None
    after: str | None

    @property
    def is_needed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class Host:
    """Where an assistant keeps its MCP servers and skills, for a project and for a user."""

    title: str
    project_file: str
    user_file: str
    edit: Callable[[str | None, Path, bool], str | None]
    project_skills: str
    user_skills: str
    reads_agents: bool = False
    """It is told about a project by the project's AGENTS.md."""


def hosts() -> dict[str, Host]:
    return {
        "claude": Host(
            "Claude Code",
            ".mcp.json",
            ".claude.json",
            _edit_json("mcpServers"),
            ".claude/skills",
            ".claude/skills",
        ),
        "cursor": Host(
            "Cursor",
            ".cursor/mcp.json",
            ".cursor/mcp.json",
            _edit_json("mcpServers"),
            ".cursor/skills",
            ".cursor/skills",
        ),
        "vscode": Host(
            "VS Code",
            ".vscode/mcp.json",
            ".config/Code/User/mcp.json",
            _edit_json("servers", {"type": "stdio"}),
            ".github/skills",
            ".copilot/skills",
        ),
        "codex": Host(
            "Codex",
            ".codex/config.toml",
            ".codex/config.toml",
            _edit_toml,
            ".agents/skills",
            ".agents/skills",
            reads_agents=True,
        ),
    }


def plan(host: str, *, user: bool, remove: bool, project: Path, home: Path) -> list[Change]:
    """Return the changes an installation (or removal) makes; nothing is written."""
    known = hosts()
    if host not in known:
        raise InputError(
            f"unknown assistant {host!r}",
            f"expected one of {', '.join(known)}",
            next_step="eroica plugin install claude",
        )
    chosen, base = known[host], home if user else project
    path = base / (chosen.user_file if user else chosen.project_file)
    before = _text(path, base, is_project=not user)
    changes = [Change(path, before, chosen.edit(before, path, remove))]
    skills = base / (chosen.user_skills if user else chosen.project_skills)
    target = skills / NAME / "SKILL.md"
    old = _text(target, base, is_project=not user)
    changes.append(Change(target, old, None if remove else skill_text()))
    if chosen.reads_agents and not user:
        agents = base / "AGENTS.md"
        old = _text(agents, base, is_project=True)
        changes.append(Change(agents, old, _edit_agents(old, remove)))
    return [change for change in changes if change.is_needed]


def _text(path: Path, base: Path, *, is_project: bool) -> str | None:
    """What a file holds; None where there is none. InputError for one that cannot be edited.

    A user's own links are followed. A project is someone else's: a link in it that leads out would
    have another file of the user's written.
    """
    if is_project and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base)):
        raise InputError(
            f"{path} is a link that leads out of the project",
            f"to {os.path.realpath(path)}",
            next_step="take the link away, or install for you: --user",
        )
    try:
        return read_plain(path, _LARGEST).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read", str(error), next_step="mend it, or move it away"
        ) from error


def carry_out(changes: list[Change]) -> None:
    """Write the planned changes, each file whole or not at all."""
    for change in changes:
        try:
            if change.after is None:
                change.path.unlink(missing_ok=True)
                if change.path.name == "SKILL.md" and not any(change.path.parent.iterdir()):
                    change.path.parent.rmdir()
            else:
                write_atomic(change.path, change.after.encode())
        except OSError as error:
            raise InputError(
                f"cannot change {change.path}",
                str(error),
                next_step="eroica plugin install ASSISTANT --dry-run shows what would be written",
            ) from error


def skill_text() -> str:
    root = importlib.resources.files("eroica.assistants")
    return (root / "skill" / NAME / "SKILL.md").read_text("utf-8")


def agents_paragraph() -> str:
    """A paragraph for a project's AGENTS.md."""
    return (
        "If a distributed training job hangs, dies in a collective or became slow, run\n"
        "`eroica diagnose --job --json` (on traces: `eroica diagnose PATH --json`) before reading\n"
        "code: it names the ranks, the function and the kind of fault with the evidence.\n"
    )


_PARAGRAPH = re.compile(r"\n*<!-- eroica -->\n.*?<!-- /eroica -->\n?", re.DOTALL)


def _edit_agents(before: str | None, remove: bool) -> str | None:
    """Set or remove our paragraph, which two comments enclose."""
    rest = _PARAGRAPH.sub("", before or "")
    if remove:
        return rest or None
    block = f"<!-- eroica -->\n{agents_paragraph()}<!-- /eroica -->\n"
    return f"{rest.rstrip()}\n\n{block}" if rest.strip() else block


def _edit_json(
    key: str, extra: dict[str, str] | None = None
) -> Callable[[str | None, Path, bool], str | None]:
    def edit(before: str | None, path: Path, remove: bool) -> str | None:
        if before is None and remove:
            return None
        try:
            settings = json.loads(before) if before and before.strip() else {}
        except ValueError as error:
            raise InputError(f"{path} is not valid JSON", str(error), "mend it first") from error
        servers = settings.setdefault(key, {}) if isinstance(settings, dict) else None
        if not isinstance(servers, dict):
            raise InputError(
                f"{path} has another shape",
                f"expected an object with {key!r}",
                next_step="mend it by hand, or move it away and install again",
            )
        if remove:
            servers.pop(NAME, None)
            if not servers:
                settings.pop(key)
            return json.dumps(settings, indent=2) + "\n" if settings else None
        wanted = {**(extra or {}), **COMMAND}
        if servers.get(NAME) == wanted and before is not None:
            return before
        servers[NAME] = wanted
        return json.dumps(settings, indent=2) + "\n"

    return edit


_HEADER = re.compile(r"""^\s*\[(?P<name>[^\[\]]*(?:"[^"]*"|'[^']*')?[^\[\]]*)\]\s*(?:#.*)?$""")
_ANY_HEADER = re.compile(r"^\s*\[")
_OWN = re.compile(r"""^\s*["']?mcp_servers["']?\s*\.\s*["']?eroica["']?\s*(?P<more>\..*)?$""")


def _edit_toml(before: str | None, path: Path, remove: bool) -> str | None:
    """Set or remove one table in the text; whatever else stands in it stays, comments too.

    The result is parsed and compared with what was meant: where the table is written in a way
    that the edit does not know (inline, dotted keys), the file is refused and left alone.
    """
    text = before or ""
    settings = _parsed(text, path)
    servers = settings.get("mcp_servers", {})
    present = servers.get(NAME) if isinstance(servers, dict) else None
    own = present if isinstance(present, dict) else {}
    if remove and present is None:
        return before
    if not remove and all(own.get(key) == value for key, value in COMMAND.items()):
        return before
    tables = {key: value for key, value in own.items() if isinstance(value, dict)}
    rest = _without(text, with_subtables=remove).strip("\n")
    section = f'[mcp_servers.{NAME}]\ncommand = "{COMMAND["command"]}"\nargs = ["mcp"]'
    parts = [rest] if remove else [rest, section]
    after = "\n\n".join(part for part in parts if part) + "\n"
    wanted = {**settings, "mcp_servers": {**servers, NAME: {**tables, **COMMAND}}}
    if remove:
        left = {key: value for key, value in servers.items() if key != NAME}
        wanted = {**settings, "mcp_servers": left}
    if not _is_same(after, wanted):
        raise InputError(
            f"{path} is written in a way that cannot be edited safely",
            f"mcp_servers.{NAME} is not a table of its own",
            "remove it by hand" if remove else f"write it by hand:\n{section}",
        )
    return after if after.strip() else None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML", str(error), "mend it first") from error


def _is_same(text: str, wanted: dict[str, Any]) -> bool:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    # A table that went with its last entry is as good as an empty one.
    return {"mcp_servers": {}, **found} == {"mcp_servers": {}, **wanted}


def _without(text: str, *, with_subtables: bool) -> str:
    """Return the text without our table; comments above the next table's header are its own."""
    kept: list[str] = []
    section: list[str] = []
    is_inside = False
    for line in text.splitlines(keepends=True):
        if _ANY_HEADER.match(line):
            header = _HEADER.match(line)
            own = _OWN.match(header["name"]) if header else None
            kept += _tail(section)
            section = []
            is_inside = own is not None and (with_subtables or not own["more"])
        if is_inside:
            section.append(line)
        else:
            kept.append(line)
    return "".join([*kept, *_tail(section)])


def _tail(section: list[str]) -> list[str]:
    """The comments and empty lines at a section's end, from the first empty line on."""
    count = 0
    for line in reversed(section):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        count += 1
    tail = section[len(section) - count :] if count else []
    blank = next((number for number, line in enumerate(tail) if not line.strip()), len(tail))
    return tail[blank:]
