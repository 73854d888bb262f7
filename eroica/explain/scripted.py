"""Models that send nothing: one that plays a script, one that replays recorded answers.

They ship so that demonstrations, documentation and tests need no key. A recording is a file of
JSON objects, a line each, as the transcript of an incident (``model.jsonl``) is one: ``purpose``,
``category``, ``source_sha256``, ``prompt_sha256``, ``answer``.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eroica.errors import InputError, ModelError
from eroica.explain.model import Call, CallContext, Completion, Message

Step = str | Completion | Exception | Callable[[Sequence[Message]], str]


class ScriptExhausted(ModelError):
    """The script has no answer left: a call that was not expected."""


@dataclass
class ScriptedModel:
    """Answers in order; each step is a text, a completion, an error to raise or a function."""

    steps: list[Step]
    name: str = "scripted"
    endpoint: str = ""
    calls: list[list[Message]] = field(default_factory=list)
    """The messages of every call, for looking at afterwards."""

    def complete(self, call: Call) -> Completion:
        self.calls.append(list(call.messages))
        if len(self.calls) > len(self.steps):
            raise ScriptExhausted(f"the script ends after {len(self.steps)} answers")
        step = self.steps[len(self.calls) - 1]
        if isinstance(step, Exception):
            raise step
        if callable(step):
            step = step(call.messages)
        return _played(step, call)


@dataclass
class ReplayModel:
    """Recorded answers, found by purpose, category and the guilty function's source."""

    path: Path
    records: list[dict[str, Any]]
    endpoint: str = ""
    used: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"replay:{self.path.name}"

    @classmethod
    def load(cls, path: str) -> "ReplayModel":
        """Read a recording; InputError where it is none."""
        file = Path(path)
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"the recording {path!r} cannot be read",
                str(error),
                next_step="--model replay:FILE takes a file of recorded answers, e.g. model.jsonl",
            ) from error
        records = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                known = isinstance(record["answer"], str) and isinstance(record["purpose"], str)
            except (ValueError, KeyError, TypeError):
                known = False
            if not known:
                raise InputError(
                    f"line {number} of the recording {path} is no recorded answer",
                    "expected a JSON object with purpose, category, source_sha256 and answer",
                    next_step="take the line out, or use another recording",
                )
            if not record.get("error"):
                records.append(record)
        return cls(file, records)

    def complete(self, call: Call) -> Completion:
        matches = [n for n, record in enumerate(self.records) if _fits(record, call.context)]
        # The same prompt first; else the answers in the order of their recording.
        digest = call.context.prompt_sha256
        exact = [n for n in matches if self.records[n].get("prompt_sha256") == digest]
        pool = exact or matches
        if not pool:
            about = f"{call.context.purpose} {call.context.category or 'this'}"
            raise ModelError(
                f"{self.name} holds no answer to {about}",
                f"{len(self.records)} answers are recorded, none for this function's source",
            )
        chosen = min(pool, key=lambda n: (self.used.get(n, 0), n))
        self.used[chosen] = self.used.get(chosen, 0) + 1
        played = _played(str(self.records[chosen]["answer"]), call)
        notes = () if exact else ("the recorded answer was given to another prompt",)
        return Completion(
            text=played.text,
            finish_reason="stop",
            input_tokens=played.input_tokens,
            output_tokens=played.output_tokens,
            notes=notes,
        )


def _fits(record: dict[str, Any], context: CallContext) -> bool:
    return (
        record.get("purpose") == context.purpose
        and record.get("category", "") == context.category
        and record.get("source_sha256", "") == context.source_sha256
    )


def _played(step: str | Completion, call: Call) -> Completion:
    """Hand a text out in pieces, as a model would."""
    if isinstance(step, str):
        sent = sum(len(message.content) for message in call.messages)
        step = Completion(
            text=step, finish_reason="stop", input_tokens=sent // 4, output_tokens=len(step) // 4
        )
    if call.on_token is not None:
        for piece in re.findall(r"\S+\s*|\s+", step.text):
            call.on_token(piece)
    return step
