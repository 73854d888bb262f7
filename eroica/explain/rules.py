"""The rule-written explanation: always made first, needs no model and never waits for one.

Every claim cites findings or ``file:line``; the text of a category comes from ``knowledge``.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from eroica import units
from eroica.explain.knowledge import Knowledge, lookup
from eroica.records import Cause, Claim, Diagnosis, Finding, Incident, JobEvidence, Place

Verdict = Literal["established", "supported", "hypothesis", "insufficient evidence"]

_FINDING_ID = re.compile(r"\bF\d+\b")
_ESTABLISHED, _SUPPORTED, _HYPOTHESIS = 0.85, 0.5, 0.2  # ours: how sure the words may sound
_MAX_PATTERN_CLAIMS = 4
_PLACE = re.compile(r"[\w./-]+\.\w+:\d+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_STACKS = re.compile(r"stacks of \d+ of \d+ ranks: ")
_NOTHING = re.compile(r"nobody exited$")
_WAITING = re.compile(r"\b(?:waits?|holds?)\b")
_ALIKE = 0.5
_SMALL = frozenset({"the", "and", "for", "that", "all", "one", "them", "its", "with", "not"})
_HEDGE: dict[Verdict, str] = {
    "established": "",
    "supported": " This fits what was seen; another explanation is possible.",
    "hypothesis": " This is a hypothesis.",
    "insufficient evidence": " This is a guess.",
}


def explain(
    incident: Incident,
    *,
    evidence: JobEvidence | None = None,
    source_root: str | Path | None = None,
) -> list[Diagnosis]:
    """Return one diagnosis a cause, in the incident's order; one without a cause if it has none."""
    if not incident.causes:
        return [_without_cause(incident)]
    return [_diagnose(incident, cause, evidence) for cause in incident.causes]


def ranks_text(cause: Cause) -> str:
    """``rank 2``, ``ranks 0-2`` or ``all ranks``."""
    if cause.ranks == "all":
        return "all ranks"
    return rank_phrase(cause.ranks) if cause.ranks else "an unknown rank"


def rank_phrase(ranks: Sequence[int], limit: int = 10) -> str:
    """``units.rank_phrase``, but of many pieces the first are named and all ranks counted."""
    pieces = units.ranks(list(ranks)).split(",")
    if len(pieces) <= limit:
        return units.rank_phrase(list(ranks))
    return f"ranks {','.join(pieces[:limit])} and others ({len(set(ranks))} ranks)"


def place_text(place: Place | None) -> str:
    """``train.py:28 save_checkpoint``, as far as it is known."""
    if place is None:
        return "an unknown place"
    where = citation(place)
    return f"{where} {place.name}" if where else place.name


def citation(place: Place) -> str:
    """``train.py:28``: how prose cites a place; empty where there is no file."""
    if not place.file:
        return ""
    return f"{place.file}:{place.line}" if place.line else place.file


def _diagnose(incident: Incident, cause: Cause, evidence: JobEvidence | None) -> Diagnosis:
    known = lookup(cause.category)
    facts = _facts(cause)
    findings = {finding.id: finding for finding in incident.findings}
    return Diagnosis(
        cause=cause.id,
        verdict=_verdict(cause),
        summary=as_sentence(located(cause)),
        claims=_claims(cause, known, facts, findings),
        next_steps=_next_steps(incident, cause, known, facts),
        disproved_by=tuple(_fill(text, facts) for text in known.disproved_by),
        notes=_notes(evidence),
    )


def _facts(cause: Cause) -> dict[str, str]:
    """What the templates of ``knowledge`` may name, and the verb endings that agree with it."""
    is_one = cause.ranks != "all" and len(cause.ranks) <= 1
    one = {"s": "s", "es": "es", "is": "is", "has": "has", "its": "its", "it": "it"}
    many = {"s": "", "es": "", "is": "are", "has": "have", "its": "their", "it": "them"}
    return {
        "place": place_text(cause.functions[0] if cause.functions else None),
        "ranks": ranks_text(cause),
        "hosts": ", ".join(cause.hosts) or "the host of " + ranks_text(cause),
        **(one if is_one else many),
    }


def _verdict(cause: Cause) -> Verdict:
    """Words for the confidence; what speaks against a cause keeps it from being established."""
    if cause.confidence >= _ESTABLISHED and cause.findings and not cause.against:
        return "established"
    if cause.confidence >= _SUPPORTED and cause.findings:
        return "supported"
    return "hypothesis" if cause.confidence >= _HYPOTHESIS else "insufficient evidence"


def _claims(
    cause: Cause, known: Knowledge, facts: dict[str, str], findings: dict[str, Finding]
) -> tuple[Claim, ...]:
    """What was seen here comes first, how such a fault works after it; nothing is said twice."""
    places = tuple(dict.fromkeys(filter(None, map(citation, cause.functions[:2]))))
    own = {key: findings[key] for key in cause.findings if key in findings}
    every = tuple(own) or places
    how = _fill(known.mechanism, facts) + _HEDGE[_verdict(cause)]
    mechanism = Claim(text=how, citations=(*places, *own))
    claims = [
        Claim(text=as_sentence(sentence), citations=_cited(sentence, own, places))
        for sentence in cause.why
        if sentence.strip().rstrip(".").lower() not in cause.summary.lower()
    ]
    claims += [] if claims else [mechanism]
    said = [cause.summary, *cause.why]
    measured: list[Claim] = []
    for key, finding in own.items():
        text = _finding_text(finding)
        if text and len(measured) < _MAX_PATTERN_CLAIMS and not _is_told(text, said):
            measured.append(Claim(text=as_sentence(text), citations=(key,)))
            said.append(text)
    claims += measured
    claims += [] if mechanism in claims else [mechanism]
    if cause.victims and not _WAITING.search(" ".join(said)):
        wait = "waits" if len(cause.victims) == 1 else "wait"
        text = f"{rank_phrase(cause.victims)} only {wait} for {facts['ranks']}."
        claims.append(Claim(text=_capital(text), citations=every))
    if cause.share is not None and not re.search(r"(?i)without it", " ".join(said)):
        text = f"Without it a step would take {units.share(cause.share)} less time."
        claims.append(Claim(text=text, citations=every))
    return tuple(claim for claim in claims if claim.text)


