"""The house: a stage imports only earlier stages and the ground floor; the hook stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ["collect", "read", "summarize", "localize", "explain", "fix", "review"]
GROUND = {"records", "columns", "errors", "units", "text", "incident", "config", "files", "git"}
HEAVY = {
    "torch",
    "numpy",
    "langchain",
    "langchain_core",
    "openai",
    "textual",
    "mcp",
    "numba",
    "rich",
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms(path: Path) -> set[str]:
    names = set()
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "eroica" and len(parts) > 1:
            names.add(parts[1])
    return names


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_only_earlier_stages_and_the_ground_floor(stage):
    allowed = GROUND | set(STAGES[: STAGES.index(stage) + 1]) | {"fixers", "prompts", "__version__"}
    for path in (ROOT / "eroica" / stage).rglob("*.py"):
        bad = rooms(path) - allowed
        assert not bad, f"{path.relative_to(ROOT)} imports {sorted(bad)}"


@pytest.mark.parametrize("module", sorted(GROUND))
def test_the_ground_floor_stands_on_itself(module):
    bad = rooms(ROOT / "eroica" / f"{module}.py") - GROUND - {"__version__"}
    assert not bad


def modules_loaded(code: str, env: dict[str, str] | None = None) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sorted(m for m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_import_eroica_outside_a_job_is_silent_and_light():
    assert not HEAVY & modules_loaded("import eroica")


def test_help_loads_nothing_heavy():
    code = """
import contextlib, io, sys
sys.argv = ["eroica", "--help"]
from eroica import cli
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    cli.main()
"""
    assert not (HEAVY - {"rich"}) & modules_loaded(code)
