"""What hardware counters and the kernel's log say of a host or a device beneath a slow job.

- ``memory_pressure``: tasks of the host or cgroup stall for memory, pages come back from swap, the
  cgroup hits its limit, or the kernel kills for memory. Faults that read the disk alone are no
  sign: reading a mapped data set makes them as well.
- ``gpu_fault``: uncorrected ECC errors, or an Xid that says the device is broken. One that is
  often the program's own fault (13, 31) is not.
- ``gpu_throttled``: the driver says so, or the clock lies below the peers', on a rank that holds
  the others.
- ``nvlink_degraded``, ``pcie_degraded``: replays and errors of the link, a narrower link than the
  device has.

A counter says what is wrong, the ranks' work says what it costs: without a rank that is held up,
only what is a fault by itself (memory that stalls, a broken device) is a cause. These ask to
configure or to drain, never for a patch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from eroica import units
from eroica.localize.counterfactual import slowest
from eroica.localize.rules.draft import Draft, percent
from eroica.localize.rules.view import JobView
from eroica.records import Action, CounterUse, Finding, LogEvent

BROKEN_XIDS = frozenset({48, 62, 64, 79, 92, 94, 95, 119, 120, 140})
"""NVIDIA's catalog: double-bit ECC, halted micro-controller, failed row remapping, off the bus,
high ECC rate, contained and uncontained ECC, GSP errors, unrecovered ECC."""


@dataclass(frozen=True)
class Sign:
    """One thing that a counter or a log line says of a rank."""

    rank: int
    text: str
    share: float
    """Of the rank's time it takes; 0 where the sign does not say."""
    details: dict[str, float]


def memory_pressure(view: JobView) -> list[Draft]:
    """Return the cause that memory runs short on some hosts, if it does."""
    signs = [sign for rank in view.ranks for sign in _memory_signs(view, rank)]
    if not signs:
        return []
    stalled = {r: max((s.share for s in signs if s.rank == r), default=0.0) for r in view.ranks}
    top = max(stalled.values())
    ranks = tuple(r for r in sorted({s.rank for s in signs}) if stalled[r] >= 0.5 * top)
    others = [share for rank, share in stalled.items() if rank not in ranks]
    share = min(stalled[r] for r in ranks) - max(others, default=0.0)
    held = _held(view, ranks)
    share = max(share, held)
    if share < view.parameters.straggler_share:
        return []
    mine = [s for s in signs if s.rank in ranks]
    place = _on(view, ranks)
    whole = len(ranks) == view.num_ranks
    text = f"memory runs short {place}: {_once(s.text for s in mine)[0]}"
    return [
        _draft(
            view,
            "memory_pressure",
            ranks if not whole else view.ranks,
            mine,
            share,
            confidence=0.85 if len({s.text.split(" ")[0] for s in mine}) > 1 else 0.7,
            summary=f"{text}; it costs {percent(share)} of the step",
            action="configure",
            advice="Use less memory there (fewer loader workers, less prefetching, smaller caches, "
            "no second process on the host), or raise the limit.",
            against=[] if held else ["No rank there is seen to hold the others."],
        )
    ]


def _memory_signs(view: JobView, rank: int) -> list[Sign]:
    host = _host_counters(view, rank)
    own = _rank_counters(view, rank)
    parameters = view.parameters
    signs: list[Sign] = []
    for name, said in (("pressure.memory", "the host"), ("cgroup.pressure_memory", "its cgroup")):
        use = host.get(name) or own.get(name)
        if use is not None and use.mean >= parameters.memory_stall_share:
            text = f"tasks of {said} stall for memory {percent(use.mean)} of the time"
            signs.append(Sign(rank, text, use.mean, {name: use.mean}))
    swapped = host.get("vm.swap_in_pages_per_s")
    if swapped is not None and swapped.mean >= parameters.swap_in_pages_per_s:
        faults = own.get("rank.major_faults_per_s") or host.get("vm.major_faults_per_s")
        lost = min(1.0, (faults.mean if faults else 0.0) * parameters.fault_s)
        text = f"{swapped.mean:.0f} pages a second come back from swap"
        signs.append(Sign(rank, text, lost, {"vm.swap_in_pages_per_s": swapped.mean}))
    for counters in (own, host):
        for name, what in _MEMORY_COUNTS.items():
            use = counters.get(name)
            if use is not None and (use.increase or 0) > 0:
                signs.append(
                    Sign(rank, what.format(n=use.increase), 0.0, {name: use.increase or 0})
                )
    kills = [e for e in _events(view, rank) if e.kind in ("oom_kill", "worker_killed")]
    if kills:
        signs.append(Sign(rank, f"killed for memory: {kills[0].text.strip()[:120]}", 0.0, {}))
    return signs


