"""A model's answer -> a diagnosis: closed schema, citations resolved, numbers and ranks checked.

What does not resolve is marked, never dropped: a reader sees what the model said and that the
evidence does not hold it.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from eroica.explain.evidence import Pack
from eroica.records import Claim, Diagnosis, Incident

Verdict = Literal["established", "supported", "hypothesis", "insufficient evidence"]
_ORDER: tuple[Verdict, ...] = (
    "insufficient evidence",
    "hypothesis",
    "supported",
    "established",
)
_MAX_ITEMS = 12
_RANK = r"\d+(?![\d.]|\s*(?:%|(?:ns|us|µs|ms|s|of)\b))"
_RANKS = re.compile(rf"(?i)\branks\s+{_RANK}(?:(?:\s*(?:-|to|,|and))+\s*{_RANK})*|\brank\s+\d+")
"""``rank 3``, ``ranks 0-3, 5 and 7``; of ``rank 0, 22 of 60`` only what is a rank."""
_PLACE = re.compile(r"([\w./<>+-]{1,400}\.\w{1,20}):(\d+)(?:-(\d+))?")
"""Bounded: a source line of letters alone would be tried from each of them to its end."""
_MAX_CHARS = 2_000


class AnswerClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    citations: list[str]


class ModelAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema an answer must keep; nothing else is read."""

    verdict: Verdict
    summary: str
    claims: list[AnswerClaim]
    next_steps: list[str]
    disproved_by: list[str]


def schema() -> dict[str, Any]:
    """Return the JSON schema of an answer, made from the class that checks it."""
    _, parts = msgspec.json.schema_components([ModelAnswer], ref_template="{name}")
    claim = _strict(parts["AnswerClaim"])
    answer = _strict(parts["ModelAnswer"])
    answer["properties"]["claims"]["items"] = claim
    return answer


def _strict(part: dict[str, Any]) -> dict[str, Any]:
    """Titles out, all keys required: what strict servers take."""
    kept = {key: value for key, value in part.items() if key not in ("title", "description")}
    return {**kept, "required": list(part["properties"]), "additionalProperties": False}


def parse(text: str, finish_reason: str = "stop") -> ModelAnswer | list[str]:
    """Return the answer, or in words for the model what is wrong with it."""
    if finish_reason == "refusal":
        return ["you declined; the task is to explain measurements of a training job"]
    if not text.strip():
        return ["the answer was empty"]
    problems = []
    for candidate in _candidates(text):
        try:
            answer = msgspec.json.decode(candidate.encode("utf-8", "replace"), type=ModelAnswer)
        except msgspec.ValidationError as error:
            problems.append(f"the JSON does not keep the schema: {error}")
            continue
        except msgspec.DecodeError as error:
            problems.append(f"the JSON is broken: {error}")
            continue
        return _checked_size(answer)
    if finish_reason in ("length", "max_tokens"):
        return ["the answer was cut off by the length limit; write a shorter one"]
    if not finish_reason:
        return ["the answer was cut off before its end"]
    return problems[-1:] or ["the answer holds no JSON object"]


def _checked_size(answer: ModelAnswer) -> ModelAnswer | list[str]:
    if not answer.summary.strip():
        return ["summary is empty"]
    if not answer.claims and answer.verdict != "insufficient evidence":
        return ["claims is empty although the verdict is not insufficient evidence"]
    cited = [key for claim in answer.claims for key in claim.citations]
    texts = [answer.summary, *(claim.text for claim in answer.claims), *cited]
    texts += [*answer.next_steps, *answer.disproved_by]
    longest = max(len(answer.claims), len(answer.next_steps), len(answer.disproved_by))
    if longest > _MAX_ITEMS or max(map(len, texts)) > _MAX_CHARS:
        return [f"too long: at most {_MAX_ITEMS} items a list and {_MAX_CHARS} characters a text"]
    return answer


def _candidates(text: str) -> list[str]:
    """JSON objects in a text: it may stand in a fence, after prose, or inside a string."""
    found = [text.strip()]
    found += [match.strip() for match in re.findall(r"```[a-zA-Z]*\n(.*?)```", text, re.DOTALL)]
    decoder = json.JSONDecoder()
    position = text.find("{")
    while position >= 0 and len(found) < 12:
        try:
            _, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            found.append(text[position:end])
        position = text.find("{", end)
    broken = text[text.find("{") :] if "{" in text else ""
    ordered = [one for one in dict.fromkeys(found) if one.startswith("{")]
    return ordered or ([broken] if broken else [])


