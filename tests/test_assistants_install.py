"""Installing into assistants: merged, kept, idempotent, removed again."""

import json
import tomllib

import pytest

from eroica.assistants import install
from eroica.errors import InputError


def do(host, tmp_path, *, user=False, remove=False):
    changes = install.plan(host, user=user, remove=remove, project=tmp_path, home=tmp_path / "home")
    install.carry_out(changes)
    return changes


def server_of(host, tmp_path):
    path = tmp_path / install.hosts()[host].project_file
    if host == "codex":
        return tomllib.loads(path.read_text())["mcp_servers"]["eroica"]
    key = "servers" if host == "vscode" else "mcpServers"
    return json.loads(path.read_text())[key]["eroica"]


@pytest.mark.parametrize("host", sorted(install.hosts()))
def test_an_installation_names_the_command_and_a_second_changes_nothing(host, tmp_path):
    assert len(do(host, tmp_path)) == 2
    server = server_of(host, tmp_path)
    assert (server["command"], server["args"]) == ("eroica", ["mcp"])
    assert do(host, tmp_path) == []


@pytest.mark.parametrize("host", sorted(install.hosts()))
def test_what_is_there_is_kept_and_removal_leaves_it(host, tmp_path):
    path = tmp_path / install.hosts()[host].project_file
    path.parent.mkdir(parents=True, exist_ok=True)
    if host == "codex":
        path.write_text('model = "x"\n\n[mcp_servers.other]\ncommand = "other"\n')
    else:
        key = "servers" if host == "vscode" else "mcpServers"
        path.write_text(json.dumps({"theme": "dark", key: {"other": {"command": "other"}}}))
    do(host, tmp_path)
    assert "other" in path.read_text() and "eroica" in path.read_text()
    do(host, tmp_path, remove=True)
    assert "other" in path.read_text() and "eroica" not in path.read_text()


@pytest.mark.parametrize("host", sorted(install.hosts()))
def test_removal_of_a_sole_entry_leaves_no_file(host, tmp_path):
    do(host, tmp_path)
    do(host, tmp_path, remove=True)
    assert not (tmp_path / install.hosts()[host].project_file).exists()
    assert not list(tmp_path.rglob("SKILL.md"))


@pytest.mark.parametrize(
    ("host", "text"), [("claude", "{broken"), ("codex", "a = = 1"), ("cursor", "[]")]
)
def test_a_broken_file_is_refused_and_left_alone(host, text, tmp_path):
    path = tmp_path / install.hosts()[host].project_file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    with pytest.raises(InputError):
        do(host, tmp_path)
    assert path.read_text() == text


def test_the_skill_has_a_name_like_its_folder_and_a_bounded_description():
    head = install.skill_text().split("---")[1]
    fields = dict(line.split(": ", 1) for line in head.strip().splitlines())
    assert fields["name"] == "eroica"
    assert len(fields["description"]) <= 1024
    assert len(install.skill_text().splitlines()) < 500


def test_a_user_installation_goes_to_the_home_folder(tmp_path):
    changes = do("claude", tmp_path, user=True)
    assert all(str(tmp_path / "home") in str(change.path) for change in changes)
