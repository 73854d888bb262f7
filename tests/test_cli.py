"""The command line as a user meets it: exit codes, streams, errors without a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eroica import incident as incidents
from eroica.records import Cause, Finding, Incident, Job, Place


def eroica(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "eroica", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@pytest.fixture
def saved(tmp_path: Path) -> incidents.IncidentFolder:
    folder = incidents.create("barrier", tmp_path / ".eroica" / "incidents")
    cause = Cause(
        id="C1",
        category="rank_conditional_collective",
        ranks=(0,),
        functions=(Place(name="save", file="train.py", line=8),),
        share=None,
        confidence=0.97,
        summary="rank 0 waits in a barrier",
        action="patch",
        findings=("F1",),
    )
    finding = Finding(id="F1", kind="collective_divergence", text="barrier on [0]")
    folder.write_incident(
        Incident(
            id=folder.id,
            symptom="stuck",
            onset=None,
            job=Job(world_size=4, ranks=(0, 1, 2, 3)),
            causes=(cause,),
            findings=(finding,),
            warnings=(),
            headline="rank 0 waits in a barrier that ranks 1-3 never enter",
        )
    )
    return folder


def test_help_of_every_command_ends_zero_and_has_an_example(tmp_path):
    listing = eroica("--help", cwd=tmp_path)
    assert listing.returncode == 0
    names = [
        line.split()[0] for line in listing.stdout.partition("Commands:")[2].splitlines() if line
    ]
    assert {"run", "diagnose", "fix", "review", "report", "demo", "doctor"} <= set(names)
    for name in names:
        done = eroica(name, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert "Example: eroica" in done.stdout, name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["diagnose"], "nothing to diagnose"),
        (["diagnose", "no-such-folder"], "no-such-folder"),
        (["report", "x"], "no incident found"),
        (["run"], "no command to run"),
        (["fix", "--accept", "some"], "expected safe or all"),
        (["fixers", "NONE999"], "no fixer NONE999"),
        (["nonsense"], "nonsense"),
        (["demo", "nonsense"], "nonsense"),
    ],
)
def test_bad_usage_and_input_end_two_with_the_reason_on_stderr(tmp_path, words, expected):
    done = eroica(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_an_empty_list_is_no_error(tmp_path):
    done = eroica("list", cwd=tmp_path)
    assert (done.returncode, "no incident" in done.stdout) == (0, True)


def test_list_and_report_find_the_saved_incident(saved, tmp_path):
    listed = json.loads(eroica("list", "--json", cwd=tmp_path).stdout)
    assert [row["category"] for row in listed] == ["rank_conditional_collective"]
    done = eroica("report", saved.id[:12], "--format", "json", "-o", "-", cwd=tmp_path)
    assert done.stdout.encode() == saved.incident_bytes()


def test_a_reference_that_fits_nothing_names_what_there_is(saved, tmp_path):
    done = eroica("report", "zzz", cwd=tmp_path)
    assert done.returncode == 2
    assert saved.id in done.stderr


def test_piped_output_holds_no_escape_codes(saved, tmp_path):
    for words in (["list"], ["doctor"], ["review"]):
        assert "\x1b" not in eroica(*words, cwd=tmp_path, FORCE_COLOR="").stdout


def test_version(tmp_path):
    import eroica as package

    assert eroica("--version", cwd=tmp_path).stdout.strip() == f"eroica {package.__version__}"


def test_help_loads_nothing_that_is_only_needed_later(tmp_path):
    code = "import sys, eroica.cli; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    late = {"libcst", "numpy", "torch", "textual", "langchain_core", "openai", "mcp", "numba"}
    assert late & set(done.stdout.split()) == set()
