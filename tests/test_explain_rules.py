"""The rule-written explanation: complete, cited, and in words that fit the ranks."""

import re

import msgspec
import pytest

from eroica.explain import explain
from eroica.explain.knowledge import lookup
from eroica.explain.rules import rank_phrase
from eroica.records import CATEGORIES, Cause, Finding, Incident, Job, Place

ALL = [name for names in CATEGORIES.values() for name in names]


def make_incident(*causes, findings=(), symptom="slow", not_seen=()):
    return Incident(
        id="i", symptom=symptom, onset=None, job=Job(world_size=4, ranks=(0, 1, 2, 3)),
        causes=causes, findings=findings, warnings=(), not_seen=not_seen,
    )  # fmt: skip


def make_cause(category="gc_pause", **changes):
    values = {
        "id": "C1", "category": category, "ranks": (2,), "share": 0.2, "confidence": 0.9,
        "functions": (Place(name="step", file="train.py", line=7),), "summary": "s",
        "action": "patch", "findings": ("F1",),
    }  # fmt: skip
    return Cause(**{**values, **changes})


F1 = Finding(id="F1", kind="pattern", rank=2, text="rank 2 is late")


@pytest.mark.parametrize("category", ALL)
def test_every_category_has_a_text_of_its_own(category):
    known = lookup(category)
    assert known.title != lookup("no such category").title
    assert known.steps and known.disproved_by


@pytest.mark.parametrize("category", ALL)
@pytest.mark.parametrize("ranks", [(2,), (1, 2), "all"])
def test_no_placeholder_is_left_in_any_text(category, ranks):
    [diagnosis] = explain(make_incident(make_cause(category, ranks=ranks), findings=(F1,)))
    texts = [*(c.text for c in diagnosis.claims), *diagnosis.next_steps, *diagnosis.disproved_by]
    assert not [text for text in texts if re.search(r"\{\w+\}", text)]


def test_verbs_agree_with_the_ranks():
    one = explain(make_incident(make_cause("straggler_network"), findings=(F1,)))
    many = explain(make_incident(make_cause("straggler_network", ranks=(1, 2)), findings=(F1,)))
    assert one[0].claims[0].text.startswith("Rank 2 moves data slower than its peers")
    assert many[0].claims[0].text.startswith("Ranks 1-2 move data slower than their peers")


def test_every_claim_cites_a_finding_that_exists_or_a_line():
    cause = make_cause(why=("Rank 2 came late (F1).", "Nobody else did."), victims=(0, 1, 3))
    [diagnosis] = explain(make_incident(cause, findings=(F1,)))
    assert len(diagnosis.claims) >= 4
    for claim in diagnosis.claims:
        assert claim.citations
        assert set(claim.citations) <= {"F1", "train.py:7"}


def test_a_sentence_cites_only_the_findings_it_names():
    second = Finding(id="F2", kind="stack", text="other")
    cause = make_cause(findings=("F1", "F2"), why=("Seen in F2.",))
    [diagnosis] = explain(make_incident(cause, findings=(F1, second)))
    [claim] = [claim for claim in diagnosis.claims if claim.text == "Seen in F2."]
    assert claim.citations == ("F2",)


def test_a_pattern_is_said_beside_its_peers():
    from eroica.records import Function

    function = Function(id="x", kind="python", name="json.loads")
    pattern = Finding(
        id="F1", kind="pattern", rank=2, function=function, beta=0.43, peers={"beta": 0.02}
    )
    [diagnosis] = explain(make_incident(make_cause(), findings=(pattern,)))
    said = [claim.text for claim in diagnosis.claims]
    assert "json.loads is 43 % of the window on rank 2, its peers' median is 2 %." in said


def test_a_use_off_the_peers_is_said_too():
    from eroica.records import Function

    function = Function(id="x", kind="collective", name="all_reduce")
    peers = {"beta": 0.6, "mu": 1.0}
    pattern = Finding(
        id="F1", kind="pattern", ranks=(2, 3), function=function, beta=0.6, mu=0.14, peers=peers
    )
    [diagnosis] = explain(make_incident(make_cause(), findings=(pattern,)))
    assert (
        "all_reduce is 60 % of the window on ranks 2-3, its peers' median is 60 %; "
        "its mean use is 0.14, the peers' 1.00."
    ) in [claim.text for claim in diagnosis.claims]


def test_an_unsure_mechanism_is_not_told_as_a_fact():
    sure = explain(make_incident(make_cause(), findings=(F1,)))[0].claims[0].text
    likely = explain(make_incident(make_cause(confidence=0.6), findings=(F1,)))[0].claims[0].text
    guess = explain(make_incident(make_cause(confidence=0.3), findings=(F1,)))[0].claims[0].text
    assert likely == f"{sure} This fits what was seen; another explanation is possible."
    assert guess == f"{sure} This is a hypothesis."


@pytest.mark.parametrize(
    ("confidence", "against", "findings", "expected"),
    [
        (0.95, (), ("F1",), "established"),
        (0.95, ("but",), ("F1",), "supported"),
        (0.6, (), ("F1",), "supported"),
        (0.95, (), (), "hypothesis"),
        (0.3, (), ("F1",), "hypothesis"),
        (0.1, (), ("F1",), "insufficient evidence"),
    ],
)
def test_the_verdict_follows_confidence_evidence_and_contradiction(
    confidence, against, findings, expected
):
    cause = make_cause(confidence=confidence, against=against, findings=findings)
    [diagnosis] = explain(make_incident(cause, findings=(F1,)))
    assert diagnosis.verdict == expected


def test_an_unsure_cause_ends_with_what_to_collect():
    cause = make_cause(confidence=0.3)
    [diagnosis] = explain(make_incident(cause, findings=(F1,), not_seen=("Collect rank 3.",)))
    assert diagnosis.next_steps[-1] == "Collect rank 3."


def test_braces_in_foreign_names_stay_as_they_are():
    place = Place(name="{ranks}{0.__class__}", file="a{b}.py", line=3)
    [diagnosis] = explain(
        make_incident(make_cause("python_overhead", functions=(place,)), findings=(F1,))
    )
    assert "a{b}.py:3 {ranks}{0.__class__}" in diagnosis.claims[0].text


def test_healthy_and_unknown_are_answers(saved_incident):
    [healthy] = explain(saved_incident("healthy").read_incident())
    [unknown] = explain(saved_incident("missing").read_incident())
    assert (healthy.cause, healthy.verdict) == ("", "supported")
    assert unknown.verdict == "insufficient evidence"
    assert unknown.next_steps == ("Rank 7: run `eroica collect --pid PID` on its host.",)


def test_what_ranks_lack_is_folded(saved_incident):
    folder = saved_incident("stuck")
    [diagnosis] = explain(folder.read_incident(), evidence=folder.read_evidence())
    assert diagnosis.notes == ("ranks 0-3: native stacks",)


def test_an_unknown_category_gets_a_neutral_text():
    cause = msgspec.structs.replace(make_cause(), category="made_up")
    [diagnosis] = explain(make_incident(cause, findings=(F1,)))
    assert "kind of fault is not one of the known ones" in diagnosis.claims[0].text


def test_many_scattered_ranks_are_counted_not_listed():
    assert rank_phrase(range(0, 3000, 2)) == (
        "ranks 0,2,4,6,8,10,12,14,16,18 and others (1500 ranks)"
    )
    assert rank_phrase([7]) == "rank 7"
    assert rank_phrase(range(3000)) == "ranks 0-2999"
