"""The parts of an evidence pack as text: one fact a line, foreign text made inert.

Names, log lines and file names are written by whoever wrote the job; ``inert`` keeps each on its
line, so that none can look like a heading, a fence or an instruction of ours.
"""

from collections.abc import Iterator

import msgspec

from eroica import units
from eroica.explain.rules import place_text, rank_phrase, ranks_text
from eroica.explain.secrets import is_secret_name
from eroica.records import (
    Cause,
    Finding,
    Incident,
    JobEvidence,
    Place,
    RankEvidence,
    ThreadStack,
)
from eroica.text import visible

_MAX_FINDINGS = 40
_MAX_FRAMES = 30
_MAX_LOG_LINES = 25
_MAX_TEXT = 400
_DULL_SETTINGS = ("env.TORCHELASTIC_", "env.PYTHONPATH", "threads")


def inert(text: str, limit: int = _MAX_TEXT) -> str:
    """Return foreign text on one line, with what is invisible shown, cut to a limit."""
    shown = visible(text).replace("\n", "\\n").replace("\t", " ")
    return shown if len(shown) <= limit else f"{shown[:limit]}[...]"


def verdict(incident: Incident, cause: Cause | None) -> str:
    """What the engine concluded, before any model."""
    job = incident.job
    rows = [f"symptom: {incident.symptom}", f"headline: {inert(incident.headline)}"]
    if job.step_ms.now is not None:
        before = (
            ""
            if job.step_ms.before is None
            else f", before {units.duration(job.step_ms.before * units.NS_PER_MS)}"
        )
        rows.append(f"step time: {units.duration(job.step_ms.now * units.NS_PER_MS)}{before}")
    if incident.onset:
        rows.append(f"onset: {inert(incident.onset)}")
    if cause is None:
        return "\n".join([*rows, "cause: none found"])
    rows += [
        f"cause: {inert(f'{cause.id} {cause.category}')}",
        f"summary: {inert(cause.summary)}",
        f"ranks: {ranks_text(cause)}",
        f"confidence: {cause.confidence:.2f}",
        f"action: {cause.action}",
    ]
    if cause.hosts:
        rows.append(f"hosts: {', '.join(inert(host) for host in cause.hosts[:20])}")
    if cause.share is not None:
        rows.append(f"share of step time: {units.share(cause.share)}")
    names = ("guilty function", "caller or set-up")
    for name, place in zip(names, cause.functions, strict=False):
        rows.append(f"{name}: {inert(place_text(place))}")
    if cause.victims:
        rows.append(f"victims: {rank_phrase(cause.victims)}")
    rows += [f"why: {inert(text)}" for text in cause.why]
    rows += [f"against: {inert(text)}" for text in cause.against]
    return "\n".join(rows)


def findings(incident: Incident, cause: Cause | None) -> str:
    """Every finding a line; those of the cause first."""
    own = set(cause.findings) if cause else set()
    ordered = sorted(incident.findings, key=lambda finding: finding.id not in own)
    rows = [_finding(finding) for finding in ordered[:_MAX_FINDINGS]]
    if len(ordered) > _MAX_FINDINGS:
        rows.append(f"({len(ordered) - _MAX_FINDINGS} more findings are not shown)")
    return "\n".join(rows)


def _finding(finding: Finding) -> str:
    fields = [inert(f"{finding.id} {finding.kind}")]
    ranks = finding.ranks or (() if finding.rank is None else (finding.rank,))
    if ranks:
        fields.append(rank_phrase(ranks))
    if finding.function is not None:
        place = Place(
            name=finding.function.name, file=finding.function.file, line=finding.function.line
        )
        fields.append(f"function {inert(place_text(place))}")
    vector = [
        f"{name}={value:.3g}"
        for name, value in (
            ("beta", finding.beta),
            ("mu", finding.mu),
            ("sigma", finding.sigma),
            ("expected_distance", finding.expected_distance),
            ("differential_distance", finding.differential_distance),
            ("threshold", finding.threshold),
        )
        if value is not None
    ]
    vector += [f"peers' median {inert(n)}={value:.3g}" for n, value in finding.peers.items()]
    if vector:
        fields.append(" ".join(vector))
    if finding.text:
        fields.append(inert(finding.text))
    if finding.function is not None and finding.function.stack:
        places = " < ".join(place_text(place) for place in finding.function.stack[:5])
        fields.append(inert(f"called from {places}"))
    if finding.details:
        fields.append(inert(f"details {finding.details}"))
    return " | ".join(fields)


def pair(cause: Cause | None, evidence: JobEvidence | None) -> Iterator[tuple[str, RankEvidence]]:
    """Yield a guilty and a healthy rank, as far as both are there."""
    if evidence is None:
        return
    odd = set() if cause is None or cause.ranks == "all" else set(cause.ranks)
    guilty = next((rank for rank in evidence.ranks if rank.rank in odd), None)
    healthy = next((rank for rank in evidence.ranks if rank.rank not in odd), None)
    if guilty is not None:
        yield "the guilty", guilty
    if healthy is not None:
        yield "a healthy" if odd else "a", healthy


def main_thread(rank: RankEvidence) -> ThreadStack | None:
    """The training thread of the newest sample."""
    for process in reversed(rank.stacks):
        for thread in process.threads:
            if thread.is_main:
                return thread
        if process.threads:
            return process.threads[0]
    return None


def frames(rank: RankEvidence) -> tuple[Place, ...]:
    """Where a rank stands: its training thread's frames, else those of its exit or last stall."""
    thread = main_thread(rank)
    if thread is not None:
        return thread.frames[:_MAX_FRAMES]
    if rank.exit is not None and rank.exit.frames:
        return rank.exit.frames[:_MAX_FRAMES]
    for stall in reversed(rank.stalls):
        for one in stall.stacks.threads:
            if one.is_main:
                return one.frames[:_MAX_FRAMES]
    return ()