@dataclass(frozen=True)
class Grounds:
    """What prose may name: finding ids, lines, numbers and ranks of the evidence sent."""

    findings: frozenset[str]
    lines: dict[str, frozenset[int]]
    """File, as written in the evidence, to the lines shown or named there."""
    numbers: tuple[float, ...]
    ranks: frozenset[int]
    world_size: int = 0
    """Ranks below it are ranks of the job, seen or not."""

    @classmethod
    def of(cls, incident: Incident, pack: Pack) -> "Grounds":
        text = "\n".join([pack.text, *(part.name for part in pack.parts)])
        lines: dict[str, set[int]] = {}
        for file, first, last in _PLACE.findall(text):
            lines.setdefault(file, set()).update(_span(first, last))
        for excerpt in pack.excerpts:
            lines.setdefault(excerpt.file, set()).update(range(excerpt.first, excerpt.last + 1))
        job = incident.job
        return cls(
            findings=frozenset(finding.id for finding in incident.findings),
            lines={file: frozenset(known) for file, known in lines.items()},
            numbers=tuple(sorted({float(number) for number, _ in _numbers(text)})),
            ranks=frozenset((*job.ranks, *job.missing_ranks)),
            world_size=job.world_size,
        )

    def resolves(self, citation: str) -> bool:
        """Say whether a citation names a finding or a line that was in the evidence."""
        key = citation.strip().strip("[]()`")
        if key in self.findings:
            return True
        match = re.fullmatch(r"(?:[\w-]+ )?([^\s:]+):(\d+)(?:-(\d+))?(?:[ ,].*)?", key)
        if not match:
            return False
        wanted = set(_span(match.group(2), match.group(3)))
        named = match.group(1)
        files = [f for f in self.lines if f == named or f.endswith(f"/{named}")]
        return any(wanted <= self.lines[file] for file in files)

    def unknown_in(self, prose: str) -> list[str]:
        """Return the numbers and ranks of prose that the evidence does not hold."""
        plain = re.sub(r"\b[FC]\d+\b|[\w./-]+\.\w+:\d+(?:-\d+)?|\(?#\d+\)?", " ", prose)
        unknown = []
        for text in _RANKS.findall(plain):
            unknown += [f"rank {n}" for n in re.findall(r"\d+", text) if not self._has_rank(n)]
        plain = _RANKS.sub(" ", plain)
        for number, is_percent in _numbers(plain):
            if not self._holds(number, is_percent):
                unknown.append(f"{number}{' %' if is_percent else ''}")
        return list(dict.fromkeys(unknown))

    def _has_rank(self, digits: str) -> bool:
        rank = _number(digits)
        return rank in self.ranks or rank < self.world_size

    def _holds(self, number: str, is_percent: bool) -> bool:
        value = float(number)
        if value in (0, 1, 2) and not is_percent:
            return True  # "one rank", "both": words more than measurements
        decimals = len(number.partition(".")[2])
        slack = 0.5 * 10**-decimals + 1e-9
        scales = (1.0, 100.0) if is_percent else (1.0,)
        return any(abs(value - known * s) <= slack for known in self.numbers for s in scales)


def _number(digits: str) -> int:
    """A rank or a line; of more digits than any has only the first ones (Python refuses 4300)."""
    return int(digits[:18])


def _span(first: str, last: str | None) -> range:
    start, end = _number(first), _number(last or first)
    return range(start, min(end, start + 2_000) + 1)


def _numbers(text: str) -> list[tuple[str, bool]]:
    """Numbers of a text that are not part of a name, with whether a percent sign follows."""
    pattern = r"(?<![\w.])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?![\w]*[A-Za-z_]{3,})(\s*%)?"
    return [(number.replace(",", ""), bool(sign)) for number, sign in re.findall(pattern, text)]


def diagnose(answer: ModelAnswer, incident: Incident, pack: Pack, source: str) -> Diagnosis:
    """Return the checked diagnosis; the verdict falls where the evidence does not carry it."""
    grounds = Grounds.of(incident, pack)
    claims, notes = [], []
    for claim in answer.claims:
        lost = [key for key in claim.citations if not grounds.resolves(key)]
        unknown = grounds.unknown_in(claim.text)
        if lost:
            notes.append(f"not in the evidence: {', '.join(lost)}")
        if unknown:
            notes.append(f"not a number or rank of the evidence: {', '.join(unknown)}")
        is_resolved = bool(claim.citations) and not lost and not unknown
        cited = tuple(key.strip().strip("[]()`") for key in claim.citations)
        claims.append(Claim(text=claim.text, citations=cited, is_resolved=is_resolved))
    unknown = grounds.unknown_in(answer.summary)
    if unknown:
        notes.append(f"the summary names what the evidence does not hold: {', '.join(unknown)}")
    return Diagnosis(
        cause=pack.cause.id if pack.cause else "",
        verdict=_lowered(answer.verdict, claims, bool(unknown)),
        summary=answer.summary,
        claims=tuple(claims),
        next_steps=tuple(answer.next_steps),
        disproved_by=tuple(answer.disproved_by),
        source=source,
        notes=tuple(dict.fromkeys(notes)),
    )


def _lowered(verdict: Verdict, claims: list[Claim], is_doubtful: bool) -> Verdict:
    """At most ``supported`` with a mark, at most ``hypothesis`` where most claims carry one."""
    marked = sum(not claim.is_resolved for claim in claims)
    limit: Verdict = "established"
    if marked or is_doubtful:
        limit = "supported"
    if claims and marked * 2 > len(claims):
        limit = "hypothesis"
    return min(verdict, limit, key=_ORDER.index)