_MEMORY_COUNTS = {
    "cgroup.memory_limit_hits": "limit of the cgroup hit {n:.0f} times",
    "cgroup.oom_kills": "killed for memory in the cgroup: {n:.0f} processes",
    "vm.oom_kills": "killed for memory on the host: {n:.0f} processes",
}


def device_faults(view: JobView) -> list[Draft]:
    """Return what device and link counters say of ranks, the surest first."""
    drafts = _broken_hosts(view)
    for rank in view.ranks:
        broken = _broken(view, rank)
        if broken:
            drafts.append(_device_draft(view, "gpu_fault", (rank,), broken, is_fault=True))
            continue
        for category, signs in (
            ("gpu_throttled", _throttled(view, rank)),
            ("pcie_degraded", _narrow(view, rank)),
            ("nvlink_degraded", _link_errors(view, rank)),
        ):
            if signs and _held(view, (rank,)) > 0:
                drafts.append(_device_draft(view, category, (rank,), signs, is_fault=False))
                break
    return drafts


def _device_draft(
    view: JobView, category: str, ranks: tuple[int, ...], signs: list[Sign], *, is_fault: bool
) -> Draft:
    held = _held(view, ranks)
    share = held or max((s.share for s in signs), default=0.0)
    what = {
        "gpu_fault": "the GPU of {who} is faulty",
        "gpu_throttled": "the GPU of {who} runs below its clock",
        "pcie_degraded": "the PCIe link of {who} is not what it should be",
        "nvlink_degraded": "NVLink of {who} makes errors",
    }[category].format(who=units.rank_phrase(ranks))
    cost = f"; it costs {percent(share)} of the step" if share else ""
    return _draft(
        view,
        category,
        ranks,
        signs,
        # A broken device stands whatever it costs today: it will end the job.
        share if share or not is_fault else None,
        confidence=0.9 if is_fault and held else (0.8 if held else 0.6),
        summary=f"{what}: {signs[0].text}{cost}",
        action="drain",
        advice="Drain the host, keep `nvidia-smi -q` and dmesg, then reset or replace the device.",
        against=[] if held else ["The rank is not seen to hold the others yet."],
    )


def _broken_hosts(view: JobView) -> list[Draft]:
    """Xids of a host with several ranks: the log names a PCI device, not whose it is.

    The ranks there that hold the others are meant, or all of them.
    """
    drafts = []
    for host in dict.fromkeys(h for h in view.hosts.values() if h):
        ranks = tuple(r for r in view.ranks if view.hosts.get(r) == host)
        events = view.evidence.log_events if view.evidence is not None else ()
        mine = [e for e in events if e.rank is None and e.host == host]
        signs = [sign for e in mine if (sign := _broken_sign(ranks[0], e)) is not None]
        if len(ranks) > 1 and signs:
            held = tuple(r for r in ranks if _held(view, (r,)) > 0)
            drafts.append(_device_draft(view, "gpu_fault", held or ranks, signs, is_fault=True))
    return drafts


def _broken_sign(rank: int, event: LogEvent) -> Sign | None:
    number = event.fields.get("xid")
    if event.kind == "xid" and number in BROKEN_XIDS:
        meaning = event.fields.get("meaning") or event.text.strip()[:120]
        return Sign(rank, f"Xid {number}: {meaning}", 0.0, {"xid": float(number)})
    if event.kind == "ecc" and "ncorrect" in event.text:
        return Sign(rank, event.text.strip()[:120], 0.0, {})
    return None


def _broken(view: JobView, rank: int) -> list[Sign]:
    signs: list[Sign] = []
    for name, use in _rank_counters(view, rank).items():
        if name.endswith(".ecc_uncorrected_errors") and (use.increase or 0) > 0:
            text = f"{use.increase:.0f} uncorrected ECC errors while it ran"
            signs.append(Sign(rank, text, 0.0, {name: use.increase or 0}))
    found = [_broken_sign(rank, event) for event in _events(view, rank)]
    return signs + [sign for sign in found if sign is not None]


def _throttled(view: JobView, rank: int) -> list[Sign]:
    signs: list[Sign] = []
    for name, use in _rank_counters(view, rank).items():
        what = name.partition(".")[2]
        if what == "throttled" and use.mean >= view.parameters.throttled_share:
            text = f"the driver throttles it {percent(use.mean)} of the time"
            signs.append(Sign(rank, text, 0.0, {name: use.mean}))
        elif what == "sm_clock_hz":
            usual = _peers(view, rank, ".sm_clock_hz")
            if usual and use.mean < view.parameters.lower_rate * usual:
                text = f"its clock is {use.mean / 1e6:.0f} MHz, {usual / 1e6:.0f} on the peers"
                signs.append(Sign(rank, text, 0.0, {name: use.mean}))
    return signs


