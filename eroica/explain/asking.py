"""One question to a model about an incident: prompt, answer, check, transcript.

The rule-written text is there before and after: whatever goes wrong with the model, the result
holds a diagnosis and a line that says why it is not the model's.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eroica.errors import EroicaError, ModelError
from eroica.explain import answer as answers
from eroica.explain.evidence import DEFAULT_BUDGET, Pack
from eroica.explain.model import (
    Call,
    CallContext,
    ChatModel,
    Completion,
    Limits,
    Message,
    OnToken,
    Usage,
    is_loopback,
)
from eroica.explain.privacy import Pseudonyms, Share
from eroica.explain.prompts import Prompt, prepare, render
from eroica.explain.rules import explain
from eroica.explain.stream import ProseStream
from eroica.explain.transcript import append_private
from eroica.incident import IncidentFolder, now
from eroica.records import Diagnosis

MaySend = Callable[[str], bool]
"""Asked with the address before text goes to another machine; True lets it go."""


@dataclass
class Asked:
    """What came of a question. ``diagnoses`` is never empty; the first is the model's if usable."""

    purpose: str
    model: str
    diagnoses: list[Diagnosis]
    is_answered: bool = False
    """The model's answer could be used."""
    is_agreed: bool = False
    """Text may go to the model's address."""
    text: str = ""
    """The last raw answer with real names put back: for a patch, what ``fix.from_answer`` takes."""
    why: str = ""
    """Of a patch: what it does about the cause, in the model's words."""
    behavior: str = ""
    """Of a patch: what else changes for the program, in the model's words."""
    reason: str = ""
    """One line why the model's answer was not used; empty where it was."""
    notes: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    prompt: Prompt | None = None
    pack: Pack | None = None
    names: Pseudonyms | None = None
    messages: list[Message] = field(default_factory=list)


def ask(
    folder: IncidentFolder,
    model: ChatModel,
    purpose: str = "explain",
    *,
    on_token: OnToken | None = None,
    cause: str | None = None,
    share: Share = "functions",
    source_root: str | None = None,
    may_send: MaySend | None = None,
    limits: Limits | None = None,
    usage: Usage | None = None,
    budget: int = DEFAULT_BUDGET,
    templates: Path | None = None,
) -> Asked:
    """Ask for an explanation or a patch. Model trouble of any kind ends up in ``reason``.

    ``on_token`` gets an explanation as sentences, a patch as it comes, real names in both.
    Pass one ``usage`` to several calls to hold them to one set of limits together.
    """
    incident, evidence = folder.read_incident(), folder.read_evidence()
    fallback = explain(incident, evidence=evidence)
    prompt, pack, names = prepare(
        folder,
        purpose,
        cause=cause,
        share=share,
        source_root=source_root,
        budget=budget,
        templates=templates,
    )
    chosen = pack.cause.id if pack.cause else ""
    asked = Asked(
        purpose=purpose,
        model=model.name,
        diagnoses=[one for one in fallback if one.cause == chosen] or fallback[:1],
        usage=usage or Usage(),
        prompt=prompt,
        pack=pack,
        names=names,
        messages=[Message("system", prompt.system), Message("user", prompt.user)],
    )
    shown = ProseStream(on_token) if on_token and purpose != "patch" else on_token
    session = _Session(folder, model, asked, limits or Limits.of(), shown, templates)
    try:
        _require_consent(model, may_send)
        asked.is_agreed = True
        completion = session.call(
            CallContext(purpose, prompt.category, prompt.source_sha256, prompt.sha256)
        )
        if purpose == "patch":
            session.take_text(completion)
        else:
            session.take_diagnosis(completion)
    except EroicaError as error:
        asked.reason = " - ".join(line for line in (error.what, error.found) if line)
    return asked


def repair(
    folder: IncidentFolder,
    model: ChatModel,
    earlier: Asked,
    problems: list[str],
    *,
    on_token: OnToken | None = None,
    limits: Limits | None = None,
    templates: Path | None = None,
) -> Asked:
    """Give a patch back with what is wrong with it; ``earlier`` is changed and returned.

    Where nobody agreed that text goes to the model, none goes now either.
    """
    if not earlier.is_agreed:
        return earlier
    session = _Session(folder, model, earlier, limits or Limits.of(), on_token, templates)
    earlier.is_answered, earlier.reason = False, ""
    try:
        session.take_text(session.call_again(problems))
    except EroicaError as error:
        earlier.reason = " - ".join(line for line in (error.what, error.found) if line)
    return earlier


def _require_consent(model: ChatModel, may_send: MaySend | None) -> None:
    """Raise ModelError unless text may go to the model's address."""
    if is_loopback(model.endpoint):
        return
    allowed = may_send(model.endpoint) if may_send else consented(model.endpoint)
    if not allowed:
        raise ModelError(
            f"nothing was sent to {model.endpoint}",
            "it is not this machine, and nobody agreed",
            f"EROICA_SEND_TO={model.endpoint} agrees for good",
        )


def consented(endpoint: str, environment: Mapping[str, str] | None = None) -> bool:
    """Say whether ``EROICA_SEND_TO`` (addresses, comma between; ``any``) names this address."""
    given = (os.environ if environment is None else environment).get("EROICA_SEND_TO", "")
    named = {part.strip().rstrip("/") for part in given.split(",")}
    return "any" in named or endpoint.rstrip("/") in named


