"""Recorded answers replayed offline: the figures of docs/benchmarks.md and the rule behind them."""

import gzip
import json
import re
from pathlib import Path

import pytest

from eroica.records import Cause, Claim, Diagnosis, Place

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/data/recorded"
ANSWERS = DATA / "answers.jsonl"

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "benchmarks"))
    import naming
    import recorded

NOT_NAMED = {"n09", "n36"}
"""Incidents whose recorded explanation does not name the truth; docs/benchmarks.md says why."""
REFUSED: set[str] = set()
"""Incidents whose recorded patch does not pass a gate."""
NO_FIXER = ("n23", "n30")

SOURCE = "def outer():\n    def save():\n        pass\n    save()\n\n\ndef main():\n    outer()\n"
CASE = {
    "symptom": "stuck",
    "world_size": 4,
    "expected_category": "rank_conditional_collective",
    "guilty_file_line": {"file": "train.py", "function": "save", "line": 3},
    "guilty_ranks": [0],
}
RIGHT = Diagnosis(
    cause="C1",
    verdict="supported",
    summary="Rank 0 alone meets the condition of train.py:2.",
    claims=(Claim(text="It waits in save.", citations=("train.py:3",), is_resolved=True),),
)


def said(**changes):
    import msgspec

    return msgspec.structs.replace(RIGHT, **changes)


def engine(**changes):
    values = {"category": "rank_conditional_collective", "ranks": (0,), "action": "patch"}
    values["functions"] = (Place(name="save", file="train.py", line=3),)
    values |= {"id": "C1", "share": None, "confidence": 0.9, "summary": ""} | changes
    return Cause(**values)


@pytest.fixture
def job(tmp_path):
    (tmp_path / "train.py").write_text(SOURCE)
    return tmp_path


def test_an_explanation_with_place_ranks_and_kind_names_the_truth(job):
    assert naming.names_truth(engine(), RIGHT, CASE, job) == "confirmed"


def test_it_corrects_an_engine_that_blames_another_rank_or_kind(job):
    for wrong in ({"ranks": (1,)}, {"category": "blocked_io"}):
        assert naming.names_truth(engine(**wrong), RIGHT, CASE, job) == "corrected"
    assert naming.names_truth(None, RIGHT, CASE, job) == "corrected"


def test_what_is_missing_is_named(job):
    elsewhere = said(summary="Rank 0 alone meets the condition of train.py:7.", claims=())
    assert naming.names_truth(engine(), elsewhere, CASE, job) == "no: place"
    other_rank = said(summary="Rank 2 alone meets the condition of train.py:2.", claims=())
    assert naming.names_truth(engine(), other_rank, CASE, job) == "no: ranks"
    no_kind = said(summary="Rank 0 stands in train.py:2.", claims=())
    assert naming.names_truth(engine(), no_kind, CASE, job) == "no: kind"
    weak = said(verdict="insufficient evidence")
    assert naming.names_truth(engine(), weak, CASE, job) == "no: insufficient evidence"


def test_a_place_and_a_kind_in_different_claims_are_not_enough(job):
    claims = (
        Claim(text="It stands under a condition.", citations=("train.py:8",), is_resolved=True),
        Claim(text="Rank 0 waits.", citations=("train.py:3",), is_resolved=True),
    )
    apart = said(summary="Rank 0 waits under a condition.", claims=claims)
    assert naming.names_truth(engine(), apart, CASE, job) == "no: place"


def test_the_kind_and_the_guilty_rank_stand_where_one_reads_first(job):
    later = said(summary="Rank 0 waits in save.", claims=RIGHT.claims)
    assert naming.names_truth(engine(), later, CASE, job) == "no: kind"
    victims_first = said(
        summary="Rank 2 waits for rank 0, which alone meets the condition of train.py:2."
    )
    assert naming.names_truth(engine(), victims_first, CASE, job) == "no: ranks"
    everyone = said(summary="Ranks 0-3 stand apart: rank 0 alone meets the condition in save.")
    assert naming.names_truth(engine(), everyone, CASE, job) == "no: ranks"


def test_few_explanations_are_taken_for_right_of_another_incident(tmp_path):
    taken, pairs = recorded.mixed(recorded.all_saved(tmp_path), ANSWERS)
    assert pairs == 1225
    assert taken <= 66, "docs/benchmarks.md says how many"