def _narrow(view: JobView, rank: int) -> list[Sign]:
    counters = _rank_counters(view, rank)
    signs: list[Sign] = []
    for name, use in counters.items():
        device, _, what = name.partition(".")
        if what == "link_width":
            limit = counters.get(f"{device}.link_width_limit")
            usual = max(_peers(view, rank, ".link_width") or 0.0, 0.0)
            if limit is not None and use.high < limit.high and use.high < usual:
                text = f"its link is x{use.high:.0f}, x{usual:.0f} on the peers"
                signs.append(Sign(rank, text, 0.0, {name: use.high}))
        elif what == "link_replays" and _rate(use) > view.parameters.link_errors_per_s:
            text = f"{use.increase:.0f} replays on its link"
            signs.append(Sign(rank, text, 0.0, {name: use.increase or 0}))
    return signs


def _link_errors(view: JobView, rank: int) -> list[Sign]:
    return [
        Sign(rank, f"{use.increase:.0f} {name.partition('.')[2]}", 0.0, {name: use.increase or 0})
        for name, use in _rank_counters(view, rank).items()
        if ".nvlink_" in name
        and name.endswith("_errors")
        and _rate(use) > view.parameters.link_errors_per_s
    ]


def _rate(use: CounterUse) -> float:
    return (use.increase or 0.0) / use.seconds if use.seconds else 0.0


def _peers(view: JobView, rank: int, ending: str) -> float | None:
    """The other ranks' median of a counter; None with fewer than two of them."""
    found = [
        use.mean
        for other in view.ranks
        if other != rank
        for name, use in _rank_counters(view, other).items()
        if name.endswith(ending)
    ]
    return float(np.median(found)) if len(found) >= 2 else None


def _held(view: JobView, ranks: tuple[int, ...]) -> float:
    """What the step would win were these ranks like their peers; 0 where they hold nobody."""
    if not view.rows or view.num_ranks < 2:
        return 0.0
    found = slowest(view.sum(np.ones(len(view.rows), dtype=bool), view.work_FR))
    if found is None or not {view.ranks[p] for p in found.positions} <= set(ranks):
        return 0.0
    return max(0.0, found.share)


def _rank_counters(view: JobView, rank: int) -> dict[str, CounterUse]:
    one = view.by_rank.get(rank)
    return one.counters if one is not None else {}


def _host_counters(view: JobView, rank: int) -> dict[str, CounterUse]:
    name = view.hosts.get(rank, "")
    hosts = view.evidence.hosts if view.evidence is not None else ()
    return next((h.counters for h in hosts if h.host == name), {})


def _events(view: JobView, rank: int) -> list[LogEvent]:
    """What the logs say of a rank, or of a host that is this rank's alone."""
    if view.evidence is None:
        return []
    host = view.hosts.get(rank, "")
    alone = sum(h == host for h in view.hosts.values()) == 1
    return [
        e
        for e in view.evidence.log_events
        if e.rank == rank or (e.rank is None and e.host and e.host == host and alone)
    ]


def _on(view: JobView, ranks: tuple[int, ...]) -> str:
    hosts = tuple(dict.fromkeys(h for r in ranks if (h := view.hosts.get(r))))
    if len(ranks) == view.num_ranks and len(hosts) <= 1:
        return f"on {hosts[0]}" if hosts else "on all ranks"
    return f"on {', '.join(hosts[:4])}" if hosts else f"on {units.rank_phrase(ranks)}"


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _draft(
    view: JobView,
    category: str,
    ranks: tuple[int, ...],
    signs: list[Sign],
    share: float | None,
    *,
    confidence: float,
    summary: str,
    action: Action,
    advice: str,
    against: list[str],
) -> Draft:
    whole = len(ranks) == view.num_ranks
    return Draft(
        rule="machine",
        category=category,
        ranks="all" if whole else ranks,
        places=(),
        share=share,
        rank_share=view.parameters.common_share if share is None else None,
        confidence=confidence,
        summary=summary,
        action=action,
        why=[f"{text[0].upper()}{text[1:]}." for text in _once(s.text for s in signs)[:6]],
        against=against,
        advice=advice,
        findings=[
            Finding(
                id="", kind="counter", rank=s.rank, ranks=(s.rank,), text=s.text, details=s.details
            )
            for s in signs[:8]
        ],
        victims=tuple(r for r in view.ranks if r not in ranks),
        hosts=tuple(dict.fromkeys(h for r in ranks if (h := view.hosts.get(r)))),
        claims=share or 0.0,
    )
