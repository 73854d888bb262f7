"""Joins the reports of a job's hosts to one result, and says which hosts are missing."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from eroica.columns import RankPatterns
from eroica.errors import InputError
from eroica.read.saved import merge_saved
from eroica.records import Warning
from eroica.units import rank_phrase
from eroica.watch.agreement import joined_hint
from eroica.watch.membership import Membership
from eroica.watch.result import WatchResult
from eroica.watch.summaries import summarize_profiles
from eroica.watch.wire import Report, Status, decode_report, packed


def make_report(result: WatchResult, incident: int, first_rank: int, host: str) -> Report:
    """Return what this host sends of its result."""
    return Report(
        first_rank=first_rank,
        host=host,
        incident=incident,
        evidence=result.evidence,
        hint=result.hint or "",
        window=result.window,
        patterns=packed(result.patterns),
        baseline=packed(result.baseline),
    )


def join_reports(
    result: WatchResult,
    data: Sequence[bytes],
    *,
    host: str,
    membership: Membership,
    lost: Sequence[Status],
    late: Sequence[Status] = (),
    problems: Sequence[str] = (),
) -> WatchResult:
    """Add the other hosts' reports to this host's result; missing hosts become warnings."""
    reports: list[Report] = []
    patterns = [replace(one, host=host) for one in result.patterns]
    baseline = list(result.baseline)
    warnings = [Warning(file=None, what=problem) for problem in problems]
    for raw in data:
        try:
            report = decode_report(raw)
            more, past = report.unpacked()
        except InputError as error:
            warnings.append(Warning(file=None, what=str(error).replace("\n", "; ")))
            continue
        if report.window != result.window:
            # Of other steps: shares may be compared, arrivals in collectives may not.
            more = [replace(one, arrivals=None) for one in more]
        reports.append(report)
        patterns += [replace(one, host=report.host) for one in more]
        baseline += [replace(one, host=report.host) for one in past]
        theirs = report.evidence.warnings
        warnings += [msgspec.structs.replace(w, what=f"{report.host}: {w.what}") for w in theirs]
    parts = [msgspec.structs.replace(one.evidence, warnings=()) for one in reports]
    evidence = merge_saved(result.evidence, [result.evidence, *parts], ())
    present = {rank.rank for rank in evidence.ranks} | {one.rank for one in patterns}
    world_size = max(evidence.world_size, membership.world_size)
    warnings += missing_hosts(set(range(world_size)) - present, membership, lost, late)
    hint = joined_hint(result.hint, [one.hint for one in reports])
    evidence = msgspec.structs.replace(
        evidence,
        world_size=world_size,
        warnings=(*evidence.warnings, *warnings),
        symptom_hint=hint if hint in ("stuck", "failed") else evidence.symptom_hint,
    )
    result.evidence, result.hint = evidence, hint
    result.patterns = _of_one_kind(patterns, evidence.source_root, result)
    result.baseline = baseline
    return result


def missing_hosts(
    missing: set[int],
    membership: Membership,
    lost: Sequence[Status],
    late: Sequence[Status] = (),
) -> list[Warning]:
    """Say which ranks nothing came of, by host where it is known.

    ``lost`` hosts are heard no more; ``late`` ones are, but sent no evidence in time.
    """
    found: list[Warning] = []
    rest = set(missing)
    for status in sorted([*lost, *late], key=lambda one: one.first_rank):
        ranks = sorted(rest & set(status.ranks))
        rest -= set(ranks)
        if ranks:
            why = "sent nothing in time" if status in late else "fell silent: nothing came of it"
            what = f"host {status.host} ({rank_phrase(ranks)}) {why}"
            found.append(Warning(file=None, what=what))
    by_name: dict[str, list[int]] = {}
    for rank in sorted(rest):
        by_name.setdefault(membership.name_of(rank) or "", []).append(rank)
    for name, ranks in by_name.items():
        where = f"host {name} ({rank_phrase(ranks)})" if name else rank_phrase(ranks)
        what = f"{where}: no agent was heard of; start eroica on every host of the job"
        found.append(Warning(file=None, what=what))
    return found


def _of_one_kind(
    patterns: list[RankPatterns], source_root: str | None, result: WatchResult
) -> list[RankPatterns]:
    """Profiled and sampled patterns do not compare: where some are sampled, sampled are all."""
    if len({one.is_sampled for one in patterns}) < 2:
        return sorted(patterns, key=lambda one: one.rank)
    ranks = [rank for rank in result.evidence.ranks if rank.samples is not None]
    found = [
        one
        for rank in ranks
        if rank.samples is not None
        for one in summarize_profiles(
            {rank.rank: rank.samples}, project_root=source_root, host=rank.host
        )
    ]
    if len(found) >= len(patterns):
        return found
    profiled = [one for one in patterns if not one.is_sampled]
    sampled = [one for one in patterns if one.is_sampled]
    return max(profiled, sampled, key=len)