def near(place: Place, root: str | None) -> Place:
    """Return a place with its file as short as it stays clear: below the project, or a package."""
    file = place.file or ""
    for folder in ("/site-packages/", "/dist-packages/"):
        file = file.rpartition(folder)[2]
    if root and file.startswith(root.rstrip("/") + "/"):
        file = file[len(root.rstrip("/")) + 1 :]
    return msgspec.structs.replace(place, file=file or None)


def difference(incident: Incident, cause: Cause | None, evidence: JobEvidence | None) -> str:
    """The same thing on the guilty and on a healthy rank: pattern, stack, step time."""
    rows: list[str] = []
    own = set(cause.findings) if cause else set()
    for finding in incident.findings:
        if finding.id in own and finding.peers and finding.function is not None:
            names = [name for name in ("beta", "mu", "sigma") if name in finding.peers]
            guilty = " ".join(f"{name}={getattr(finding, name) or 0:.3g}" for name in names)
            peers = " ".join(f"{name}={finding.peers[name]:.3g}" for name in names)
            rows.append(f"{finding.id} {inert(finding.function.name)}")
            rows += [f"  guilty:  {guilty}", f"  healthy: {peers}"]
    for about, rank in pair(cause, evidence):
        rows.append(f"{about} rank {rank.rank}")
        if rank.steps is not None and rank.steps.duration_ns:
            ordered = sorted(rank.steps.duration_ns)
            median = units.duration(ordered[len(ordered) // 2])
            rows.append(
                f"  median step {median}, last {units.duration(rank.steps.duration_ns[-1])}"
            )
        if rank.exit is not None:
            rows.append(f"  exit: {inert(str(rank.exit.message or rank.exit.exit_code))}")
        root = evidence.source_root if evidence else None
        rows += [f"  {inert(place_text(near(place, root)))}" for place in frames(rank)]
    return "\n".join(rows)


def waiting(incident: Incident, evidence: JobEvidence | None) -> str:
    """Who waits where, ranks alike on one line, and each rank's last collectives."""
    rows = []
    for row in incident.ranks_table[:20]:
        since = "" if row.since_ns is None else f" since {units.duration(row.since_ns)}"
        text = f"{rank_phrase(row.ranks)}: {row.last_collective} at {row.place}{since}"
        rows.append(inert(f"{text} {row.note}".strip()))
    groups: dict[str, list[int]] = {}
    for rank in evidence.ranks if evidence else ():
        if rank.flight is not None and rank.flight.entries:
            tail = " -> ".join(
                f"{entry.op} #{entry.sequence} {'done' if entry.is_retired else 'open'}"
                for entry in rank.flight.entries[-5:]
            )
            groups.setdefault(tail, []).append(rank.rank)
    rows += [inert(f"last calls of {rank_phrase(r)}: {t}") for t, r in groups.items()]
    return "\n".join(rows[:40])


def environment(incident: Incident, evidence: JobEvidence | None) -> str:
    job = incident.job
    rows = [
        f"world size {job.world_size}, {max(len(job.hosts), 1)} hosts, "
        f"backend {inert(job.backend)}",
        f"command: {inert(' '.join(job.command))}" if job.command else "",
    ]
    values: dict[str, dict[str, list[int]]] = {}
    for rank in evidence.ranks if evidence else ():
        for setting in rank.settings:
            if setting.key.startswith(_DULL_SETTINGS):
                continue
            is_secret = is_secret_name(setting.key.removeprefix("env."))
            text = "[secret]" if is_secret and setting.value else inert(str(setting.value), 200)
            where = f" set at {inert(place_text(setting.places[0]))}" if setting.places else ""
            values.setdefault(setting.key, {}).setdefault(text + where, []).append(rank.rank)
    for key, by_text in list(values.items())[:60]:
        for text, ranks in list(by_text.items())[:4]:
            who = "" if len(by_text) == 1 else f" ({rank_phrase(ranks)})"
            rows.append(f"{inert(key)} = {text}{who}")
    return "\n".join(row for row in rows if row)


def logs(cause: Cause | None, evidence: JobEvidence | None) -> str:
    """Log events that matter, then the tail of the guilty rank's log."""
    if evidence is None:
        return ""
    rows = [f"{inert(event.kind)}: {inert(event.text)}" for event in evidence.log_events[:15]]
    for about, rank in pair(cause, evidence):
        tail = rank.log_tail.splitlines()[-_MAX_LOG_LINES:]
        if tail and about != "a healthy":
            rows.append(f"last lines of rank {rank.rank}")
            rows += [f"  | {inert(line)}" for line in tail]
    return "\n".join(rows)


def unseen(incident: Incident, evidence: JobEvidence | None) -> str:
    """What was not collected: a model must not take silence for absence."""
    rows = [inert(text) for text in incident.not_seen]
    if incident.job.missing_ranks:
        rows.append(f"nothing from {rank_phrase(incident.job.missing_ranks)}")
    folded: dict[str, list[int]] = {}
    for rank in evidence.ranks if evidence else ():
        for text in rank.missing:
            folded.setdefault(text, []).append(rank.rank)
    rows += [inert(f"{rank_phrase(ranks)}: {text}") for text, ranks in folded.items()]
    rows += [inert(f"{w.file or 'run'}: {w.what}") for w in incident.warnings[:20]]
    return "\n".join(rows)


def others(incident: Incident, cause: Cause | None) -> str:
    """The other causes of the incident, a line each."""
    return "\n".join(
        inert(f"{one.id} {one.category}: {one.summary} (confidence {one.confidence:.2f})")
        for one in incident.causes
        if cause is None or one.id != cause.id
    )
