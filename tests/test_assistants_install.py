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
    assert len(do(host, tmp_path)) == (3 if host == "codex" else 2)
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


def codex(tmp_path, text):
    path = tmp_path / ".codex" / "config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


OTHERS = """\
# my settings
model = "x"  # the model

[mcp_servers.other] # another
command = "other"
args = [
  "a", # first
  "[b]",
]
"""

OLD = """
[mcp_servers.eroica] # a comment
command = "old"
args = [
  "mcp",
]

[mcp_servers.eroica.env]
EROICA_HOME = "x"

# about the profile
[profiles.fast]
model = "y"
"""


def test_codex_an_older_table_is_replaced_and_all_else_stays(tmp_path):
    path = codex(tmp_path, OTHERS + OLD)
    do("codex", tmp_path)
    text = path.read_text()
    settings = tomllib.loads(text)
    server = settings["mcp_servers"]["eroica"]
    assert server == {"command": "eroica", "args": ["mcp"], "env": {"EROICA_HOME": "x"}}
    assert text.startswith(OTHERS)
    assert "# about the profile\n[profiles.fast]" in text
    assert do("codex", tmp_path) == []


def test_codex_removal_takes_subtables_and_leaves_the_rest_as_it_was(tmp_path):
    path = codex(tmp_path, OTHERS + OLD)
    do("codex", tmp_path, remove=True)
    text = path.read_text()
    assert "eroica" not in text
    assert text.startswith(OTHERS)
    assert text.endswith('# about the profile\n[profiles.fast]\nmodel = "y"\n')


def test_codex_settings_of_ones_own_in_the_table_stay(tmp_path):
    mine = '[mcp_servers.eroica]\ncommand = "eroica"\nargs = ["mcp"]\nstartup_timeout_sec = 20\n'
    path = codex(tmp_path, mine)
    do("codex", tmp_path)
    assert path.read_text() == mine


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = { eroica = { command = "old" } }\n',
        '[mcp_servers]\neroica = { command = "old" }\n',
        '[mcp_servers]\neroica.command = "old"\n',
        '[mcp_servers.eroica]\ncommand = "old"\nargs = [\n[ "a" ],\n]\n',
        'text = """\n[mcp_servers.eroica]\n"""\n[mcp_servers]\neroica.command = "old"\n',
    ],
)
def test_codex_what_cannot_be_edited_safely_is_refused_and_left_alone(text, remove, tmp_path):
    path = codex(tmp_path, text)
    with pytest.raises(InputError, match="by hand"):
        do("codex", tmp_path, remove=remove)
    assert path.read_text() == text


def test_codex_quoted_names_and_blanks_in_a_header_are_ours_too(tmp_path):
    path = codex(tmp_path, '[ "mcp_servers" . \'eroica\' ]\ncommand = "old"\n')
    do("codex", tmp_path)
    assert path.read_text() == '[mcp_servers.eroica]\ncommand = "eroica"\nargs = ["mcp"]\n'


def test_codex_removal_from_a_file_without_us_changes_nothing(tmp_path):
    path = codex(tmp_path, OTHERS)
    do("codex", tmp_path, remove=True)
    assert path.read_text() == OTHERS


def test_codex_is_told_in_agents_md_and_the_rest_of_it_stays(tmp_path):
    path = tmp_path / "AGENTS.md"
    path.write_text("# Rules\n\nBe kind.\n")
    do("codex", tmp_path)
    text = path.read_text()
    assert text.startswith("# Rules\n\nBe kind.\n\n<!-- eroica -->\n")
    assert "eroica diagnose --job --json" in text
    assert do("codex", tmp_path) == []
    do("codex", tmp_path, remove=True)
    assert path.read_text().rstrip() == "# Rules\n\nBe kind."