def test_a_citation_that_does_not_resolve_names_no_place(job):
    claim = Claim(text="It waits.", citations=("train.py:3",), is_resolved=False)
    marked = said(summary="Rank 0 alone meets the condition.", claims=(claim,))
    assert naming.names_truth(engine(), marked, CASE, job) == "no: place"


def test_ranks_are_read_one_by_one_and_as_spans():
    assert naming.ranks_named("Ranks 0-2 and 5 wait for rank 7.") == {0, 1, 2, 5, 7}


def test_a_healthy_program_wants_doubt(job):
    case = {"symptom": "healthy"}
    assert naming.names_truth(engine(), said(verdict="hypothesis"), case, job) == "corrected"
    assert naming.names_truth(engine(), RIGHT, case, job).startswith("no: supported")


def test_each_category_has_words():
    for path in DATA.glob("*/truth.json"):
        truth = json.loads(path.read_text())
        for reading in truth.get("accept", ()):
            assert reading["category"] in naming.WORDS, path


def test_no_path_of_another_machine_is_in_what_was_saved():
    pattern = re.compile(rb'(?<![\w.])/(?:tmp|root|home|work)/|"/tmp')
    for path in DATA.rglob("*.json*"):
        if path.is_relative_to(DATA / "answers.jsonl"):
            continue
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        assert not pattern.search(data), path


def test_it_stays_small():
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 6_000_000


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The table of benchmarks/recorded.py without the runs."""
    scratch = tmp_path_factory.mktemp("recorded")
    return [recorded.row_of(one, ANSWERS, scratch, None) for one in recorded.all_saved(scratch)]


def test_the_recording_says_from_what_kind_of_model_and_when():
    head, *answers = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    assert head["purpose"] == "head"
    assert "model that saw the prompt alone" in head["about"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", head["recorded"])
    assert head["answers"] == len(answers)
    assert all(one["model"] and one["recorded"] for one in answers)


def test_there_are_enough_incidents_of_each_kind(rows):
    assert len(rows) >= 24
    assert {"stuck", "slow", "healthy"} <= {row["symptom"] for row in rows}
    assert sum(not row["is_code"] and row["symptom"] == "slow" for row in rows) >= 2
    assert len({row["category"] for row in rows}) >= 15


@pytest.mark.parametrize("name", sorted(NO_FIXER))
def test_no_fixer_has_a_patch_for_it(name, tmp_path):
    assert recorded.fixer_patches(recorded.unpack(DATA / name, tmp_path)) == []


def test_nine_of_ten_explanations_name_the_truth(rows):
    missed = {row["incident"]: row["truth"] for row in rows if row["truth"].startswith("no")}
    assert len(missed) <= len(rows) // 10, missed
    assert set(missed) <= NOT_NAMED, missed


def test_each_claim_resolves_or_a_note_says_what_does_not(rows):
    for row in rows:
        assert row["resolved"] + row["marked"] == row["claims"] > 0, row
        assert bool(row["marked"]) <= bool(row["notes"]), row


def test_patches_pass_the_gates_or_are_refused_with_a_reason(rows):
    refused = {r["incident"]: r["patch"] for r in rows if r["patch"].startswith(("refused", "no:"))}
    assert set(refused) <= REFUSED, refused
    for row in rows:
        assert row["patch"].startswith(("passes", "none: ", "refused: ", "no: ")), row


def test_the_recording_serves_the_model_option_as_it_is(tmp_path, monkeypatch):
    from eroica.commands.asking import explain_with_model, patches_from_model

    monkeypatch.delenv("EROICA_MODEL", raising=False)
    saved = recorded.unpack(DATA / "n01", tmp_path)
    name = f"replay:{ANSWERS}"
    explain_with_model(saved.folder, name, source=saved.job, progress=lambda text: None)
    first = saved.folder.read_diagnoses()[0]
    assert first.source == "replay:answers.jsonl"
    assert any(claim.is_resolved for claim in first.claims)
    incident = saved.folder.read_incident()
    made = patches_from_model(saved.folder, incident, saved.job, name, progress=lambda text: None)
    assert [patch.source for patch in made] == ["model replay:answers.jsonl"]
