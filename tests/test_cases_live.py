"""A few labelled programs, run live and judged as benchmarks/cases.py judges all of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Over symptoms and families, those that are over soonest: about two minutes on two cores.
CASES = (
    "cache_named_by_hash",
    "decoder_stderr_never_read",
    "batches_by_token_budget",
    "rank_zero_only_hook_gathers",
    "tidy_after_each_step",
    "index_parsed_for_each_sample",
    "healthy_rich_augmentation",
    "healthy_saves_in_a_thread",
)


def answer(name, folder, monkeypatch):
    """The row of one case. PATH leads to the torchrun beside this Python."""
    rows = folder / "rows.json"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    command = [sys.executable, "benchmarks/cases.py", "--only", name, "--rows", str(rows)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(rows.read_text())
    return row


@pytest.mark.job
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", CASES)
def test_a_case_is_solved_live(name, tmp_path, monkeypatch):
    row = answer(name, tmp_path, monkeypatch)
    assert row["id"] == name
    assert row["solved"], row
    assert row["left"] == 0


def test_the_subset_has_every_symptom_and_names_cases_that_are_there():
    truths = [json.loads((ROOT / "tests/cases" / name / "case.json").read_text()) for name in CASES]
    assert {truth["symptom"] for truth in truths} == {"stuck", "slow", "healthy"}
    assert len({truth["expected_category"] for truth in truths}) >= 6
