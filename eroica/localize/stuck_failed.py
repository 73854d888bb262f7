"""Ranks that ended: which failed first and why, and which only lost their peer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from eroica.localize.source import Project
from eroica.localize.stuck_suspect import Suspect, at
from eroica.localize.stuck_view import RankView
from eroica.records import Action, JobEvidence, LogEvent, Place, RankExit
from eroica.units import rank_phrase

_SECONDARY = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|socket (closed|error|timeout)|"
    r"remote process exited|peer (has )?(closed|exited|failed)|connectfullmesh|"
    r"childfailederror|signalexception|received \d+ death signal|nccl.*(abort|remote error)|"
    r"watchdog.*terminat|store is no longer|sigterm|exitcode: -15",
    re.I,
)
_TIMEOUT = re.compile(r"timed out|timeout|watchdog caught collective", re.I)
_OWN_NETWORK = re.compile(
    r"(?!Dist|Rendezvous)(?:\w*Connection\w*|\w*Connect\w*|\w*Timeout\w*|BrokenPipeError|EOFError"
    r"|gaierror|SSL\w*Error|URLError|ReadError)"
)
"""Error types of Python's own network calls and of HTTP libraries. c10d raises none of them: what
the rank lost is a server of its own, not a peer."""
_MEMORY = re.compile(
    r"out of memory|\boom\b|oom[-_ ]?kill|cannot allocate memory|memoryerror|bad_alloc", re.I
)
_DEVICE = re.compile(
    r"\bxid\b|ecc error|unspecified launch failure|illegal memory access|device-side assert|"
    r"nvlink error|cudaerror.*(hardware|unavailable)|fell off the bus",
    re.I,
)
_SHAPE = re.compile(
    r"preamble\.length|collective mismatch|op\.nbytes|tensors? must be the same size|size mismatch "
    r"across|different shapes? across|mismatched? (input|output)? ?sizes?",
    re.I,
)
_STOPPED = ("T", "t")


@dataclass(frozen=True)
class Death:
    """How one rank ended, from its exit, the log, or both."""

    rank: int
    text: str
    frames: tuple[Place, ...]
    exit_code: int | None
    signal: str | None
    time_ns: int | None
    error_type: str | None

    @property
    def is_own_network(self) -> bool:
        """Whether a server or a loader of the rank's own failed it, rather than its peers."""
        inner = (self.frames[0].file or "").replace("\\", "/") if self.frames else ""
        if "torch/distributed/" in inner:
            return False
        kind = (self.error_type or "").rpartition(".")[2]
        return "torch/utils/data/" in inner or bool(_OWN_NETWORK.fullmatch(kind))

    @property
    def is_secondary(self) -> bool:
        told = bool(_SECONDARY.search(self.text)) and not self.is_own_network
        return told or self.signal in ("SIGTERM", "15")

    @property
    def is_timeout(self) -> bool:
        if self.is_own_network:
            return False
        return bool(_TIMEOUT.search(self.text)) and not self.is_secondary

    @property
    def is_clean(self) -> bool:
        return self.exit_code == 0 and not self.text

    @property
    def weight(self) -> tuple[int, int, float]:
        """Sort key: errors of a rank's own first, then of its own network, then time-outs, then
        victims; earliest first."""
        kind = 3 if self.is_secondary else (2 if self.is_timeout else int(self.is_own_network))
        told = 0 if (self.frames or self.text or self.signal) else 1
        return kind, told, float(self.time_ns) if self.time_ns is not None else float("inf")


def deaths(evidence: JobEvidence, views: Sequence[RankView]) -> list[Death]:
    """Return how each ended rank ended, the one to blame first."""
    found: list[Death] = []
    by_rank: dict[int | None, list[LogEvent]] = {}
    for event in evidence.log_events:
        by_rank.setdefault(event.rank, []).append(event)
    for view in views:
        events = by_rank.get(view.rank, [])
        ended = view.evidence.exit if view.has_exited else None
        told = _told(events)
        if ended is None and not (told and _ended_it(told, view)):
            continue
        message = (ended.message if ended else None) or (told.text if told else "")
        message = message or _shared_word(evidence, view, ended, by_rank)
        said = told.fields.get("error_type") if told else None
        kind = (ended.error_type if ended else None) or (said if isinstance(said, str) else None)
        found.append(
            Death(
                rank=view.rank,
                text=f"{kind}: {message}" if kind and kind not in message else message,
                frames=(ended.frames if ended else ()) or (told.frames if told else ()),
                exit_code=ended.exit_code if ended else None,
                signal=ended.signal if ended else None,
                time_ns=(ended.time_ns if ended else None) or (told.time_ns if told else None),
                error_type=kind,
            )
        )
    return sorted(found, key=lambda d: d.weight)


