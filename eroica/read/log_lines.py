"""Single log lines that matter, each with a pattern: torch, NCCL, gloo, the kernel, schedulers.

``match_line`` gives the kind of event and its fields. A rule is tried only on lines that hold
its needle, which is what keeps reading fast; what repeats in a pattern is bounded, or a line made
for it would take minutes. Sources of the wordings: torch/csrc/distributed/
c10d (ProcessGroupNCCL.cpp, ProcessGroupWrapper.cpp, TraceUtils.h), gloo/transport, NCCL's
debug.cc, docs.nvidia.com/deploy/xid-errors, Linux mm/oom_kill.c. Long because it is one table.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eroica.read.names import LARGEST_WORLD, is_rank

Fields = dict[str, Any]
Convert = Callable[[Mapping[str, str | None]], Fields]

# Xid numbers by what they say of the machine (NVIDIA's catalog).
_XID = {
    13: "graphics engine exception, often the program's own fault",
    31: "memory page fault, often the program's own fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup after another error",
    48: "double-bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping",
    64: "ECC page retirement or row remapping failed",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link error",
    140: "unrecovered ECC error",
}


@dataclass(frozen=True)
class _Rule:
    kind: str
    needle: str
    pattern: re.Pattern[str]
    convert: Convert


def _plain(groups: Mapping[str, str | None]) -> Fields:
    """Named groups as they are; digits become numbers."""
    return {name: _value(text) for name, text in groups.items() if text is not None}


def _value(text: str) -> int | str:
    text = text.strip()
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def _rank_list(groups: Mapping[str, str | None]) -> Fields:
    fields = _plain(groups)
    if "ranks" in fields:
        fields["ranks"] = [int(n) for n in re.findall(r"\d{1,9}", str(fields["ranks"]))]
    return fields


def _tasks(groups: Mapping[str, str | None]) -> Fields:
    """srun folds its tasks: ``3-5,7``."""
    fields = _plain(groups)
    ranks: list[int] = []
    for part in str(fields["ranks"]).split(","):
        first, _, last = part.partition("-")
        begin, end = _value(first), _value(last or first)
        if is_rank(begin) and is_rank(end) and len(ranks) + end - begin < LARGEST_WORLD:
            ranks.extend(range(begin, end + 1))
    fields["ranks"] = ranks
    return fields


def _xid(groups: Mapping[str, str | None]) -> Fields:
    fields = _plain(groups)
    fields["meaning"] = _XID.get(int(groups["xid"] or 0), "")
    return fields


def _mismatch(groups: Mapping[str, str | None]) -> Fields:
    """Both fingerprints as they are, and operation and number of each."""
    fields = _plain(groups)
    for side in "ab":
        text = str(fields.get(f"collective_{side}", ""))
        if op := re.search(r"OpType=(\w+)", text):
            fields[f"op_{side}"] = op[1]
        if number := re.search(r"SequenceNumber=(\d{1,18})", text):
            fields[f"sequence_{side}"] = int(number[1])
    return fields


def _rule(kind: str, needle: str, pattern: str, convert: Convert = _plain) -> _Rule:
    return _Rule(kind, needle, re.compile(pattern), convert)


_WORK = (
    r"Work(?P<backend>[A-Z]+)\(SeqNum=(?P<sequence>\d+), OpType=(?P<op>\w+)"
    r"(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?"
    r"(?:, Timeout\(ms\)=(?P<timeout_ms>\d+))?\)"
)

_NCCL_HEAD = (
    r"(?:(?<![\w.-])(?P<host>[\w.-]{1,255}):(?P<pid>\d+):(?P<tid>\d+) )?(?:\[(?P<device>\d+)\] )?"
)

RULES: tuple[_Rule, ...] = (
    # --- c10d, NCCL ---
    _rule(
        "watchdog_timeout",
        "Watchdog caught collective operation timeout",
        rf"Watchdog caught collective operation timeout: {_WORK} ran for (?P<elapsed_ms>\d+)",
    ),
    _rule(
        "watchdog_work",
        "last enqueued NCCL work",
        r"(?:at|Timeout at)(?: NCCL)? work:? (?P<sequence>\d+), last enqueued NCCL work: "
        r"(?P<last_enqueued>-?\d+), last completed NCCL work: (?P<last_completed>-?\d+)",
    ),
    _rule(
        "watchdog_exception",
        "found to be in an error state",
        r"(?P<what>.*found to be in an error state.*)",
    ),
    _rule(
        "dump_signal",
        "dump signal",
        r"dump signal due to a collective timeout from\s+rank (?P<source_rank>\d+)",
    ),
    _rule(
        "heartbeat_timeout",
        "eartbeat monitor timed out",
        r"[Hh]eartbeat monitor timed out.*?(?:workMetaList_\.size\(\)=(?P<num_pending>\d+))?$",
    ),
    _rule("process_taken_down", "taking the entire process down", r"(?P<what>To avoid data.*)"),
    # --- c10d, gloo and the store ---
    _rule(
        "gloo_timeout",
        "Timed out waiting",
        r"Timed out waiting (?P<timeout_ms>\d+) ?ms for (?P<direction>recv|send) operation",
    ),
    _rule("gloo_timeout", "caused pair closure", r"(?P<what>timeout caused pair closure)"),
    _rule(
        "connection_closed",
        "onnection closed by peer",
        r"[Cc]onnection closed by peer(?: \[(?P<peer>[^\]]*)\](?::(?P<port>\d+))?)?",
    ),
    _rule(
        "connection_closed",
        "Connection reset by peer",
        r"Connection reset by peer(?: \[(?P<peer>[^\]]*)\])?",
    ),
    _rule(
        "store_timeout",
        "wait timeout after",
        r"wait timeout after (?P<timeout_ms>\d+)ms, keys: (?P<keys>\S+)",
    ),
    _rule(
        "store_timeout",
        "client socket has timed out",
        r"client socket has timed out after (?P<timeout_ms>\d+)ms while trying to connect to "
        r"\(?(?P<peer>[^)]*)\)?",
    ),
    # --- ranks that do not fit together ---
    _rule(
        "collective_mismatch",
        "mismatch between collectives on ranks",
        r"Detected mismatch between collectives on ranks\. Rank (?P<rank_a>\d+) is running "
        r"collective: (?:CollectiveFingerPrint)?\(?(?P<collective_a>.*?)\)?, but Rank "
        r"(?P<rank_b>\d+) is running collective: (?:CollectiveFingerPrint)?\(?"
        r"(?P<collective_b>.*?)\)?(?:\.|$)(?:\s*Collectives differ in the following aspects:"
        r"\s*(?P<difference>.*))?",
        _mismatch,
    ),
    _rule(
        "monitored_barrier",
        "failed to pass monitoredBarrier",
        r"[Rr]anks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<timeout_ms>\d+)",
        _rank_list,
    ),
    _rule(
        "desync",
        "To our best knowledge",
        r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks",
        _rank_list,
    ),
    _rule(
        "desync",
        "joined but didn't finish collective",
        r"\[(?P<ranks>[\d, ]+)\] (?P<state>joined but didn't finish) collective #(?P<number>\d+)",
        _rank_list,
    ),
    _rule(
        "desync",
        "but didn't join collective",
        r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<finished>\d+), but (?P<state>didn't join)"
        r" collective #(?P<number>\d+)",
        _rank_list,
    ),
    _rule(
        "desync",
        " started ranks: ",
        r"#(?P<number>\d+) started ranks: \[(?P<ranks>[\d, ]+)\] started (?P<op>\w+)",
        _rank_list,
    ),
    # --- NCCL itself ---
    _rule(
        "nccl_warning",
        "NCCL WARN",
        rf"{_NCCL_HEAD}(?:[\w./]{{1,200}}:\d+ )?NCCL WARN (?P<what>.*)",
    ),
    _rule(
        "nccl_network",
        "NCCL INFO",
        rf"{_NCCL_HEAD}NCCL INFO (?P<what>Using network (?P<network>\w+)|NET/(?P<net>\w+) : "
        r"(?:Using|No device found|Got async event|Port).*)",
    ),
    _rule("nccl_error", "NCCL error", r"(?P<what>NCCL error[ :].*)"),
    _rule("nccl_error", "ncclRemoteError", r"(?P<what>nccl(?:Remote)Error.*)"),
    # --- the kernel's log ---
    _rule(
        "xid",
        "Xid (",
        r"NVRM: Xid \((?P<device>[^)]*)\): (?P<xid>\d{1,4})(?:, (?:pid='?(?P<pid>\d+)'?)?"
        r"(?P<what>.*))?",
        _xid,
    ),
    _rule(
        "sxid",
        "SXid (",
        r"(?P<switch>nvidia-nvswitch\d+): SXid \((?P<device>[^)]*)\): (?P<sxid>\d+), (?P<what>.*)",
    ),
    _rule("ecc", "EDAC", r"(?P<what>EDAC .{0,400}(?:[CU]E|error).*)"),
    _rule("ecc", "uncorrectable ECC", r"(?P<what>uncorrectable ECC error.*)"),
    _rule("pcie_error", "AER:", r"(?P<what>(?:pcieport )?[\w:.]{0,80} ?AER: .*)"),
    _rule("link_down", "Link DOWN", r"(?P<device>[\w.:-]{1,80}): .{0,200}?(?P<what>Link DOWN.*)"),
    _rule(
        "link_down", "Link is Down", r"(?P<device>[\w.:-]{1,80}): .{0,200}?(?P<what>Link is Down.*)"
    ),
    _rule("throttled", "clock throttled", r"\A(?P<what>.*temperature above threshold.*)"),
    _rule("throttled", "HW Slowdown", r"(?P<what>HW (?:Thermal )?Slowdown\s*:\s*Active)"),
    _rule(
        "oom_kill",
        "Killed process",
        r"[Oo]ut of memory: Killed process (?P<pid>\d+),? \((?P<command>[^)]*)\)"
        r"(?:.*?anon-rss:(?P<resident_kb>\d+)kB)?",
    ),
    _rule("oom_kill", "oom_kill event", r"Detected (?P<count>\d+) oom[_-]kill event"),
    _rule(
        "hung_task",
        "blocked for more than",
        r"task (?P<command>\S+):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds",
    ),
    _rule(
        "storage",
        "not responding",
        r"nfs: server (?P<server>\S+) not responding",
    ),
    _rule("storage", "I/O error", r"(?P<what>(?:Buffer |blk_update_request: )?I/O error.*)"),
    # --- memory, disk, limits ---
    _rule(
        "cuda_out_of_memory",
        "out of memory. Tried to allocate",
        r"out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)"
        r"(?:.*?GPU (?P<device>\d+))?",
    ),
    _rule("cuda_error", "CUDA error:", r"CUDA error: (?P<what>.*)"),
    _rule("no_space", "No space left on device", r"(?P<what>.*No space left on device.*)"),
    _rule("no_space", "Disk quota exceeded", r"(?P<what>.*Disk quota exceeded.*)"),
    _rule("too_many_files", "Too many open files", r"(?P<what>.*Too many open files.*)"),
    _rule("shared_memory", "insufficient shared memory", r"(?P<what>.*shared memory.*)"),
    _rule(
        "worker_killed",
        "DataLoader worker (pid",
        r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d+)\)? (?:is killed by signal: "
        r"(?P<signal>[\w ]+)|exited unexpectedly.*)",
    ),
    # --- C++ errors that nobody caught: the process aborts ---
    _rule("native_error", "what():", r"what\(\):\s+(?P<what>.*)"),
    _rule(
        "native_error", "enforce fail at", r"\[enforce fail at (?P<where>[^\]]*)\] ?(?P<what>.*)"
    ),
    # --- signals and schedulers ---
    _rule(
        "signal",
        "Signal ",
        r"Signal (?P<number>\d+) \((?P<signal>SIG\w+)\) received by PID (?P<pid>\d+)",
    ),
    _rule("terminated", "death signal", r"Received (?P<number>\d+) death signal"),
    _rule(
        "rank_failed",
        "failed (exitcode:",
        r"failed \(exitcode: (?P<exit_code>-?\d+)\) local_rank: (?P<local_rank>\d+) "
        r"\(pid: (?P<pid>\d+)\)",
    ),
    _rule(
        "fatal_python_error",
        "Fatal Python error",
        r"Fatal Python error: (?P<what>.*)",
    ),
    _rule(
        "task_failed",
        "srun: error",
        r"srun: error: (?P<host>[\w.\[\],-]+): tasks? (?P<ranks>[\d,-]+): (?P<what>.*)",
        _tasks,
    ),
    _rule("cancelled", "CANCELLED AT", r"(?P<what>\*\*\* (?:JOB|STEP) .* CANCELLED AT .*)"),
    # --- settings that cost time ---
    _rule(
        "recompile_limit",
        "hit config.",
        r"hit config\.(?P<setting>recompile_limit|cache_size_limit|"
        r"accumulated_(?:recompile|cache_size)_limit) \((?P<limit>\d+)\)",
    ),
    _rule(
        "recompile",
        "Recompiling function",
        r"Recompiling function (?P<function>\S+) in (?P<file>[^:]+):(?P<line>\d+)",
    ),
    _rule(
        "unused_parameters_not_needed",
        "did not find any unused parameters",
        r"(?P<setting>find_unused_parameters)=True was specified",
    ),
    _rule(
        "unused_parameters_missing",
        "Expected to have finished reduction",
        r"(?P<what>Expected to have finished reduction in the prior iteration.*)",
    ),
    _rule("anomaly_mode", "Anomaly Detection has been enabled", r"(?P<what>Anomaly Detection.*)"),
    _rule(
        "too_many_workers",
        "worker processes in total",
        r"create (?P<num_workers>\d+) worker processes in total.*?is (?P<suggested>\d+)",
    ),
    _rule(
        "forked_after_threads",
        "got forked, after parallelism",
        r"(?P<what>The current process just got forked, after parallelism.*)",
    ),
)

NEEDLES: tuple[bytes, ...] = tuple(dict.fromkeys(rule.needle.encode() for rule in RULES))

# "[Rank 3]", "[PG ID 0 PG GUID 0(default_pg) Rank 3]", "Rank 3:" of c10d's own lines
_OWN_RANK = re.compile(r"\[(?:PG [^\]\[]* )?Rank (\d{1,6})\]")
_GROUP = re.compile(r"\[PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<name>\w+)\((?P<desc>[^)]*)\))?")


def match_line(line: str) -> tuple[str, Fields] | None:
    """(kind, fields) of a line that matters, else None. The first rule that fits decides."""
    for rule in RULES:
        if rule.needle in line and (found := rule.pattern.search(line)):
            fields = rule.convert(found.groupdict())
            if group := _GROUP.search(line):
                fields.setdefault("group", group["name"] or group["id"])
                if group["desc"]:
                    fields.setdefault("group_description", group["desc"])
            return rule.kind, fields
    return None


def own_rank(line: str) -> int | None:
    """The rank that a line names as its own in brackets."""
    found = _OWN_RANK.search(line)
    return int(found[1]) if found else None
