"""Asking a model: the rule-written text survives everything, and what was sent is kept."""

import json
import stat

import pytest
from make_prompts import answer, with_source

from eroica.errors import InputError, ModelError
from eroica.explain import ask, repair
from eroica.explain.asking import consented
from eroica.explain.model import Call, CallContext, Completion, Limits, Usage, is_loopback, resolve
from eroica.explain.prompts import prepare
from eroica.explain.scripted import ReplayModel, ScriptedModel, ScriptExhausted

PATCH = "WHY: x\nBEHAVIOR: y\n\ntrain.py\n<<<<<<< SEARCH\n    a\n=======\n    b\n>>>>>>> REPLACE\n"


@pytest.fixture
def folder(saved_incident, tmp_path):
    return with_source(saved_incident("stuck"), tmp_path / "home" / "ada" / "p")


def test_a_good_answer_stands_before_the_rules(folder):
    asked = ask(folder, ScriptedModel([answer()]))
    assert asked.is_answered and not asked.reason
    assert [one.source for one in asked.diagnoses] == ["scripted", "rules"]
    assert asked.diagnoses[0].verdict == "established"


@pytest.mark.parametrize(
    ("steps", "reason", "calls"),
    [
        (["prose", "more prose"], "no JSON", 2),
        (["", ""], "empty", 2),
        ([Completion("{", "length")] * 2, "length limit", 2),
        ([Completion("No.", "refusal")] * 2, "declined", 2),
        ([ModelError("down")], "down", 1),
        ([answer(verdict="sure"), "x"], "no JSON", 2),
        (["x"], "the script ends", 2),
    ],
)
def test_trouble_leaves_the_rules_and_one_line_why(folder, steps, reason, calls):
    asked = ask(folder, ScriptedModel(list(steps)))
    assert not asked.is_answered
    assert [one.source for one in asked.diagnoses] == ["rules"]
    assert reason in asked.reason and "\n" not in asked.reason
    assert asked.usage.calls == calls


def test_one_repair_turn_says_what_was_wrong(folder):
    model = ScriptedModel([answer(verdict="sure"), answer()])
    asked = ask(folder, model)
    assert asked.is_answered
    first, second = model.calls
    assert len(first) == 2 and len(second) == 4
    assert "verdict" in second[-1].content
    assert second[2].content == answer(verdict="sure")


def test_names_are_hidden_on_the_way_out_and_back_on_the_way_in(folder):
    def reply(messages):
        text = messages[-1].content
        assert "gpu-003" not in text and "node-" in text
        host = text.partition("hosts: ")[2].split()[0]
        return answer(summary=f"Rank 0 on {host} waits.")

    pieces = []
    asked = ask(folder, ScriptedModel([reply]), on_token=pieces.append)
    assert asked.diagnoses[0].summary == "Rank 0 on gpu-003 waits."
    assert "Rank 0 on gpu-003 waits." in "".join(pieces)


def test_a_patch_comes_back_as_text_with_real_names(folder):
    asked = ask(folder, ScriptedModel([PATCH]), purpose="patch")
    assert asked.is_answered and asked.text == PATCH
    assert [one.source for one in asked.diagnoses] == ["rules"]


def test_what_a_patch_says_of_itself_is_read(folder):
    asked = ask(folder, ScriptedModel([PATCH]), purpose="patch")
    assert (asked.why, asked.behavior) == ("x", "y")
    bold = PATCH.replace("WHY: x", "**WHY**: it waits").replace("BEHAVIOR: y\n", "")
    asked = ask(folder, ScriptedModel([bold]), purpose="patch")
    assert (asked.why, asked.behavior) == ("it waits", "")


@pytest.mark.parametrize("text", ["NO PATCH: it is the host.", "**NO PATCH** it is the host."])
def test_a_model_may_decline_to_patch(folder, text):
    asked = ask(folder, ScriptedModel([text]), purpose="patch")
    assert not asked.is_answered
    assert asked.reason.startswith("the model proposes no patch")
    assert "it is the host" in asked.reason


