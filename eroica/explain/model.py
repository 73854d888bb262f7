"""The chat model behind one small Protocol, and how its name, address and key are resolved.

A name is ``PROVIDER:NAME`` (``openai:...`` also serves vLLM, Ollama and llama.cpp by their
OpenAI-compatible address), a bare NAME (taken as openai's), or ``replay:FILE``. Address and key
are resolved here and passed explicitly: a variable left in a shell must not send a prompt
elsewhere.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from eroica.errors import InputError

OnToken = Callable[[str], None]
Schema = Mapping[str, Any]
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

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> "Limits":
        """The bounds, with ``EROICA_MODEL_SECONDS`` for the time; InputError if it is none."""
        given = (os.environ if environment is None else environment).get("EROICA_MODEL_SECONDS")
        if not given:
            return cls()
        try:
            seconds = float(given)
        except ValueError:
            seconds = 0.0
        if not 1 <= seconds < 1e6:
            raise InputError(
                f"EROICA_MODEL_SECONDS {given!r} is no time",
                "expected seconds, 1 or more",
                "unset EROICA_MODEL_SECONDS, or correct it",
            )
        return cls(seconds=seconds)


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


@dataclass(frozen=True)
class Call:
    """One question: what is sent, what it is about, and within which bounds."""

    messages: Sequence[Message]
    context: CallContext
    max_tokens: int
    seconds: float
    on_token: OnToken | None = None
    schema: Schema | None = None
    """What the answer must look like, for servers that can hold a model to it."""


class ChatModel(Protocol):
    """All that eroica asks of a language model."""

    @property
    def name(self) -> str: ...

    @property
    def endpoint(self) -> str:
        """Where text goes: an address, or empty for a model that sends nothing."""
        ...

    def complete(self, call: Call) -> Completion:
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
    return _other(provider, rest, env, dict(options or {}))


def is_configured(environment: Mapping[str, str] | None = None) -> bool:
    """Say whether a model is named in the environment."""
    return bool((os.environ if environment is None else environment).get("EROICA_MODEL"))


def _openai(name: str, env: Mapping[str, str], options: dict[str, Any]) -> ChatModel:
    from eroica.explain.provider import LangChainModel

    url = env.get("OPENAI_BASE_URL") or env.get("OPENAI_API_BASE") or OPENAI_URL
    key = env.get("OPENAI_API_KEY") or ""
    _check_address("OPENAI_BASE_URL", url)
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


def _check_address(name: str, url: str) -> None:
    """Raise InputError for what is no address of a server, before anything is tried with it."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and parts.port != 0  # a port that is no number raises
    except ValueError:
        is_address = False
    if not is_address:
        raise InputError(
            f"{name} {url!r} is no address",
            "expected http://HOST:PORT/v1",
            f"unset {name}, or correct it",
        )


_ADDRESS_OPTIONS = {
    "anthropic": "base_url",
    "azure_openai": "azure_endpoint",
    "groq": "base_url",
    "ollama": "base_url",
}
"""How LangChain's classes take an address, where eroica knows it."""
_OLLAMA_URL = "http://127.0.0.1:11434"


def _other(provider: str, name: str, env: Mapping[str, str], options: dict[str, Any]) -> ChatModel:
    """Return a model of another provider; where its text goes is never left to a variable."""
    from eroica.explain.provider import LangChainModel

    option = _ADDRESS_OPTIONS.get(provider, "base_url")
    found = addresses_of(provider, env)
    url = str(options.get(option) or "")
    if not url and found:
        variable, url = found[0]
        if provider not in _ADDRESS_OPTIONS or len({value for _, value in found}) > 1:
            named = ", ".join(f"{variable}={value}" for variable, value in found)
            raise InputError(
                f"where {provider}:{name} would send text is not clear",
                f"{named} in the environment",
                f"unset {variable}, or use openai:NAME with OPENAI_BASE_URL",
            )
    if not url and provider == "ollama":
        url = _OLLAMA_URL
    if url and provider in _ADDRESS_OPTIONS:
        url = url if "://" in url else f"http://{url}"
        _check_address(found[0][0] if found else option, url)
        options[option] = url
    return LangChainModel(
        f"{provider}:{name}", provider, name, url or f"{provider} (its own address)", options
    )


def addresses_of(provider: str, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables that turn a provider's library to another address, with values."""
    whole = provider.upper().replace("-", "_")
    stem = whole.partition("_")[0]
    form = re.compile(
        rf"(?:{re.escape(whole)}_(?:\w+_)?|{re.escape(stem)}_|{re.escape(stem.removesuffix('AI'))}_)"
        r"(?:BASE_URL|API_BASE|API_URL|URL|ENDPOINT|HOST|PROXY)"
    )
    return sorted((name, value) for name, value in env.items() if value and form.fullmatch(name))


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