def _shared_word(
    evidence: JobEvidence,
    view: RankView,
    ended: RankExit | None,
    by_rank: dict[int | None, list[LogEvent]],
) -> str:
    """What its own lines and those without a rank say of an aborted process: gloo's check of
    sizes, a kill.

    gloo aborts where NCCL would hang: operands of one collective that do not fit.
    """
    if ended is None or ended.signal not in ("SIGABRT", "SIGKILL"):
        return ""
    if ended.signal == "SIGKILL" and (kills := _memory_kills(evidence, view)):
        return f"the kernel killed {kills:.0f} of its processes for memory (oom_kill)"
    texts = [e.text for e in (*by_rank.get(view.rank, ()), *by_rank.get(None, ()))]
    texts += view.evidence.log_tail.splitlines()
    wanted = _SHAPE if ended.signal == "SIGABRT" else _MEMORY
    return next((t.strip()[:300] for t in texts if wanted.search(t)), "")


def _memory_kills(evidence: JobEvidence, view: RankView) -> float:
    """How many processes the kernel killed for memory there while the job was watched."""
    of_host = next((one.counters for one in evidence.hosts if one.host == view.evidence.host), {})
    own = view.evidence.counters
    uses = (own.get("cgroup.oom_kills"), of_host.get("vm.oom_kills"))
    return max((use.increase or 0.0 for use in uses if use is not None), default=0.0)


def _told(events: Sequence[LogEvent]) -> LogEvent | None:
    """The rank's log event that tells most: a traceback of its own error before anything."""
    tracebacks = [e for e in events if e.frames or "traceback" in e.kind]
    own = [e for e in tracebacks if not _SECONDARY.search(e.text)]
    return next(iter(own or tracebacks or [e for e in events if _is_fatal(e)]), None)


def _ended_it(event: LogEvent, view: RankView) -> bool:
    """A traceback may have been caught and printed: it ends a rank only where nothing lives."""
    if "traceback" in event.kind:
        return bool(event.fields.get("is_uncaught")) or not view.evidence.stacks
    return _is_fatal(event) and not view.evidence.stacks


def _is_fatal(event: LogEvent) -> bool:
    return any(w in event.kind for w in ("traceback", "exit", "oom", "fatal", "signal", "xid"))


def failed(
    death: Death, project: Project, others: Sequence[Death], waiting: Sequence[int]
) -> Suspect:
    """Return the cause that a rank's end is, with those who only lost it as victims."""
    own = [p for p in death.frames if project.contains(p.file)]
    category, action, advice = _kind(death)
    alike = [d.rank for d in others if _is_alike(d, death)]
    ranks = tuple(sorted({death.rank, *alike}))
    victims = tuple(sorted(({d.rank for d in others} | set(waiting)) - set(ranks)))
    who, how = rank_phrase(ranks), _how(death)
    why = [f"{who} {how}"]
    if own:
        why.append(f"its innermost frame of the project is {at(own[0], project)}")
    secondary = [d.rank for d in others if d.is_secondary]
    if secondary:
        why.append(
            f"{rank_phrase(secondary)} ended later because the connection to a peer closed: victims"
        )
    if waiting:
        why.append(f"{rank_phrase(list(waiting))} still wait for it in a collective")
    return Suspect(
        category=category,
        ranks=ranks,
        places=tuple(own[:2]),
        confidence=0.9 if own and death.text else (0.75 if death.text or death.signal else 0.6),
        summary=f"{who} {how}",
        why=tuple(why),
        against=() if death.text else ("no traceback of it was found",),
        advice=advice,
        action=action,
        victims=victims,
    )


def _is_alike(one: Death, other: Death) -> bool:
    """The same error of its own: all ranks may fail alike, and then none is the guilty one."""
    if one.rank == other.rank or one.error_type is None or one.is_secondary or one.is_timeout:
        return False
    return (one.error_type, _first_line(one), one.frames[:3]) == (
        other.error_type,
        _first_line(other),
        other.frames[:3],
    )


def _first_line(death: Death) -> str:
    """What the error says: its first line, or the last one of a whole traceback."""
    lines = [line.strip() for line in death.text.splitlines() if line.strip()] or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def _how(death: Death) -> str:
    first = _first_line(death)[:160]
    if death.signal:
        return f"was ended by {death.signal}" + (f" ({first})" if first else "")
    if first:
        return f"failed with {first}"
    if death.exit_code == 0:
        return "ended normally while the others go on"
    return f"ended with exit code {death.exit_code}" if death.exit_code is not None else "ended"


def _kind(death: Death) -> tuple[str, Action, str]:
    text = death.text
    if _SHAPE.search(text):
        return (
            "collective_shape_mismatch",
            "patch",
            "make the operands of the collective the same size on every rank",
        )
    if _DEVICE.search(text):
        return "gpu_fault", "drain", "drain the host and check the device (dmesg, nvidia-smi -q)"
    if _MEMORY.search(text) and death.error_type != "MemoryError" and not death.frames:
        return "memory_pressure", "configure", "use less memory on that host, or give it more"
    if death.exit_code == 0:
        return (
            "rank_exited",
            "patch",
            "let every rank do the same number of steps and leave together (barrier before exit)",
        )
    return "rank_exited", "patch", "mend the error on that rank; the others are only its victims"


def stopped(views: Sequence[RankView]) -> list[RankView]:
    """Return ranks whose process is stopped (SIGSTOP, a debugger)."""
    return [
        v
        for v in views
        if v.evidence.process is not None and v.evidence.process.state[:1] in _STOPPED
    ]
