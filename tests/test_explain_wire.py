"""The wire: a loopback OpenAI-compatible server behaves well and badly; no prompt goes astray."""

import os
import subprocess
import sys
import time

import pytest
from make_prompts import GOOD, answer, with_source
from make_server import Served, fails, plain, streams

from eroica.errors import InputError
from eroica.explain import ask
from eroica.explain.model import resolve


@pytest.fixture
def folder(saved_incident, tmp_path):
    return with_source(saved_incident("stuck"), tmp_path / "p")


def model_of(server, **options):
    given = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test-key-123456"}
    return resolve("openai:m", environment=given, options=options)


def test_a_streamed_answer_is_put_together_and_counted(folder):
    pieces = []
    with Served(streams(answer())) as server:
        asked = ask(folder, model_of(server), on_token=pieces.append)
    assert asked.is_answered, asked.reason
    assert "".join(pieces).splitlines()[0] == GOOD["summary"]
    assert len(pieces) > 5
    assert (asked.usage.input_tokens, asked.usage.output_tokens) == (11, 7)
    [request] = server.requests
    assert request["stream"] is True and request["model"] == "m"
    assert [m["role"] for m in request["messages"]] == ["system", "user"]
    assert request.get("max_completion_tokens") or request.get("max_tokens")
    assert "temperature" not in request
    assert server.headers[0]["authorization"] == "Bearer sk-test-key-123456"


def test_an_explanation_is_held_to_the_schema_and_a_patch_is_not(folder):
    with Served(streams(answer())) as server:
        ask(folder, model_of(server))
        ask(folder, model_of(server), purpose="patch")
    explain, patch = server.requests
    form = explain["response_format"]["json_schema"]
    assert form["strict"] is True
    assert form["schema"]["additionalProperties"] is False
    assert set(form["schema"]["required"]) == set(GOOD)
    assert set(form["schema"]["properties"]["claims"]["items"]["required"]) == {"text", "citations"}
    assert "$ref" not in str(form)
    assert "response_format" not in patch


def test_a_server_that_takes_no_schema_is_asked_without(folder):
    with Served(fails(400, "response_format is not supported"), streams(answer())) as server:
        model = model_of(server)
        assert ask(folder, model).is_answered
        assert ask(folder, model).is_answered
    assert ["response_format" in request for request in server.requests] == [True, False, False]


def test_options_reach_the_provider(folder):
    with Served(streams(answer())) as server:
        ask(folder, model_of(server, temperature=0.5))
    assert server.requests[0]["temperature"] == 0.5


def test_a_rate_limit_and_a_server_error_are_tried_again(folder):
    with Served(fails(429, retry_after="0"), fails(500), streams(answer())) as server:
        asked = ask(folder, model_of(server))
    assert asked.is_answered, asked.reason
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("behavior", "reason"),
    [
        (fails(401, "Incorrect API key provided: sk-test-key-123456"), "Incorrect API key"),
        (fails(400, "maximum context length", "context_length_exceeded"), "context length"),
        (fails(404, "no such model"), "no such model"),
        (fails(500, retry_after="0"), "500"),
        (plain("<html>gateway</html>", "text/html"), "did not answer"),
        (plain("not json"), "did not answer"),
    ],
)
def test_errors_become_one_line_and_the_rules_stay(folder, behavior, reason):
    with Served(behavior) as server:
        asked = ask(folder, model_of(server))
    assert not asked.is_answered
    assert asked.diagnoses[0].source == "rules"
    assert reason in asked.reason or "could not be used" in asked.reason
    assert "sk-test-key" not in asked.reason and "\n" not in asked.reason
    assert "sk-test-key" not in folder.transcript_path.read_text()


def test_a_dead_endpoint_is_one_line(folder):
    with Served(fails(500)) as server:
        model = model_of(server, max_retries=0)
    asked = ask(folder, model)
    assert "did not answer" in asked.reason and asked.diagnoses[0].source == "rules"


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (streams(answer(), cut_after=6), "before its end"),
        (streams(answer()[:60], finish="length"), "length limit"),
        (streams("It is rank 0, surely."), "no JSON"),
        (streams(answer(verdict="sure")), "verdict"),
        (streams("", refusal="I will not."), "empty"),
        (streams(""), "empty"),
    ],
)
def test_a_bad_answer_gets_one_repair_turn(folder, first, problem):
    with Served(first, streams(answer())) as server:
        asked = ask(folder, model_of(server, max_retries=0))
    assert asked.is_answered, asked.reason
    assert len(server.requests) == 2
    assert problem in server.requests[1]["messages"][-1]["content"]


def test_an_answer_in_a_fence_needs_no_repair(folder):
    with Served(streams(f"Sure:\n```json\n{answer()}\n```")) as server:
        assert ask(folder, model_of(server)).is_answered
    assert len(server.requests) == 1


def test_a_slow_answer_ends_at_the_limit(folder):
    from eroica.explain.model import Limits

    with Served(streams(answer(), pause_s=0.2)) as server:
        start = time.monotonic()
        asked = ask(folder, model_of(server), limits=Limits(seconds=1.0))
        took = time.monotonic() - start
    assert "took too long" in asked.reason
    assert took < 5


