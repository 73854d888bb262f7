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
        summary=cause.summary,
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
    places = tuple(dict.fromkeys(filter(None, map(citation, cause.functions[:2]))))
    own = tuple(key for key in cause.findings if key in findings)
    how = _fill(known.mechanism, facts) + _HEDGE[_verdict(cause)]
    claims = [Claim(text=how, citations=places + own)]
    for sentence in cause.why:
        named = tuple(key for key in _FINDING_ID.findall(sentence) if key in findings)
        claims.append(Claim(text=sentence, citations=named or own or places))
    said = " ".join([cause.summary, *(claim.text for claim in claims)])
    measured = [_finding_claim(findings[key]) for key in own]
    fresh = [claim for claim in measured if claim.text and claim.text not in said]
    claims += fresh[:_MAX_PATTERN_CLAIMS]
    if cause.victims:
        text = f"{rank_phrase(cause.victims)} waited for {facts['ranks']}: victims, not causes."
        claims.append(Claim(text=_capital(text), citations=own or places))
    if cause.share is not None:
        text = f"Without it a step would take {units.share(cause.share)} less time."
        claims.append(Claim(text=text, citations=own or places))
    return tuple(claim for claim in claims if claim.text)


def _finding_claim(finding: Finding) -> Claim:
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
    return Claim(text=text, citations=(finding.id,))


def _next_steps(
    incident: Incident, cause: Cause, known: Knowledge, facts: dict[str, str]
) -> tuple[str, ...]:
    steps = [cause.advice] if cause.advice else []
    steps += [_fill(step, facts) for step in known.steps]
    if cause.confidence < _SUPPORTED or not cause.findings:
        steps += incident.not_seen
    return tuple(dict.fromkeys(steps))


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
