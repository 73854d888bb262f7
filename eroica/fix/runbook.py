"""What to do about causes outside the code: which host, which check, which setting. Data only."""

import msgspec

from eroica.records import FAMILY, Cause, Incident


class Runbook(msgspec.Struct, frozen=True, kw_only=True):
    """Steps for a person; eroica runs none of them."""

    cause: str
    title: str
    hosts: tuple[str, ...]
    ranks: tuple[int, ...] | str
    checks: tuple[str, ...]
    """Commands and what to look for, in order; ``HOST`` stands for each host."""
    remedy: tuple[str, ...]
    settings: tuple[str, ...] = ()


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    checks: tuple[str, ...]
    remedy: tuple[str, ...]
    settings: tuple[str, ...] = ()


_DRAIN = (
    "Drain HOST (scontrol update nodename=HOST state=drain reason=eroica, or kubectl drain HOST) "
    "and restart from the last checkpoint without it."
)
_NETWORK = _Page(
    title="The network of the host is slow",
    checks=(
        "ssh HOST ethtool -S IFACE | grep -Ei 'err|drop|crc|pause' : counters that grow name the "
        "link",
        "ssh HOST ibstat : State Active, Rate as on the other hosts",
        "ssh HOST cat /sys/class/infiniband/*/ports/1/counters/symbol_error : grows with a bad "
        "cable",
        "iperf3 or ib_write_bw from HOST to a healthy host and between two healthy ones: compare",
        "all_reduce_perf -b 8M -e 256M over the job's hosts, then without HOST",
    ),
    remedy=(_DRAIN, "Give the port, cable and switch counters to the network team."),
    settings=("NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME name the fast interface on every host",),
)
_PAGES = {
    "straggler_network": _NETWORK,
    "nic_degraded": msgspec.structs.replace(
        _NETWORK, title="The network card of the host is degraded"
    ),
    "nvlink_degraded": _Page(
        title="A link between the GPUs of the host is degraded",
        checks=(
            "ssh HOST nvidia-smi nvlink --status : every link active, at the same speed",
            "ssh HOST nvidia-smi nvlink -e : replay, recovery and CRC counts that grow",
            "ssh HOST nvidia-smi topo -m : NV links between all pairs, as on the other hosts",
            "ssh HOST dmesg | grep -i xid : Xid 74 is an NVLink error",
        ),
        remedy=(_DRAIN, "Reset the GPUs or reseat the board when the host is empty."),
    ),
    "pcie_degraded": _Page(
        title="The PCIe link of a GPU or card is slower than built",
        checks=(
            "ssh HOST nvidia-smi -q -d PCIE : link generation and width, current against maximum",
            "ssh HOST lspci -vv | grep -E 'LnkCap|LnkSta' : width and speed below the capability",
            "ssh HOST dmesg | grep -i aer : corrected errors",
        ),
        remedy=(_DRAIN, "Reseat the card; check risers and BIOS settings."),
    ),
    "gpu_throttled": _Page(
        title="A GPU runs below its clock",
        checks=(
            "ssh HOST nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER : which throttle reason",
            "ssh HOST dcgmi dmon -e 150,155,100,112 : temperature, power, clock, reasons over a "
            "minute",
            "Compare inlet temperature and fan speed with the neighbors in the rack",
        ),
        remedy=(
            _DRAIN,
            "Thermal: cooling and dust. Power: the cap (nvidia-smi -pl) and the rack's budget.",
        ),
        settings=("nvidia-smi -rgc undoes locked clocks; nvidia-smi -pl WATTS sets the cap",),
    ),
    "gpu_fault": _Page(
        title="A GPU reports faults",
        checks=(
            "ssh HOST dmesg | grep -i xid : 48, 63, 64, 79, 94, 95 mean a bad device or memory",
            "ssh HOST nvidia-smi -q -d ECC,ROW_REMAPPER : pending or failed remaps",
            "ssh HOST dcgmi diag -r 3 when the host is empty",
        ),
        remedy=(_DRAIN, "Reset the GPU for pending remaps; replace it where the diagnosis fails."),
    ),
    "cpu_oversubscription": _Page(
        title="The ranks want more cores than they get",
        checks=(
            "ssh HOST cat /sys/fs/cgroup/cpu.stat : nr_throttled over nr_periods; cpu.max",
            "ssh HOST ps axo pid,pcpu,psr,comm --sort=-pcpu | head : who else runs, and where",
            "ssh HOST cat /proc/pressure/cpu : avg10 is the share of time tasks wait for a core",
        ),
        remedy=(
            "Raise the job's CPU limit, or move the other processes off HOST.",
            "Else fewer threads a rank and fewer loader workers, so that they fit the cores.",
        ),
        settings=("OMP_NUM_THREADS; DataLoader num_workers; the CPU limit; taskset, --cpu-bind",),
    ),
    "memory_pressure": _Page(
        title="The host is short of memory",
        checks=(
            "ssh HOST cat /proc/pressure/memory : avg10 above a few percent stalls the ranks",
            "ssh HOST cat /sys/fs/cgroup/memory.events : oom, oom_kill, high",
            "ssh HOST ps axo pid,rss,comm --sort=-rss | head : who else is there",
        ),
        remedy=(
            "Ask for more memory for the job, or use fewer loader workers and less prefetch.",
            "Move other jobs off HOST.",
        ),
        settings=("DataLoader num_workers, prefetch_factor, pin_memory; the cgroup's memory.max",),
    ),
}
_STORAGE = _Page(
    title="Reading the data is slow, not the code",
    checks=(
        "ssh HOST dd if=A_DATA_FILE of=/dev/null bs=4M count=256 iflag=direct : MB/s of one reader",
        "ssh HOST nfsiostat 5 3 (NFS), lctl get_param osc.*.stats (Lustre): time per read",
        "The same read on a healthy host, and from the local disk",
    ),
    remedy=(
        "Stage the data to local disks before the start (sbcast, an init container, a warm cache).",
        "Or raise the limits of the share; more loader workers only hide latency, not bandwidth.",
    ),
    settings=("NFS: rsize/wsize 1M, nconnect=8, actimeo; Lustre: stripe count of the data files",),
)
_OTHER = _Page(
    title="The cause lies in the setup, not in the code",
    checks=("Compare the settings of the named hosts and ranks with the others: eroica doctor",),
    remedy=("Change the setting the advice names, on all hosts alike, and run again.",),
)


def runbook(incident: Incident, cause: Cause | None = None) -> Runbook | None:
    """Return the steps for a cause to drain or configure; None for a cause in the code."""
    chosen = cause or (incident.causes[0] if incident.causes else None)
    if chosen is None:
        return None
    if FAMILY.get(chosen.category) != "environment" and chosen.action not in ("drain", "configure"):
        return None
    page = _PAGES.get(chosen.category)
    if page is None:
        data = FAMILY.get(chosen.category) == "data" or chosen.category == "blocked_io"
        page = _STORAGE if data else _OTHER
    hosts = chosen.hosts or tuple(
        host
        for host, ranks in incident.job.hosts.items()
        if chosen.ranks != "all" and set(ranks) & set(chosen.ranks)
    )
    fill = ", ".join(hosts) or "HOST"
    one = hosts[0] if len(hosts) == 1 else "HOST"
    return Runbook(
        cause=chosen.id,
        title=page.title,
        hosts=hosts,
        ranks=chosen.ranks,
        checks=tuple(text.replace("HOST", one) for text in page.checks),
        remedy=tuple(text.replace("HOST", fill if one == "HOST" else one) for text in page.remedy),
        settings=((chosen.advice,) if chosen.advice else ()) + page.settings,
    )
