"""Models of any provider LangChain knows; loaded only when one is called.

Every call runs in a thread, so that a library's retries cannot outlast the time given, and with
tracing to third parties off, whatever the shell asks for.
"""

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from eroica.errors import ModelError
from eroica.explain.model import Call, Completion, OnToken, is_loopback

REACHES_WITHIN_S = 4.0
_REFUSES_SCHEMA = (400, 404, 415, 422, 501)


@dataclass
class LangChainModel:
    """A model of any provider LangChain knows."""

    name: str
    provider: str
    model: str
    endpoint: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    """Holds the key, so it stays out of ``repr``."""
    takes_schema: bool = True
    """Whether the server has not yet refused to hold an answer to a schema."""

    def complete(self, call: Call) -> Completion:
        if reason := unreachable(self.endpoint):
            raise ModelError(f"{self.name} at {self.endpoint} did not answer", reason)
        end = time.monotonic() + call.seconds
        takes_form = self.takes_schema and self.provider == "openai"
        result = self._called(call if takes_form else replace(call, schema=None))
        if takes_form and call.schema and getattr(result, "status_code", None) in _REFUSES_SCHEMA:
            self.takes_schema = False
            left = max(1.0, end - time.monotonic())
            result = self._called(replace(call, schema=None, seconds=left))
        if isinstance(result, Completion):
            return result
        if isinstance(result, ModelError):
            raise result
        raise ModelError(
            f"{self.name} at {self.endpoint} did not answer", _reason(result, self.options)
        ) from result

    def _called(self, call: Call) -> Completion | Exception:
        """Make one call in a thread: a library's retries must not outlast the time given."""
        pieces: queue.SimpleQueue[str | Completion | Exception] = queue.SimpleQueue()
        pairs = [(str(message.role), message.content) for message in call.messages]

        def run() -> None:
            result: Completion | Exception
            try:
                with _untraced(), self._direct_way():
                    result = _stream(self._open(call), pairs, pieces.put)
            except Exception as error:
                # The border to a library: whatever a provider raises becomes one named error.
                result = error
            pieces.put(result)

        threading.Thread(target=run, name="model call", daemon=True).start()
        return _received(pieces, call.seconds, call.on_token)

    def _direct_way(self) -> AbstractContextManager[None]:
        # The openai client is given no proxy at all; the others can only be asked by variable.
        if self.provider == "openai" or not is_loopback(self.endpoint):
            return nullcontext()
        return _unproxied(urlsplit(self.endpoint).hostname or "")

    def _open(self, call: Call) -> Any:  # noqa: ANN401 - a LangChain model
        from langchain.chat_models import init_chat_model

        limits: dict[str, Any] = {"max_tokens": call.max_tokens, "timeout": call.seconds}
        if is_loopback(self.endpoint) and self.provider == "openai":
            limits |= _direct(call.seconds)
        if call.schema is not None:
            # Beside the library's own way, which parses while it streams and raises on a cut.
            form = {"name": "diagnosis", "strict": True, "schema": call.schema}
            limits["extra_body"] = {"response_format": {"type": "json_schema", "json_schema": form}}
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


def unreachable(endpoint: str, seconds: float | None = None) -> str:
    """Say why nothing listens at an address; empty where something does, or a proxy would know.

    A library tries a dead address again and again, for minutes where packets are dropped.
    """
    seconds = REACHES_WITHIN_S if seconds is None else seconds
    parts = urlsplit(endpoint)
    if not parts.hostname or (getproxies() and not is_loopback(endpoint)):
        return ""
    where = (parts.hostname, parts.port or {"http": 80}.get(parts.scheme, 443))
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def reach() -> None:
        try:
            socket.create_connection(where, timeout=seconds).close()
            told.put("")
        except Exception as error:  # a name that does not resolve, a refusal, a firewall's answer
            told.put(f"{type(error).__name__}: {error}")

    # In a thread: looking a name up knows no time limit.
    threading.Thread(target=reach, name="model address", daemon=True).start()
    try:
        return told.get(timeout=seconds + 0.5)
    except queue.Empty:
        return f"no connection within {seconds:.0f} s"


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


def _direct(seconds: float) -> dict[str, Any]:
    """Options for a client that goes to this machine and nowhere else, whatever the shell says."""
    from openai import DefaultHttpxClient

    client = DefaultHttpxClient(trust_env=False, follow_redirects=False, timeout=seconds)
    return {"http_client": client, "openai_proxy": None}


class _Unproxied:
    """Keeps libraries from the shell's proxy while any call to this machine is under way."""

    NAMES = ("NO_PROXY", "no_proxy")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._kept: dict[str, str | None] = {}

    @contextmanager
    def __call__(self, host: str) -> Iterator[None]:
        """Except this host; calls may overlap, and the last one puts back what was there."""
        with self._lock:
            if self._calls == 0:
                self._kept = {name: os.environ.get(name) for name in self.NAMES}
            self._calls += 1
            for name in self.NAMES:
                hosts = [part for part in os.environ.get(name, "").split(",") if part]
                os.environ[name] = ",".join([*hosts, host])
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                for name, value in self._kept.items() if self._calls == 0 else ():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value


_unproxied = _Unproxied()


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
