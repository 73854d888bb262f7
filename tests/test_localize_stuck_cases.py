"""Stuck jobs recorded live (gloo, CPU, torch 2.13) with their truth, from each kind of evidence.

The programs and their faults were written for this test; tests/data/stuck_*/truth.json says which
readings of each count as right.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.localize.stuck import localize_stuck
from eroica.records import (
    Cause,
    FlightRecord,
    JobEvidence,
    Place,
    ProcessStacks,
    RankExit,
    Verdict,
)

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


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(CASES),
    seed=st.randoms(use_true_random=False),
    has_source=st.booleans(),
)
def test_holes_in_the_evidence_never_raise(name: str, seed: Random, has_source: bool) -> None:
    """Frames without lines or files, missing threads, ranks, entries and sources."""

    def place(p: Place) -> Place:
        file = seed.choice([p.file, p.file, p.file, None, "<string>", "gone/away.py"])
        return msgspec.structs.replace(p, file=file, line=seed.choice([p.line, p.line, None, 0, 1]))

    def process(sample: ProcessStacks) -> ProcessStacks:
        threads = [t for t in sample.threads if seed.random() < 0.8]
        return msgspec.structs.replace(
            sample,
            threads=tuple(
                msgspec.structs.replace(
                    t, frames=tuple(place(p) for p in t.frames if seed.random() < 0.9)
                )
                for t in threads
            ),
        )

    def record(flight: FlightRecord | None) -> FlightRecord | None:
        if flight is None or seed.random() < 0.2:
            return None
        entries = tuple(
            msgspec.structs.replace(
                e,
                frames=tuple(place(p) for p in e.frames),
                sequence=seed.choice([e.sequence, e.sequence, None]),
            )
            for e in flight.entries
            if seed.random() < 0.8
        )
        return msgspec.structs.replace(flight, entries=entries)

    evidence = load(name)
    ranks = tuple(
        msgspec.structs.replace(
            r,
            stacks=tuple(process(p) for p in r.stacks),
            children=tuple(process(p) for p in r.children),
            flight=record(r.flight),
            exit=seed.choice([None, None, RankExit(), RankExit(exit_code=1)]),
        )
        for r in evidence.ranks
        if seed.random() < 0.85
    )
    root = evidence.source_root if has_source else None
    verdict = localize_stuck(msgspec.structs.replace(evidence, ranks=ranks, source_root=root))
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict
