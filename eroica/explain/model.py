"""The chat model behind one small Protocol; LangChain below it, loaded only when it is called.

A name is ``PROVIDER:NAME`` (``openai:...`` also serves vLLM, Ollama and llama.cpp by their
OpenAI-compatible address), a bare NAME (taken as openai's), or ``replay:FILE``. Address and key
are resolved here and passed explicitly, and tracing to third parties is off for every call: a
variable left in a shell must not send a prompt elsewhere.
"""

import ipaddress
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from eroica.errors import InputError, ModelError

OnToken = Callable[[str], None]
OPENAI_URL = "https://api.openai.com/v1"


@dataclass(frozen=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class CallContext:
    """What a call is about, for replaying recorded answers."""

    purpose: str
    category: str = ""
    source_sha256: str = ""
    prompt_sha256: str = ""


@dataclass(frozen=True)
class Completion:
    """One answer as it came."""

    text: str
    finish_reason: str = ""
    """``stop``, ``length``, ``content_filter`` ...; empty where the stream was cut."""
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Bounds on what one incident may use of a model."""

    calls: int = 4
    input_tokens: int = 60_000
    output_tokens: int = 8_000
    """For all calls together; one answer gets at most half."""
    seconds: float = 180.0


@dataclass
class Usage:
    """What was used so far; ``str`` is the line that is printed."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    def add(self, completion: Completion) -> None:
        self.input_tokens += completion.input_tokens
        self.output_tokens += completion.output_tokens

    def exceeded(self, limits: Limits) -> str:
        """Return which limit is reached, empty for none."""
        if self.calls >= limits.calls:
            return f"{limits.calls} calls"
        if self.input_tokens >= limits.input_tokens:
            return f"{limits.input_tokens} tokens in"
        if self.output_tokens >= limits.output_tokens:
            return f"{limits.output_tokens} tokens out"
        return f"{limits.seconds:.0f} s" if self.seconds >= limits.seconds else ""

    def __str__(self) -> str:
        calls = f"{self.calls} call" + ("" if self.calls == 1 else "s")
        into, out = _thousands(self.input_tokens), _thousands(self.output_tokens)
        return f"{into} in / {out} out, {calls}, {self.seconds:.1f} s"


def _thousands(count: int) -> str:
    return f"{count / 1000:.1f}k" if count >= 1000 else str(count)


class ChatModel(Protocol):
    """All that eroica asks of a language model."""

    @property
    def name(self) -> str: ...

    @property
    def endpoint(self) -> str:
        """Where text goes: an address, or empty for a model that sends nothing."""
        ...

    def complete(
        self,
        messages: Sequence[Message],
        *,
        context: CallContext,
        max_tokens: int,
        seconds: float,
        on_token: OnToken | None = None,
    ) -> Completion:
        """Return one answer; ModelError where there is none."""
        ...


def resolve(
    name: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ChatModel:
    """Return the model of that name, else of ``EROICA_MODEL``; InputError where none is named.

    ``options`` go to LangChain's ``init_chat_model`` as they are (``temperature`` ...).
    """
    env = os.environ if environment is None else environment
    wanted = name or env.get("EROICA_MODEL") or ""
    if not wanted:
        raise InputError(
            "no language model is configured",
            "expected --model PROVIDER:NAME or EROICA_MODEL; eroica guesses no model",
            "eroica diagnose ... --model openai:NAME, with OPENAI_BASE_URL for your own server",
        )
    provider, _, rest = wanted.partition(":")
    if provider == "replay":
        from eroica.explain.scripted import ReplayModel

        return ReplayModel.load(rest)
    if not rest:
        provider, rest = "openai", wanted
    if provider == "openai":
        return _openai(rest, env, dict(options or {}))
    return LangChainModel(
        f"{provider}:{rest}", provider, rest, f"{provider} (its own address)", dict(options or {})
    )


def is_configured(environment: Mapping[str, str] | None = None) -> bool:
    """Say whether a model is named in the environment."""
    return bool((os.environ if environment is None else environment).get("EROICA_MODEL"))


def _openai(name: str, env: Mapping[str, str], options: dict[str, Any]) -> "LangChainModel":
    url = env.get("OPENAI_BASE_URL") or env.get("OPENAI_API_BASE") or OPENAI_URL
    key = env.get("OPENAI_API_KEY") or ""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InputError(f"OPENAI_BASE_URL {url!r} is no address", "expected http://HOST:PORT/v1")
    if not key and url == OPENAI_URL:
        raise InputError(
            f"no key for openai:{name}",
            "OPENAI_API_KEY is not set",
            "set it, or OPENAI_BASE_URL to a server of your own",
        )
    given = {
        "base_url": url,
        "api_key": key or "EMPTY",  # servers without keys still want one
        "stream_usage": True,
        "max_retries": 2,
        # With an address of one's own only chat completions can be counted on.
        "use_responses_api": False,
        **options,
    }
    return LangChainModel(f"openai:{name}", "openai", name, url, given)


def is_loopback(endpoint: str) -> bool:
    """Say whether text sent there stays on this machine."""
    if not endpoint:
        return True
    host = urlsplit(endpoint).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass
class LangChainModel:
    """A model of any provider LangChain knows."""

    name: str
    provider: str
    model: str
    endpoint: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    """Holds the key, so it stays out of ``repr``."""

    def complete(
        self,
        messages: Sequence[Message],
        *,
        context: CallContext,
        max_tokens: int,
        seconds: float,
        on_token: OnToken | None = None,
    ) -> Completion:
        pairs = [(str(message.role), message.content) for message in messages]
        pieces: queue.SimpleQueue[str | Completion | Exception] = queue.SimpleQueue()

        def call() -> None:
            try:
                with _untraced():
                    pieces.put(_stream(self._open(max_tokens, seconds), pairs, pieces.put))
            except Exception as error:
                # The border to a library: whatever a provider raises becomes one named error.
                pieces.put(error)

        # In a thread: a library's retries and waits must not outlast the time given.
        threading.Thread(target=call, name="model call", daemon=True).start()
        result = _received(pieces, seconds, on_token)
        if isinstance(result, Completion):
            return result
        if isinstance(result, ModelError):
            raise result
        raise ModelError(
            f"{self.name} at {self.endpoint} did not answer", _reason(result, self.options)
        ) from result

    def _open(self, max_tokens: int, seconds: float) -> Any:  # noqa: ANN401 - a LangChain model
        from langchain.chat_models import init_chat_model

        limits = {"max_tokens": max_tokens, "timeout": seconds}
        try:
            return init_chat_model(
                self.model, model_provider=self.provider, **{**limits, **self.options}
            )
        except ImportError as error:
            raise ModelError(
                f"{self.name} needs a package that is not installed",
                _reason(error, self.options),
                f"pip install langchain-{self.provider.replace('_', '-')}",
            ) from error
        except ValueError as error:
            raise ModelError(f"{self.name} is no model", _reason(error, self.options)) from error


@contextmanager
def _untraced() -> Iterator[None]:
    """Keep a call from every collector, whatever the shell's variables ask for."""
    from langsmith import tracing_context

    # These ask for a tracer that no longer exists, and the library stops at them.
    kept = {
        n: os.environ.pop(n) for n in ("LANGCHAIN_TRACING", "LANGCHAIN_HANDLER") if n in os.environ
    }
    try:
        with tracing_context(enabled=False):
            yield
    finally:
        os.environ.update(kept)


def _received(
    pieces: "queue.SimpleQueue[str | Completion | Exception]",
    seconds: float,
    on_token: OnToken | None,
) -> Completion | Exception:
    """Hand the pieces on as they come; the last one is the answer, or why there is none."""
    end = time.monotonic() + seconds
    while True:
        try:
            piece = pieces.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            return ModelError("the model took too long", f"over {seconds:.0f} s for one answer")
        if not isinstance(piece, str):
            return piece
        if on_token is not None:
            on_token(piece)


def _stream(
    chat: Any,  # noqa: ANN401 - a LangChain model
    pairs: list[tuple[str, str]],
    hand_on: OnToken,
) -> Completion:
    """Read the answer piece by piece and put it together."""
    start = time.monotonic()
    parts: list[str] = []
    whole = None
    for chunk in chat.stream(pairs):
        whole = chunk if whole is None else whole + chunk
        text = _text_of(chunk.content)
        if text:
            parts.append(text)
            hand_on(text)
    text = "".join(parts)
    usage = getattr(whole, "usage_metadata", None) or {}
    metadata = getattr(whole, "response_metadata", None) or {}
    refusal = (getattr(whole, "additional_kwargs", None) or {}).get("refusal")
    reason = metadata.get("finish_reason") or metadata.get("stop_reason") or ""
    prompt_chars = sum(len(content) for _, content in pairs)
    return Completion(
        text=text or str(refusal or ""),
        finish_reason="refusal" if refusal else str(reason),
        input_tokens=int(usage.get("input_tokens") or prompt_chars // 4),
        output_tokens=int(usage.get("output_tokens") or len(text) // 4),
        seconds=time.monotonic() - start,
    )


def _text_of(content: Any) -> str:  # noqa: ANN401 - text, or a list of blocks
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(
        block if isinstance(block, str) else str(block.get("text", ""))
        for block in blocks
        if isinstance(block, str) or block.get("type", "text") == "text"
    )


def _reason(error: Exception, options: Mapping[str, Any]) -> str:
    """One line of a provider's error, without the key."""
    text = " ".join(str(error).split()) or type(error).__name__
    key = str(options.get("api_key") or "")
    if len(key) >= 6:
        text = text.replace(key, "[key]")
    return f"{type(error).__name__}: {text[:300]}"