def test_a_patch_is_given_back_with_what_is_wrong(folder):
    model = ScriptedModel([PATCH, PATCH.replace("b", "c")])
    asked = ask(folder, model, purpose="patch")
    asked = repair(folder, model, asked, ["SEARCH does not occur in train.py on gpu-003"])
    assert "c\n>>>" in asked.text
    assert "SEARCH does not occur" in model.calls[1][-1].content
    assert "gpu-003" not in model.calls[1][-1].content
    assert asked.usage.calls == 2


def test_the_exact_bytes_of_each_call_are_kept_for_the_owner(folder):
    model = ScriptedModel(["nonsense", answer()])
    asked = ask(folder, model)
    path = folder.transcript_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert [m["content"] for m in first["messages"]] == [m.content for m in model.calls[0]]
    assert (first["purpose"], second["purpose"]) == ("explain", "repair explain")
    assert first["answer"] == "nonsense"
    assert first["prompt_sha256"] == asked.prompt.sha256
    assert first["replaced"] > 0


def test_a_failed_call_is_kept_too(folder):
    ask(folder, ScriptedModel([ModelError("down")]))
    [record] = [json.loads(line) for line in folder.transcript_path.read_text().splitlines()]
    assert record["error"] == "down" and record["answer"] == ""


def test_limits_hold_over_several_questions(folder):
    usage = Usage()
    model = ScriptedModel([answer()] * 9)
    for _ in range(3):
        asked = ask(folder, model, usage=usage, limits=Limits(calls=2))
    assert len(model.calls) == 2
    assert asked.reason == "the limit for the model is reached - 2 calls"


@pytest.mark.parametrize(
    "limits", [Limits(input_tokens=10), Limits(output_tokens=0), Limits(seconds=0.0)]
)
def test_every_limit_stops_before_the_call(folder, limits):
    model = ScriptedModel([answer()])
    assert "limit" in ask(folder, model, limits=limits).reason
    assert model.calls == []


def test_usage_reads_as_a_line():
    usage = Usage(calls=2, input_tokens=3100, output_tokens=620, seconds=4.23)
    assert str(usage) == "3.1k in / 620 out, 2 calls, 4.2 s"


def test_nothing_is_sent_to_another_machine_without_consent(folder):
    model = ScriptedModel([answer()], endpoint="https://models.example.com/v1")
    assert "nobody agreed" in ask(folder, model).reason
    assert "nobody agreed" in ask(folder, model, may_send=lambda _: False).reason
    assert model.calls == [] and not folder.transcript_path.exists()
    assert ask(folder, model, may_send=lambda _: True).is_answered


def test_consent_can_stand_in_the_environment():
    url = "https://models.example.com/v1"
    assert consented(url, {"EROICA_SEND_TO": f"https://a.example, {url}/"})
    assert consented(url, {"EROICA_SEND_TO": "any"})
    assert not consented(url, {"EROICA_SEND_TO": "https://a.example"})
    assert not consented(url, {})


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("", True),
        ("http://127.0.0.1:8000/v1", True),
        ("http://localhost:11434/v1", True),
        ("http://[::1]:1/v1", True),
        ("http://10.0.0.1/v1", False),
        ("https://localhost.example.com/v1", False),
        ("https://127.example.com/v1", False),
        ("anthropic (its own address)", False),
    ],
)
def test_only_this_machine_is_loopback(endpoint, local):
    assert is_loopback(endpoint) is local


# --- names of models ------------------------------------------------------------------------


def test_no_model_is_guessed():
    with pytest.raises(InputError, match="no language model is configured"):
        resolve(None, environment={"OPENAI_API_KEY": "k"})


