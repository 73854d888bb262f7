"""Put the MCP server and the skill into a coding assistant's own files, and take them out again.

What is there is kept: the file is parsed, one entry is set, the rest is written back. A file that
does not parse is refused. Installing twice is installing once.
"""

import importlib.resources
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eroica.errors import InputError
from eroica.incident import write_atomic

NAME = "eroica"
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
        ),
    }


def plan(host: str, *, user: bool, remove: bool, project: Path, home: Path) -> list[Change]:
    """Return the changes an installation (or removal) makes; nothing is written."""
    known = hosts()
    if host not in known:
        raise InputError(f"unknown assistant {host!r}", f"expected one of {', '.join(known)}")
    chosen, base = known[host], home if user else project
    path = base / (chosen.user_file if user else chosen.project_file)
    before = path.read_text() if path.exists() else None
    changes = [Change(path, before, chosen.edit(before, path, remove))]
    skills = base / (chosen.user_skills if user else chosen.project_skills)
    target = skills / NAME / "SKILL.md"
    old = target.read_text() if target.exists() else None
    changes.append(Change(target, old, None if remove else skill_text()))
    return [change for change in changes if change.is_needed]


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
            raise InputError(f"cannot change {change.path}", str(error)) from error


def skill_text() -> str:
    root = importlib.resources.files("eroica.assistants")
    return (root / "skill" / NAME / "SKILL.md").read_text()


def agents_paragraph() -> str:
    """A paragraph for a project's AGENTS.md."""
    return (
        "If a distributed training job hangs, dies in a collective or became slow, run\n"
        "`eroica diagnose --job --json` (on traces: `eroica diagnose PATH --json`) before reading\n"
        "code: it names the ranks, the function and the kind of fault with the evidence.\n"
    )


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
            raise InputError(f"{path} has another shape", f"expected an object with {key!r}")
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


_SECTION = re.compile(r"\n*^\[mcp_servers\.eroica\]\n(?:(?!\[).*\n?)*", re.M)


def _edit_toml(before: str | None, path: Path, remove: bool) -> str | None:
    text = before or ""
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML", str(error), "mend it first") from error
    present = settings.get("mcp_servers", {}).get(NAME)
    if remove:
        rest = _SECTION.sub("\n", text).strip("\n")
        return rest + "\n" if rest else None
    if present == COMMAND:
        return before
    section = f'[mcp_servers.{NAME}]\ncommand = "{COMMAND["command"]}"\nargs = ["mcp"]\n'
    rest = _SECTION.sub("\n", text).strip("\n")
    return f"{rest}\n\n{section}" if rest else section
