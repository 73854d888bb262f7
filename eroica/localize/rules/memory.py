"""Memory that runs short on a host or in a cgroup, so that ranks stall.

Evidence: tasks that stall for memory, pages that come back from swap, a cgroup at its limit, kills
by the kernel. Faults that read the disk alone are no sign: reading a mapped data set makes them as
well. It is a cause where the stalls cost something, or where a rank there holds the others; it asks
to configure, never for a patch.
"""

from eroica.localize.rules.draft import Draft, percent
from eroica.localize.rules.signs import (
    Machine,
    Sign,
    once,
    place_of,
    sign_draft,
)
from eroica.localize.rules.view import JobView


def memory_pressure(view: JobView) -> list[Draft]:
    """Return the cause that memory runs short on some hosts, if it does."""
    machine = Machine(view)
    signs = [sign for rank in view.ranks for sign in _memory_signs(machine, rank)]
    if not signs:
        return []
    stalled = dict.fromkeys(view.ranks, 0.0)
    for sign in signs:
        stalled[sign.rank] = max(stalled[sign.rank], sign.share)
    top = max(stalled.values())
    ranks = tuple(r for r in sorted({s.rank for s in signs}) if stalled[r] >= 0.5 * top)
    others = [share for rank, share in stalled.items() if rank not in ranks]
    share = min(stalled[r] for r in ranks) - max(others, default=0.0)
    held = machine.held(ranks)
    share = max(share, held)
    if share < view.parameters.straggler_share:
        return []
    mine = [s for s in signs if s.rank in ranks]
    place = place_of(view, ranks)
    whole = len(ranks) == view.num_ranks
    text = f"memory runs short {place}: {once(s.text for s in mine)[0]}"
    return [
        sign_draft(
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


def _memory_signs(machine: Machine, rank: int) -> list[Sign]:
    host, own = machine.host_counters(rank), machine.counters(rank)
    parameters = machine.view.parameters
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
    kills = machine.events(rank, ("oom_kill", "worker_killed"))
    if kills:
        signs.append(Sign(rank, f"killed for memory: {kills[0].text.strip()[:120]}", 0.0, {}))
    return signs


_MEMORY_COUNTS = {
    "cgroup.memory_limit_hits": "limit of the cgroup hit {n:.0f} times",
    "cgroup.oom_kills": "killed for memory in the cgroup: {n:.0f} processes",
    "vm.oom_kills": "killed for memory on the host: {n:.0f} processes",
}
