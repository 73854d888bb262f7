"""Devices and their links, by the driver's counters and the kernel's log.

- ``gpu_fault``: uncorrected ECC errors, or an Xid that says the device is broken. One that is
  often the program's own fault (13, 31) is not. It is a cause even before it costs anything.
- ``gpu_throttled``: the driver says so, or the clock lies below the peers'.
- ``nvlink_degraded``, ``pcie_degraded``: replays and errors of the link, a narrower link than the
  device and its peers have.

The last two only where the rank holds the others. All ask to drain, never for a patch.
"""

from eroica import units
from eroica.localize.rules.draft import Draft, percent
from eroica.localize.rules.signs import (
    Machine,
    Sign,
    sign_draft,
)
from eroica.localize.rules.view import JobView
from eroica.records import CounterUse, LogEvent

BROKEN_XIDS = frozenset({48, 62, 64, 79, 92, 94, 95, 119, 120, 140})
"""NVIDIA's catalog: double-bit ECC, halted micro-controller, failed row remapping, off the bus,
high ECC rate, contained and uncontained ECC, GSP errors, unrecovered ECC."""


def device_faults(view: JobView) -> list[Draft]:
    """Return what device and link counters say of ranks, the surest first."""
    machine = Machine(view)
    drafts = _broken_hosts(machine)
    for rank in view.ranks:
        broken = _broken(machine, rank)
        if broken:
            drafts.append(_device_draft(machine, "gpu_fault", (rank,), broken, is_fault=True))
            continue
        for category, signs in (
            ("gpu_throttled", _throttled(machine, rank)),
            ("pcie_degraded", _narrow(machine, rank)),
            ("nvlink_degraded", _link_errors(machine, rank)),
        ):
            if signs and machine.held((rank,)) > 0:
                drafts.append(_device_draft(machine, category, (rank,), signs, is_fault=False))
                break
    return drafts


def _device_draft(
    machine: Machine, category: str, ranks: tuple[int, ...], signs: list[Sign], *, is_fault: bool
) -> Draft:
    held = machine.held(ranks)
    share = held or max((s.share for s in signs), default=0.0)
    what = {
        "gpu_fault": "the GPU of {who} is faulty",
        "gpu_throttled": "the GPU of {who} runs below its clock",
        "pcie_degraded": "the PCIe link of {who} is not what it should be",
        "nvlink_degraded": "NVLink of {who} makes errors",
    }[category].format(who=units.rank_phrase(ranks))
    cost = f"; it costs {percent(share)} of the step" if share else ""
    return sign_draft(
        machine.view,
        category,
        ranks,
        signs,
        # A broken device stands whatever it costs today: it will end the job.
        None if is_fault and share < machine.view.parameters.straggler_share else share,
        confidence=0.9 if is_fault and held else (0.8 if held else 0.6),
        summary=f"{what}: {signs[0].text}{cost}",
        action="drain",
        advice="Drain the host, keep `nvidia-smi -q` and dmesg, then reset or replace the device.",
        against=[] if held else ["The rank is not seen to hold the others yet."],
    )


def _broken_hosts(machine: Machine) -> list[Draft]:
    """Xids of a host with several ranks: the log names a PCI device, not whose it is.

    The ranks there that hold the others are meant, or all of them.
    """
    drafts = []
    by_host: dict[str, list[int]] = {}
    for rank in machine.view.ranks:
        by_host.setdefault(machine.view.hosts.get(rank, ""), []).append(rank)
    for host, members in by_host.items():
        ranks = tuple(members)
        events = machine.host_events(host) if host else []
        signs = [sign for e in events if (sign := _broken_sign(ranks[0], e)) is not None]
        if len(ranks) > 1 and signs:
            held = tuple(r for r in ranks if machine.held((r,)) > 0)
            drafts.append(_device_draft(machine, "gpu_fault", held or ranks, signs, is_fault=True))
    return drafts


def _broken_sign(rank: int, event: LogEvent) -> Sign | None:
    number = event.fields.get("xid")
    if event.kind == "xid" and number in BROKEN_XIDS:
        meaning = event.fields.get("meaning") or event.text.strip()[:120]
        return Sign(rank, f"Xid {number}: {meaning}", 0.0, {"xid": float(number)})
    if event.kind == "ecc" and "ncorrect" in event.text:
        return Sign(rank, event.text.strip()[:120], 0.0, {})
    return None


def _broken(machine: Machine, rank: int) -> list[Sign]:
    signs: list[Sign] = []
    for name, use in machine.counters(rank).items():
        if name.endswith(".ecc_uncorrected_errors") and (use.increase or 0) > 0:
            text = f"{use.increase:.0f} uncorrected ECC errors while it ran"
            signs.append(Sign(rank, text, 0.0, {name: use.increase or 0}))
    found = [_broken_sign(rank, event) for event in machine.events(rank, ("xid", "ecc"))]
    return signs + [sign for sign in found if sign is not None]


def _throttled(machine: Machine, rank: int) -> list[Sign]:
    signs: list[Sign] = []
    for name, use in machine.counters(rank).items():
        what = name.partition(".")[2]
        if what == "throttled" and use.mean >= machine.view.parameters.throttled_share:
            text = f"the driver throttles it {percent(use.mean)} of the time"
            signs.append(Sign(rank, text, 0.0, {name: use.mean}))
        elif what == "sm_clock_hz":
            usual = machine.usual.get("sm_clock_hz")
            if usual and use.mean < machine.view.parameters.lower_rate * usual:
                text = f"its clock is {use.mean / 1e6:.0f} MHz, {usual / 1e6:.0f} on the peers"
                signs.append(Sign(rank, text, 0.0, {name: use.mean}))
    return signs


def _narrow(machine: Machine, rank: int) -> list[Sign]:
    counters = machine.counters(rank)
    signs: list[Sign] = []
    for name, use in counters.items():
        device, _, what = name.partition(".")
        if what == "link_width":
            limit = counters.get(f"{device}.link_width_limit")
            usual = machine.usual.get("link_width", 0.0)
            if limit is not None and use.high < limit.high and use.high < usual:
                text = f"its link is x{use.high:.0f}, x{usual:.0f} on the peers"
                signs.append(Sign(rank, text, 0.0, {name: use.high}))
        elif what == "link_replays" and _rate(use) > machine.view.parameters.link_errors_per_s:
            text = f"{use.increase:.0f} replays on its link"
            signs.append(Sign(rank, text, 0.0, {name: use.increase or 0}))
    return signs


def _link_errors(machine: Machine, rank: int) -> list[Sign]:
    return [
        Sign(rank, f"{use.increase:.0f} {name.partition('.')[2]}", 0.0, {name: use.increase or 0})
        for name, use in machine.counters(rank).items()
        if ".nvlink_" in name
        and name.endswith("_errors")
        and _rate(use) > machine.view.parameters.link_errors_per_s
    ]


def _rate(use: CounterUse) -> float:
    return (use.increase or 0.0) / use.seconds if use.seconds else 0.0