@dataclass
class _Session:
    folder: IncidentFolder
    model: ChatModel
    asked: Asked
    limits: Limits
    on_token: OnToken | None
    templates: Path | None
    held: str = ""
    """The end of what was streamed, as long as a pseudonym may go on in the next piece."""

    def call(self, context: CallContext) -> Completion:
        """Make one call within the limits and write it down, whatever comes of it."""
        usage, limits = self.asked.usage, self.limits
        reached = usage.exceeded(limits)
        size = sum(len(message.content) for message in self.asked.messages) // 4
        if not reached and usage.input_tokens + size > limits.input_tokens:
            reached = f"{limits.input_tokens} tokens in"
        if reached:
            raise ModelError("the limit for the model is reached", reached)
        start = time.monotonic()
        usage.calls += 1
        try:
            left = min(limits.output_tokens // 2, limits.output_tokens - usage.output_tokens)
            completion = self.model.complete(
                Call(
                    list(self.asked.messages),
                    context=context,
                    max_tokens=max(256, left),
                    seconds=max(1.0, limits.seconds - usage.seconds),
                    on_token=self._stream,
                    schema=None if self.asked.purpose == "patch" else answers.schema(),
                )
            )
        except ModelError as error:
            self._write_down(context, None, time.monotonic() - start, str(error))
            raise
        finally:
            usage.seconds += time.monotonic() - start
        self._stream("", is_last=True)
        usage.add(completion)
        self._write_down(context, completion, time.monotonic() - start, "")
        self.asked.messages.append(Message("assistant", completion.text))
        self.asked.notes += completion.notes
        return completion

    def call_again(self, problems: list[str]) -> Completion:
        """The repair turn: the same conversation, with what was wrong."""
        asked = self.asked
        assert asked.prompt is not None and asked.names is not None
        hidden = [asked.names.hide(problem) for problem in problems]
        text = render("repair", folder=self.templates, purpose=asked.purpose, problems=hidden)
        asked.messages.append(Message("user", text))
        digest = hashlib.sha256((asked.prompt.sha256 + text).encode()).hexdigest()
        return self.call(
            CallContext(
                f"repair {asked.purpose}", asked.prompt.category, asked.prompt.source_sha256, digest
            )
        )

    def take_text(self, completion: Completion) -> None:
        """Keep an answer as text, real names put back."""
        asked = self.asked
        assert asked.names is not None
        asked.text = asked.names.reveal(completion.text)
        if not asked.text.strip() or completion.finish_reason == "refusal":
            raise ModelError("the model gave no answer", completion.finish_reason)
        if declined := _NO_PATCH.search(asked.text):
            raise ModelError("the model proposes no patch", declined.group(1).strip()[:300])
        asked.why, asked.behavior = (_said(asked.text, name) for name in ("WHY", "BEHAVIOR"))
        asked.is_answered = True

    def take_diagnosis(self, completion: Completion) -> None:
        """Parse and check an explanation; one repair turn, then ModelError."""
        asked = self.asked
        assert asked.names is not None and asked.pack is not None
        for attempt in range(2):
            asked.text = asked.names.reveal(completion.text)
            parsed = answers.parse(asked.text, completion.finish_reason)
            if isinstance(parsed, answers.ModelAnswer):
                incident = self.folder.read_incident()
                diagnosis = answers.diagnose(parsed, incident, asked.pack, asked.model)
                asked.diagnoses.insert(0, diagnosis)
                asked.is_answered = True
                return
            if attempt == 1:
                raise ModelError("the model's answer could not be used", "; ".join(parsed))
            completion = self.call_again(parsed)

    def _stream(self, piece: str, *, is_last: bool = False) -> None:
        """Hand a piece on with real names in it, whole words at a time."""
        if self.on_token is None or self.asked.names is None:
            return
        self.held += piece
        cut = len(self.held) if is_last else len(self.held) - len(re.split(r"\s", self.held)[-1])
        ready, self.held = self.held[:cut], self.held[cut:]
        if ready:
            self.on_token(self.asked.names.reveal(ready))

    def _write_down(
        self, context: CallContext, completion: Completion | None, seconds: float, error: str
    ) -> None:
        """Append the exact bytes of the call to the incident's transcript (0600)."""
        asked = self.asked
        record = {
            "time": now(),
            "purpose": context.purpose,
            "category": context.category,
            "cause": asked.pack.cause.id if asked.pack and asked.pack.cause else "",
            "source_sha256": context.source_sha256,
            "prompt_sha256": context.prompt_sha256,
            "model": self.model.name,
            "endpoint": self.model.endpoint,
            "messages": [{"role": m.role, "content": m.content} for m in asked.messages],
            "replaced": asked.names.replaced if asked.names else 0,
            "answer": completion.text if completion else "",
            "finish_reason": completion.finish_reason if completion else "",
            "input_tokens": completion.input_tokens if completion else 0,
            "output_tokens": completion.output_tokens if completion else 0,
            "seconds": round(seconds, 3),
            "error": error,
        }
        append_private(self.folder.transcript_path, record)


_NO_PATCH = re.compile(r"\A\W*NO PATCH\b[:.\s]*([^\n]*)")


def _said(text: str, name: str) -> str:
    """The line of a patch answer that begins with a name, before its first block."""
    before = text.partition("<<<<<<<")[0]
    match = re.search(rf"^\W*{name}\W*:\s*(.+)$", before, re.MULTILINE)
    return match.group(1).strip()[:500] if match else ""
