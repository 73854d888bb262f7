"""A model's answer: whatever comes, a checked diagnosis or a reason in words; never a traceback."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_prompts import GOOD, answer, with_source

from eroica.explain.answer import Grounds, ModelAnswer, _lowered, diagnose, parse
from eroica.explain.evidence import gather
from eroica.explain.stream import ProseStream
from eroica.records import Claim


@pytest.fixture
def grounded(saved_incident, tmp_path):
    folder = with_source(saved_incident("stuck"), tmp_path / "p")
    incident = folder.read_incident()
    pack = gather(incident, incident.causes[0], evidence=folder.read_evidence())
    return incident, pack


@pytest.mark.parametrize(
    "text",
    [
        answer(),
        f"```json\n{answer()}\n```",
        f"Here is what I found:\n\n{answer()}\n\nHope it helps.",
        f"<think>maybe {{x}}</think>\n{answer()}",
        json.dumps({"note": "draft"}) + "\n" + answer(),
        "\ufeff" + answer(),
    ],
)
def test_the_object_is_found_wherever_it_stands(text):
    parsed = parse(text)
    assert isinstance(parsed, ModelAnswer)
    assert parsed.summary == GOOD["summary"]


@pytest.mark.parametrize(
    ("text", "finish", "said"),
    [
        ("", "stop", "empty"),
        ("  \n", "stop", "empty"),
        ("I think rank 3 is slow.", "stop", "no JSON"),
        (answer()[:80], "length", "length limit"),
        (answer()[:80], "", "before its end"),
        (answer()[:80], "stop", "JSON is broken"),
        ("I cannot help.", "refusal", "declined"),
        ("[1, 2]", "stop", "no JSON"),
        (answer(verdict="certain"), "stop", "verdict"),
        (answer(extra=1), "stop", "extra"),
        (answer(claims="none"), "stop", "claims"),
        (answer(claims=[]), "stop", "claims is empty"),
        (answer(summary=" "), "stop", "summary is empty"),
        (answer(next_steps=["x"] * 50), "stop", "too long"),
        (json.dumps({"verdict": "supported"}), "stop", "missing required field"),
    ],
)
def test_what_is_wrong_is_said_in_words(text, finish, said):
    problems = parse(text, finish)
    assert isinstance(problems, list)
    assert said in " ".join(problems)


@given(st.text(max_size=300), st.sampled_from(["stop", "length", "", "content_filter"]))
def test_any_text_gives_an_answer_or_problems(text, finish):
    parsed = parse(text, finish)
    assert isinstance(parsed, ModelAnswer) or (parsed and all(parsed))


@given(st.integers(0, len(answer())))
def test_an_answer_cut_anywhere_is_never_taken_for_whole(cut):
    parsed = parse(answer()[:cut], "length")
    assert isinstance(parsed, ModelAnswer) == (cut == len(answer()))


def test_insufficient_evidence_needs_no_claims():
    parsed = parse(answer(verdict="insufficient evidence", claims=[]))
    assert isinstance(parsed, ModelAnswer)


@pytest.mark.parametrize(
    ("citation", "holds"),
    [
        ("F1", True),
        ("[F1]", True),
        ("`train.py:7`", True),
        ("train.py:5-7", True),
        ("train.py:7 save_checkpoint", True),
        ("torch/autograd/graph.py:979", True),
        ("graph.py:979", True),
        ("F9", False),
        ("train.py:99", False),
        ("train.py:5-99", False),
        ("other.py:7", False),
        ("train.py", False),
        ("", False),
        ("see the logs", False),
    ],
)
def test_citations_resolve_against_what_was_sent(grounded, citation, holds):
    assert Grounds.of(*grounded).resolves(citation) is holds


@pytest.mark.parametrize(
    ("prose", "unknown"),
    [
        ("Rank 0 waits, ranks 1-3 do not.", []),
        ("ranks 1, 2 and 3 wait since 34 s", []),
        ("The median step is 9.58 ms.", []),
        ("It took 9.6 ms.", []),
        ("at train.py:7 (F1, #63) every 20 steps", []),
        ("two ranks and 1 barrier", []),
        ("Rank 17 is slow.", ["rank 17"]),
        ("ranks 0, 9 wait", ["rank 9"]),
        ("ranks 0, 1, and 9 wait", ["rank 9"]),
        ("rank 0, 17 of 60, and 34.9 s for rank 1 and 57.4 ms", ["17", "60", "34.9", "57.4"]),
        ("This costs 4711 ms.", ["4711"]),
        ("97 % sure", []),
        ("77 % of the time", ["77 %"]),
    ],
)
def test_numbers_and_ranks_in_prose_are_checked(grounded, prose, unknown):
    assert Grounds.of(*grounded).unknown_in(prose) == unknown


def test_a_share_may_be_quoted_in_percent(saved_incident):
    incident = saved_incident("slow").read_incident()
    grounds = Grounds.of(incident, gather(incident, incident.causes[0]))
    assert grounds.unknown_in("json.loads takes 43 % of the window, its peers 2 %.") == []


def test_a_good_answer_stays_as_it_is(grounded):
    diagnosis = diagnose(parse(answer()), *grounded, "scripted")
    assert diagnosis.verdict == "established"
    assert diagnosis.notes == ()
    assert all(claim.is_resolved for claim in diagnosis.claims)
    assert (diagnosis.cause, diagnosis.source) == ("C1", "scripted")


def test_what_does_not_resolve_is_marked_and_lowers_the_verdict(grounded):
    claims = [*GOOD["claims"], {"text": "Rank 9 is slow.", "citations": ["F7"]}]
    diagnosis = diagnose(parse(answer(claims=claims)), *grounded, "scripted")
    assert [claim.is_resolved for claim in diagnosis.claims] == [True, True, False]
    assert diagnosis.verdict == "supported"
    assert diagnosis.notes == (
        "not in the evidence: F7",
        "not a number or rank of the evidence: rank 9",
    )


def test_a_claim_without_a_citation_is_not_resolved(grounded):
    claims = [{"text": "Trust me.", "citations": []}]
    diagnosis = diagnose(parse(answer(claims=claims)), *grounded, "scripted")
    assert not diagnosis.claims[0].is_resolved
    assert diagnosis.verdict == "hypothesis"


def test_a_summary_with_invented_numbers_is_noted(grounded):
    diagnosis = diagnose(parse(answer(summary="It wastes 31.4 % of 8,192 ranks.")), *grounded, "m")
    assert diagnosis.verdict == "supported"
    assert "31.4 %, 8192" in diagnosis.notes[0]


def streamed(text, size):
    pieces = []
    stream = ProseStream(pieces.append)
    for start in range(0, len(text), size):
        stream(text[start : start + size])
    return "".join(pieces)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_streamed_answer_is_shown_as_sentences(size):
    told = answer(summary='Say "hi" \u00e9\n\tnow \\ {not} [json]')
    assert streamed(f"```json\n{told}\n```", size).splitlines() == [
        'Say "hi" \u00e9',
        "\tnow \\ {not} [json]",
        *(claim["text"] for claim in GOOD["claims"]),
        *GOOD["next_steps"],
        *GOOD["disproved_by"],
    ]


@given(st.text(max_size=80), st.integers(1, 9))
def test_any_stream_is_read_without_an_error(text, size):
    streamed(text, size)
    streamed('{"summary": "' + text, size)
    assert isinstance(streamed(json.dumps({"summary": text}), size), str)


def test_a_path_may_be_cited_by_its_end():
    lines = {"venv/lib/python3/site-packages/shardio/fetch.py": frozenset(range(20, 36))}
    grounds = Grounds(frozenset(), lines, (), frozenset())
    assert grounds.resolves("shardio/fetch.py:31") and grounds.resolves("fetch.py:20-35")
    assert not grounds.resolves("io/fetch.py:31") and not grounds.resolves("shardio/fetch.py:36")


@pytest.mark.parametrize(
    ("marks", "verdict"),
    [
        ("..", "established"),
        (".x", "supported"),
        ("..x", "supported"),
        ("xx.", "hypothesis"),
        ("x", "hypothesis"),
        ("", "established"),
    ],
)
def test_a_verdict_falls_with_the_claims_that_carry_a_mark(marks, verdict):
    claims = [Claim(text="t", is_resolved=mark == ".") for mark in marks]
    assert _lowered("established", claims, is_doubtful=False) == verdict
    assert _lowered("insufficient evidence", claims, is_doubtful=False) == "insufficient evidence"
