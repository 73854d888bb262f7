"""Stuck jobs recorded live (gloo, CPU, torch 2.13) with their truth, from each kind of evidence.

The programs and their faults were written for this test; tests/data/stuck_*/truth.json says which
readings of each count as right.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eroica.localize.stuck import localize_stuck
from eroica.records import Cause, JobEvidence, Verdict

DATA = Path(__file__).parent / "data"
CASES = sorted(p.name.removeprefix("stuck_") for p in DATA.glob("stuck_*") if p.is_dir())
RECORDER_SUFFICES = (
    "async_ckpt",
    "consolidate_rank0",
    "decorator_main_only",
    "group_order",
    "layerdrop",
    "oom_skip",
    "time_budget",
)
"""Ranks that hang in collectives; what another rank waits in instead is not in a recorder."""


def load(name: str, kinds: str = "all") -> JobEvidence:
    folder = DATA / f"stuck_{name}"
    evidence = msgspec.json.decode((folder / "evidence.json").read_bytes(), type=JobEvidence)
    ranks = evidence.ranks
    if kinds == "stacks":
        ranks = tuple(msgspec.structs.replace(r, flight=None, process=None) for r in ranks)
    elif kinds == "recorder":
        ranks = tuple(
            msgspec.structs.replace(r, stacks=(), children=(), process=None) for r in ranks
        )
    return msgspec.structs.replace(
        evidence, ranks=ranks, source_root=str(folder), symptom_hint=None
    )


def truth(name: str) -> list[dict[str, Any]]:
    loaded = json.loads((DATA / f"stuck_{name}" / "truth.json").read_text())
    readings: list[dict[str, Any]] = loaded["readings"]
    return readings


def is_right(cause: Cause, reading: dict[str, Any]) -> bool:
    ranks = reading["ranks"]
    same_ranks = cause.ranks == ranks if ranks == "all" else cause.ranks == tuple(ranks)
    return (
        cause.category == reading["category"]
        and same_ranks
        and any(
            Path(p.file or "").name == wanted["file"] and abs((p.line or 0) - wanted["line"]) <= 1
            for p in cause.functions[:2]
            for wanted in reading["functions"]
        )
    )


def check(verdict: Verdict, name: str) -> None:
    assert verdict.symptom == "stuck"
    first = verdict.causes[0]
    assert any(is_right(first, reading) for reading in truth(name)), first


@pytest.mark.parametrize("name", CASES)
def test_the_first_cause_is_right(name: str) -> None:
    check(localize_stuck(load(name)), name)


@pytest.mark.parametrize("name", CASES)
def test_stacks_alone_suffice(name: str) -> None:
    if name == "group_order":
        pytest.skip("which group each rank waits in is only in the recorder")
    check(localize_stuck(load(name, "stacks")), name)


@pytest.mark.parametrize("name", RECORDER_SUFFICES)
def test_the_recorder_alone_suffices_where_ranks_hang_in_collectives(name: str) -> None:
    check(localize_stuck(load(name, "recorder")), name)


@pytest.mark.parametrize("name", CASES)
def test_without_the_source_the_ranks_still_come_out(name: str) -> None:
    evidence = msgspec.structs.replace(load(name), source_root=None)
    verdict = localize_stuck(evidence)
    assert verdict.causes
    accepted = [r["ranks"] if r["ranks"] == "all" else tuple(r["ranks"]) for r in truth(name)]
    assert verdict.causes[0].ranks in accepted


@pytest.mark.parametrize("name", CASES)
def test_every_cause_gives_its_reasons_and_cites_findings(name: str) -> None:
    verdict = localize_stuck(load(name))
    known = {f.id for f in verdict.findings}
    for cause in verdict.causes:
        assert cause.why and cause.advice and cause.summary
        assert cause.findings and set(cause.findings) <= known
        assert 0 < cause.confidence < 1
    assert sorted(r for row in verdict.ranks_table for r in row.ranks) == list(
        range(load(name).world_size)
    )
