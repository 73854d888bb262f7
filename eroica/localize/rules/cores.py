"""Cores that ranks were ready to use and did not get: a quota, other processes, the hypervisor.

The kernel counts how long a thread was ready to run and was not let. That a job fights with itself
for cores is the rule of settings; here others take them. What they take is counted as their part
of all that the host does: without them the job's own threads would still queue.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eroica import units
from eroica.localize.rules.draft import Draft, percent
from eroica.localize.rules.view import JobView
from eroica.records import Finding, HostEvidence, RankEvidence

STOPPED = 0.10  # of a quota's periods: fewer cost nothing that can be seen
STARVED = 0.15  # of the time, beyond what the ranks of other hosts wait
TAKEN = 0.25  # of a host's cores by others: below, daemons and monitoring
LEFT = 0.75  # of a host's cores in use: fuller, and ranks queue for cores without any neighbor


def cores_taken(view: JobView) -> list[Draft]:
    """Return a cause per host whose ranks wait for cores that others hold."""
    return list(_starved(view))


@dataclass(frozen=True)
class _Thief:
    """Who takes the cores: the part of the waiting that goes with it, and how to say so."""

    part: float
    text: str
    advice: str
    details: dict[str, object]


def _starved(view: JobView) -> Iterator[Draft]:
    wait = {
        rank: use.mean
        for rank, one in view.by_rank.items()
        if (use := one.counters.get("training_thread.wait")) is not None
    }
    by_host: dict[str, list[int]] = {}
    for rank in wait:
        by_host.setdefault(view.by_rank[rank].host, []).append(rank)
    for host in view.evidence.hosts if view.evidence else ():
        members = by_host.get(host.host, [])
        if not members:
            continue
        queued = sum(wait[rank] for rank in members)
        thief = _thief(host, [view.by_rank[rank] for rank in members], queued)
        mine = set(members)
        peers = [value for rank, value in wait.items() if rank not in mine]
        if thief is None and (thief := _on_few_cores(host)) is not None:
            peers = list(wait.values())  # most ranks of the host have cores enough
        if thief is None:
            continue
        usual = float(np.median(peers)) if peers else 0.0
        lost = {rank: thief.part * max(0.0, wait[rank] - usual) for rank in members}
        ranks = tuple(rank for rank in members if lost[rank] >= STARVED)
        if ranks:
            yield _starved_draft(view, host, ranks, thief, max(lost.values()))


def _on_few_cores(host: HostEvidence) -> _Thief | None:
    """Others that use little of the host, but may sit on the very cores a rank is bound to.

    Only where cores are left: on a full host its own ranks wait for each other, and not alike.
    """
    taken = sum(one.cores for one in host.neighbors)
    busy = host.counters.get("host.busy_cores")
    if taken < STARVED or busy is None or busy.mean > LEFT * host.num_cpus:
        return None
    who = _names(host)
    return _Thief(
        1.0,
        f"other processes take {taken:.1f} cores, among them those of few ranks: {who}",
        "Bind the ranks to cores that nobody else uses (taskset, cpuset, --cpu-bind).",
        {"taken_cores": round(taken, 2), "num_cpus": host.num_cpus},
    )


def _names(host: HostEvidence) -> str:
    return ", ".join(f"{one.name} (pid {one.pid}, {one.cores:.1f})" for one in host.neighbors[:3])


def _thief(host: HostEvidence, ranks: list[RankEvidence], queued: float) -> _Thief | None:
    """``queued``: cores' worth of waiting of the ranks, of which a thief explains what it takes."""
    for one in ranks:
        stopped, quota = (one.counters.get(f"cgroup.{n}") for n in ("throttled", "quota_cores"))
        if stopped is not None and stopped.mean >= STOPPED:
            cores = f"{quota.mean:.3g} cores" if quota is not None else "its quota"
            return _Thief(
                1.0,
                f"the CPU quota ({cores}) stops the job in {percent(stopped.mean)} of its periods",
                "Raise the CPU limit of the container (or take it away), or use fewer threads and "
                "loader workers.",
                {"throttled": stopped.mean, "quota_cores": quota.mean if quota else None},
            )
    busy = host.counters.get("host.busy_cores")
    taken = sum(one.cores for one in host.neighbors)
    if busy is not None and host.num_cpus and taken >= TAKEN * host.num_cpus:
        return _Thief(
            min(1.0, taken / max(busy.mean, 1e-9)),
            f"other processes take {taken:.1f} of {host.num_cpus} cores: {_names(host)}",
            "Move the other processes off the host, or give the ranks cores of their own "
            "(cpuset, taskset).",
            {"taken_cores": round(taken, 2), "num_cpus": host.num_cpus},
        )
    stolen = host.counters.get("host.stolen_cores")
    if stolen is not None and host.num_cpus and stolen.mean >= STARVED * host.num_cpus:
        return _Thief(
            min(1.0, stolen.mean / max(queued, 1e-9)),
            f"the hypervisor takes {stolen.mean:.1f} of {host.num_cpus} cores away",
            "Move the job to a machine that is not shared, or ask for dedicated cores.",
            {"stolen_cores": stolen.mean},
        )
    return None


def _starved_draft(
    view: JobView, host: HostEvidence, ranks: tuple[int, ...], thief: _Thief, lost: float
) -> Draft:
    who = units.rank_phrase(ranks)
    text = f"on {host.host or 'the host'} {thief.text}"
    waits = {str(r): round(view.by_rank[r].counters["training_thread.wait"].mean, 4) for r in ranks}
    return Draft(
        rule="cores",
        category="cpu_oversubscription",
        ranks="all" if set(ranks) == set(view.ranks) else ranks,
        places=(),
        share=lost,
        confidence=0.85,
        summary=f"{text}; {who} wait{'s' if len(ranks) == 1 else ''} for a core "
        f"{percent(max(waits.values()))} of the time",
        action="configure",
        why=[
            f"The kernel counts how long a thread is ready to run and is not let: on {who} "
            f"{percent(max(waits.values()))} of the time.",
            f"{text[0].upper()}{text[1:]}.",
        ],
        against=[] if thief.part == 1 else ["The job's own threads queue for cores as well."],
        advice=thief.advice,
        findings=[_finding(text, ranks, {"waiting": waits, **thief.details})],
        hosts=(host.host,) if host.host else (),
        victims=tuple(rank for rank in view.ranks if rank not in ranks),
        claims=lost,
    )


def _finding(text: str, ranks: tuple[int, ...], details: dict[str, object]) -> Finding:
    return Finding(
        id="",
        kind="counter",
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks,
        text=text,
        details=details,
    )
