"""The documentation: generated pages are current, commands in it exist, links lead somewhere."""

import ast
import difflib
import importlib
import importlib.metadata
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from eroica.cli import app
from eroica.fix.examples import problems
from eroica.fix.registry import load_fixers

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "eroica").rglob("*.md")]
)
SOURCES = sorted([*(ROOT / "eroica").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
COMMANDS = typer.main.get_command(app)
DONE_WHILE_PARSING = re.compile(r"--(help|version|install-completion|show-completion)\b")
PLACEHOLDERS = {"--http PORT": "--http 8000", "--pid PID": "--pid 1", "…": "", " ...": ""}


def short(path):
    return str(path.relative_to(ROOT))


def test_the_generated_pages_are_current():
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run python docs/generate.py"


def parse(line):
    """Parse a command line as typer would, and run nothing."""
    for name, value in PLACEHOLDERS.items():
        line = line.replace(name, value)
    words = shlex.split(line, comments=True)
    while words and re.match(r"^[A-Z_]+=", words[0]):
        words.pop(0)
    assert words.pop(0) == "eroica"
    command = COMMANDS
    context = command.make_context("eroica", words) if words else None
    while words and hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, words)
        context = command.make_context(name, list(words), parent=context)


def lines_of(text):
    """What a reader would type: lines of fenced and indented blocks, and inline code."""
    found = []
    for block in re.findall(r"^```(?:sh|console|bash|text)?\n(.*?)^```", text, re.M | re.S):
        found += re.findall(r"^(?:\$ )?((?:[A-Z_]+=\S+ )?eroica .*)$", block, re.M)
    found += re.findall(r"^    ((?:[A-Z_]+=\S+ )?eroica .*)$", text, re.M)
    found += re.findall(r"`((?:[A-Z_]+=\S+ )?eroica [^`]+)`", text)
    parts = [part.strip() for line in found for part in re.split(r"&&|\||;| · ", line)]
    return [part for part in parts if re.match(r"(?:[A-Z_]+=\S+ )?eroica [a-z-]", part)]


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_every_command_in_a_page_is_one_that_eroica_takes(page):
    for line in lines_of(page.read_text()):
        if "  " in line:  # a table of commands and what they do
            line = line.split("  ")[0]
        if DONE_WHILE_PARSING.search(line) or line == "eroica COMMAND":
            continue
        try:
            parse(line)
        except Exception as error:
            if "Missing parameter" in str(error) and "--" not in line:
                continue  # a command that is only mentioned
            raise AssertionError(f"{short(page)}: {line!r}: {error}") from error


def test_a_command_that_eroica_does_not_take_is_noticed():
    text = "`eroica diagnose traces/ --quick` and\n\n```sh\neroica fiix\n```\n"
    assert lines_of(text) == ["eroica fiix", "eroica diagnose traces/ --quick"]
    for line in lines_of(text):
        with pytest.raises(Exception, match=r"quick|fiix"):
            parse(line)


def strings(path):
    """The texts of a module, with FILL for what is put into them at run time."""
    tree = ast.parse(path.read_text())
    if ast.get_docstring(tree) is not None:
        tree.body.pop(0)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "FILL" for v in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def options_of(command, rest):
    group = getattr(command, "commands", {})
    command = next((group[word] for word in rest.split() if word in group), command)
    return {name for parameter in command.params for name in parameter.opts} | {"--help"}


def test_every_command_that_a_message_names_exists_with_its_options():
    known = COMMANDS.commands
    seen = 0
    for path in SOURCES:
        for text in strings(path):
            for name, rest in re.findall(r"(?:^|, or |: )eroica ([a-z]+)\b([^,;.\n]*)", text, re.M):
                if name not in known:  # a sentence about eroica, or a slip
                    assert not difflib.get_close_matches(name, known), f"{short(path)}: {text}"
                    continue
                seen += 1
                used = re.findall(r"(?<=\s)--[a-z][a-z-]*", rest.partition(" -- ")[0])
                assert {*used} <= options_of(known[name], rest), (
                    f"{short(path)}: eroica {name}{rest}"
                )
    assert seen > 30


def anchors(page):
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    plain = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
    return set(plain)


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_every_link_leads_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), f"{short(page)}: {target}"
        if anchor and other.suffix == ".md":
            assert anchor in anchors(other), f"{short(page)}: {target}#{anchor}"


def test_pictures_are_told_in_words_too():
    for page in PAGES:
        for words, target in re.findall(r"!\[(.*?)\]\((\S+?\.svg)\)", page.read_text()):
            assert len(words) > 40, f"{short(page)}: {target}"


@pytest.fixture
def house_fixers(tmp_path, monkeypatch):
    """The package of the guide, as the guide writes it, installed for this process."""
    guide = (ROOT / "docs/guides/add_a_fixer.md").read_text()
    module, test = re.findall(r"^```python\n(.*?)^```", guide, re.M | re.S)
    (settings,) = re.findall(r"^```toml\n(.*?)^```", guide, re.M | re.S)
    package = tmp_path / "house_fixers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "metrics_upload.py").write_text(module)
    (tmp_path / "test_house.py").write_text(test)
    info = tmp_path / "house_fixers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house-fixers\nVersion: 1.0\n")
    offered = re.search(r'^\[project\.entry-points\."(.+)"\]\n(.+)$', settings, re.M)
    entry = offered[2].replace('"', "")
    (info / "entry_points.txt").write_text(f"[{offered[1]}]\n{entry}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    load_fixers.cache_clear()
    yield tmp_path
    load_fixers.cache_clear()


def test_the_fixer_of_the_guide_is_found_and_does_what_it_says(house_fixers):
    known = load_fixers()
    assert problems(known["HSE001"]) == []
    namespace = {}
    exec((house_fixers / "test_house.py").read_text(), namespace)
    namespace["test_the_fixer_does_what_it_says"]()