def test_without_usage_tokens_are_estimated(folder):
    with Served(streams(answer(), usage=False)) as server:
        asked = ask(folder, model_of(server))
    assert asked.usage.input_tokens > 500
    assert asked.usage.output_tokens == len(answer()) // 4


def test_tracing_left_on_in_the_shell_sends_nothing(folder, monkeypatch):
    with Served(plain("{}")) as collector, Served(streams(answer())) as server:
        base = collector.url.removesuffix("/v1")
        for name in ("LANGSMITH", "LANGCHAIN"):
            monkeypatch.setenv(f"{name}_TRACING", "true")
            monkeypatch.setenv(f"{name}_ENDPOINT", base)
            monkeypatch.setenv(f"{name}_API_KEY", "lsv2_pt_collector")
        monkeypatch.setenv("LANGCHAIN_TRACING_V2", "true")
        monkeypatch.setenv("LANGSMITH_GATEWAY", base)
        asked = ask(folder, model_of(server))
        assert asked.is_answered, asked.reason
        time.sleep(1.5)  # the collector's client would send in the background
        assert collector.requests == []
        assert len(server.requests) == 1


def test_the_collector_of_that_test_would_have_heard_it():
    """The guard above can fail: without the switch the same shell does send."""
    code = (
        "import sys; from langchain.chat_models import init_chat_model as make;"
        "chat = make('m', model_provider='openai', base_url=sys.argv[1], api_key='k');"
        "list(chat.stream([('user', 'hi')]));"
        "from langchain_core.tracers.langchain import wait_for_all_tracers as wait; wait()"
    )
    with Served(plain("{}")) as collector, Served(streams("hello")) as server:
        environment = {
            **os.environ,
            "LANGSMITH_TRACING": "true",
            "LANGSMITH_ENDPOINT": collector.url.removesuffix("/v1"),
            "LANGSMITH_API_KEY": "lsv2_pt_collector",
        }
        command = [sys.executable, "-c", code, server.url]
        subprocess.run(command, env=environment, capture_output=True, timeout=100, check=True)
        assert collector.requests


def test_tests_cannot_reach_another_machine():
    import socket

    from pytest_socket import SocketConnectBlockedError

    with pytest.raises((SocketConnectBlockedError, UserWarning)):
        socket.create_connection(("192.0.2.1", 80), timeout=0.2)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "OPENAI_PROXY"])
def test_a_prompt_for_this_machine_never_goes_through_a_proxy(folder, monkeypatch, variable):
    with Served(streams(answer())) as proxy, Served(streams(answer())) as server:
        monkeypatch.setenv(variable, proxy.url.removesuffix("/v1"))
        asked = ask(folder, model_of(server))
        assert asked.is_answered, asked.reason
        assert (len(proxy.requests), len(server.requests)) == (0, 1)


def test_a_server_on_this_machine_cannot_send_a_prompt_on(folder):
    with Served(streams(answer())) as elsewhere:
        moved = fails(307, location=f"{elsewhere.url}/chat/completions")
        with Served(moved) as server:
            asked = ask(folder, model_of(server))
        assert not asked.is_answered
        assert elsewhere.requests == []


def test_other_libraries_are_kept_from_a_proxy_and_the_shell_gets_its_variables_back(monkeypatch):
    from urllib.request import proxy_bypass

    from eroica.explain.provider import _unproxied

    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    first, second = _unproxied("127.0.0.1"), _unproxied("::1")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert proxy_bypass("127.0.0.1")
    assert os.environ["NO_PROXY"] == "example.org,127.0.0.1,::1"
    second.__exit__(None, None, None)
    assert os.environ["NO_PROXY"] == "example.org"
    assert "no_proxy" not in os.environ


def test_an_address_in_the_environment_is_the_one_consent_is_asked_for():
    given = {"ANTHROPIC_BASE_URL": "https://gateway.example/a"}
    model = resolve("anthropic:m", environment=given)
    assert model.endpoint == "https://gateway.example/a"
    assert model.options["base_url"] == "https://gateway.example/a"
    assert resolve("anthropic:m", environment={}).endpoint == "anthropic (its own address)"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("google_genai:m", {"GOOGLE_GENAI_BASE_URL": "https://gateway.example"}),
        ("mistralai:m", {"MISTRAL_BASE_URL": "https://gateway.example"}),
        ("anthropic:m", {"ANTHROPIC_BASE_URL": "https://a.example", "ANTHROPIC_PROXY": "http://b"}),
    ],
)
def test_an_address_that_cannot_be_made_explicit_is_refused(name, given):
    with pytest.raises(InputError, match=next(iter(given))):
        resolve(name, environment=given)


def test_ollama_goes_to_this_machine_unless_told_otherwise():
    assert resolve("ollama:m", environment={}).endpoint == "http://127.0.0.1:11434"
    there = resolve("ollama:m", environment={"OLLAMA_HOST": "gpu7:11434"})
    assert there.endpoint == there.options["base_url"] == "http://gpu7:11434"