def _is_told(measured: str, before: Sequence[str]) -> bool:
    """Whether a finding adds nothing to what was said: all its numbers came there."""
    if _NOTHING.match(measured):
        return True
    told = " ".join(before)
    numbers = set(_NUMBER.findall(_STACKS.sub("", measured)))
    return bool(numbers) and numbers <= set(_NUMBER.findall(told))


def located(cause: Cause) -> str:
    """The summary with the place in it: rank, fault and function in one sentence."""
    place = cause.functions[0] if cause.functions else None
    spot = citation(place) if place is not None else ""
    if place is None or not spot or spot in cause.summary or place.name in cause.summary:
        return cause.summary
    return f"{cause.summary}, at {place.name} ({spot})"


def as_sentence(text: str) -> str:
    """Begin with a capital, unless a name stands there, and end with a full stop."""
    text = text.strip()
    if re.match(r"[a-z][a-z']*[ ,]", text):
        text = text[:1].upper() + text[1:]
    return text if not text or text[-1] in ".!?:" else f"{text}."


def _cited(sentence: str, own: dict[str, Finding], places: tuple[str, ...]) -> tuple[str, ...]:
    """The findings that a sentence names, or that hold a place or number of it; else all."""
    if named := tuple(key for key in _FINDING_ID.findall(sentence) if key in own):
        return named
    spots = _PLACE.findall(sentence)
    if spots:
        holding = tuple(key for key, one in own.items() if any(x in one.text for x in spots))
        return holding or tuple(spots)
    numbers = {number for number in _NUMBER.findall(sentence) if len(number) > 1}
    holding = tuple(k for k, one in own.items() if numbers & set(_NUMBER.findall(one.text)))
    return holding or tuple(own) or places


def _finding_text(finding: Finding) -> str:
    """Say a finding in words; a pattern is set beside its peers' median."""
    text = finding.text
    if not text and finding.function is not None and finding.beta is not None:
        ranks = finding.ranks or (() if finding.rank is None else (finding.rank,))
        where = f" on {rank_phrase(ranks)}" if ranks else ""
        text = f"{finding.function.name} is {units.share(finding.beta)} of the window{where}"
        if "beta" in finding.peers:
            text += f", its peers' median is {units.share(finding.peers['beta'])}"
        peer_mu = finding.peers.get("mu")
        if finding.mu is not None and peer_mu and abs(finding.mu - peer_mu) > 0.1 * peer_mu:
            text += f"; its mean use is {finding.mu:.2f}, the peers' {peer_mu:.2f}"
        text += "."
    return text


def _next_steps(
    incident: Incident, cause: Cause, known: Knowledge, facts: dict[str, str]
) -> tuple[str, ...]:
    """What to do, the advice for this case first; a step that only repeats another is left out."""
    steps = [as_sentence(cause.advice)] if cause.advice else []
    for step in (_fill(text, facts) for text in known.steps):
        if not any(_is_alike(step, other) for other in steps):
            steps.append(step)
    if cause.confidence < _SUPPORTED or not cause.findings:
        steps += incident.not_seen
    return tuple(dict.fromkeys(steps))


def _is_alike(one: str, other: str) -> bool:
    """Whether two steps share most of their words."""
    a, b = (
        set(re.findall(r"[a-z_]{3,}", text.lower().replace("-", ""))) - _SMALL
        for text in (one, other)
    )
    return len(a & b) >= _ALIKE * min(len(a), len(b))


def _notes(evidence: JobEvidence | None) -> tuple[str, ...]:
    """What was not collected, folded over ranks: a reader must know how far the look went."""
    if evidence is None:
        return ()
    by_text: dict[str, list[int]] = {}
    for rank in evidence.ranks:
        for text in rank.missing:
            by_text.setdefault(text, []).append(rank.rank)
    return tuple(f"{rank_phrase(ranks)}: {text}" for text, ranks in by_text.items())


def _without_cause(incident: Incident) -> Diagnosis:
    found = tuple(finding.id for finding in incident.findings[:3])
    if incident.symptom == "healthy":
        summary = incident.headline or "No function is off its peers or its past."
        return Diagnosis(
            cause="",
            verdict="supported",
            summary=summary,
            claims=(Claim(text=summary, citations=found),),
            disproved_by=("A window taken while the job is slow shows a rank apart.",),
        )
    summary = incident.headline or "What was collected does not name a cause."
    return Diagnosis(
        cause="",
        verdict="insufficient evidence",
        summary=summary,
        claims=(Claim(text=summary, citations=found),),
        next_steps=incident.not_seen or ("Collect stacks and Flight Recorder dumps of all ranks.",),
    )


def _fill(text: str, facts: dict[str, str]) -> str:
    """Put facts in. Not str.format: facts are foreign text and may hold braces themselves."""
    filled = re.sub(
        r"\{(place|ranks|hosts|s|es|is|has|its|it)\}", lambda match: facts[match.group(1)], text
    )
    return _capital(filled)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if re.match(r"(ranks?|all ranks) ", text) else text