@pytest.mark.parametrize(
    ("name", "environment", "endpoint"),
    [
        ("openai:m", {"OPENAI_API_KEY": "k"}, "https://api.openai.com/v1"),
        ("m", {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "http://127.0.0.1:1/v1"),
        (None, {"EROICA_MODEL": "openai:m", "OPENAI_API_BASE": "http://h/v1"}, "http://h/v1"),
        ("openai:m", {"OPENAI_BASE_URL": "http://a/v1", "OPENAI_API_BASE": "b"}, "http://a/v1"),
    ],
)
def test_address_and_key_are_resolved_by_us(name, environment, endpoint):
    model = resolve(name, environment=environment)
    assert (model.name, model.endpoint) == ("openai:m", endpoint)
    assert model.options["base_url"] == endpoint
    assert model.options["api_key"] == environment.get("OPENAI_API_KEY", "EMPTY")
    assert "api_key" not in repr(model)


def test_a_key_is_asked_for_only_where_one_is_needed():
    with pytest.raises(InputError, match="no key"):
        resolve("openai:m", environment={})


def test_an_address_that_is_none_is_refused():
    with pytest.raises(InputError, match="is no address"):
        resolve("openai:m", environment={"OPENAI_BASE_URL": "models"})


def test_a_provider_that_is_not_installed_names_the_pip_line(folder):
    model = resolve("mistralai:m", environment={})
    asked = ask(folder, model, may_send=lambda _: True)
    assert "needs a package that is not installed" in asked.reason
    with pytest.raises(ModelError, match="pip install langchain-mistralai"):
        model._open(Call([], context=CallContext("explain"), max_tokens=10, seconds=1.0))


def test_an_unknown_provider_is_a_reason_not_a_traceback(folder):
    asked = ask(folder, resolve("nosuch:m", environment={}), may_send=lambda _: True)
    assert "nosuch:m" in asked.reason and not asked.is_answered


# --- recorded answers -----------------------------------------------------------------------


def record(folder, text, **changes):
    prompt, _, _ = prepare(folder, changes.pop("purpose", "explain"))
    values = {
        "purpose": prompt.purpose,
        "category": prompt.category,
        "source_sha256": prompt.source_sha256,
        "prompt_sha256": prompt.sha256,
        "answer": text,
    }
    return json.dumps({**values, **changes})


def test_a_transcript_replays_without_a_warning(folder, tmp_path):
    ask(folder, ScriptedModel([answer()]))
    asked = ask(folder, resolve(f"replay:{folder.transcript_path}"))
    assert asked.is_answered and asked.notes == ()
    assert asked.diagnoses[0].source == "replay:model.jsonl"


def test_another_prompt_for_the_same_source_is_a_warning(folder, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(record(folder, answer(), prompt_sha256="0" * 64) + "\n\n")
    asked = ask(folder, resolve(f"replay:{path}"))
    assert asked.is_answered
    assert asked.notes == ("the recorded answer was given to another prompt",)


@pytest.mark.parametrize("changes", [{"category": "gc_pause"}, {"source_sha256": "f" * 64}])
def test_an_answer_to_something_else_is_not_used(folder, tmp_path, changes):
    path = tmp_path / "r.jsonl"
    path.write_text(record(folder, answer(), **changes))
    asked = ask(folder, resolve(f"replay:{path}"))
    assert "holds no answer" in asked.reason
    assert asked.diagnoses[0].source == "rules"


@pytest.mark.parametrize(
    "line", ["{", "[]", "1", '{"answer": 1, "purpose": "x"}', '{"answer": ""}']
)
def test_a_broken_recording_names_its_line(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_text("\n" + line)
    with pytest.raises(InputError, match="line 2"):
        ReplayModel.load(str(path))


def test_a_recording_that_is_not_there_is_an_input_error():
    with pytest.raises(InputError, match="cannot be read"):
        resolve("replay:/nonexistent.jsonl")


def test_a_script_that_ends_says_so(folder):
    model = ScriptedModel([])
    with pytest.raises(ScriptExhausted):
        model.complete(Call([], context=None, max_tokens=1, seconds=1))
