"""Which side of localization a job is handed to, and what counts as evidence of a stuck one."""

import pytest

from eroica import gathering, localize, pipeline
from eroica.config import Parameters
from eroica.gathering import Gathered
from eroica.records import (
    FlightRecord,
    JobEvidence,
    LogEvent,
    ProcessStacks,
    RankEvidence,
    RankExit,
    Verdict,
)

PARTS = {
    "stacks": (ProcessStacks(threads=()),),
    "children": (ProcessStacks(threads=()),),
    "flight": FlightRecord(rank=0, version="2", groups={}),
    "exit": RankExit(exit_code=1),
}


def evidence(*, hint=None, log=False, **parts):
    events = (LogEvent(kind="xid", text="x"),) if log else ()
    rank = RankEvidence(rank=0, **parts)
    return JobEvidence(ranks=(rank,), world_size=1, symptom_hint=hint, log_events=events)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_alone_is_evidence_of_where_a_rank_stands(part):
    assert gathering.has_stack_evidence(evidence(**{part: PARTS[part]}))


def test_a_rank_alone_is_no_evidence():
    assert not gathering.has_stack_evidence(evidence())


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (evidence(hint="stuck"), ["stuck"]),
        (evidence(hint="failed"), ["stuck"]),
        (evidence(hint="slow", exit=PARTS["exit"]), ["slow"]),
        (evidence(hint="healthy", log=True), ["slow"]),
        (evidence(), ["slow"]),
        (evidence(log=True), ["slow", "stuck"]),
        (evidence(exit=PARTS["exit"]), ["stuck"]),
    ],
)
def test_the_symptom_that_was_seen_decides_who_is_asked(monkeypatch, given, asked):
    seen = []

    def side(name):
        return lambda *_, **__: seen.append(name) or Verdict(symptom=name)

    monkeypatch.setattr(localize, "localize_stuck", side("stuck"))
    monkeypatch.setattr(localize, "localize_slow", side("slow"))
    verdict = pipeline.localize(Gathered(given), None, Parameters())
    assert seen == asked
    assert verdict.symptom == asked[0]  # a stuck side without a cause does not outdo the slow one
