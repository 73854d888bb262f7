"""One rank of a stuck job seen as a whole: where it waits, since when, what its threads do."""

from dataclasses import dataclass, replace

from eroica.localize.source import Project
from eroica.localize.waits import Wait, classify, short
from eroica.records import (
    CollectiveEntry,
    JobEvidence,
    Place,
    ProcessStacks,
    RankEvidence,
    ThreadStack,
)

_OURS = ("eroica",)
_BACKGROUND = ("QueueFeederThread", "pt_autograd", "pt_gloo", "pt_main_thread", "pt_nccl")
"""Threads of torch and multiprocessing that serve others: what they do is never the fault."""
_IDLE_MAIN = frozenset({"thread", "future"})
"""Waits of a main thread that hands the training to another thread."""


@dataclass(frozen=True)
class Child:
    """A forked or spawned process of a rank: a loader worker, a helper."""

    pid: int | None
    waits: tuple[Wait, ...]
    """Of its threads, main first."""
    is_worker: bool
    """A DataLoader worker."""

    @property
    def main(self) -> Wait | None:
        return self.waits[0] if self.waits else None


@dataclass(frozen=True)
class RankView:
    """What is known of one rank. ``wait`` is where its training stands."""

    rank: int
    evidence: RankEvidence
    wait: Wait | None
    source: str
    """``stacks``, ``flight``, ``stall``, ``traceback`` or ``""``."""
    threads: tuple[Wait, ...] = ()
    """Of the newest sample, main first, without the tool's own and library helpers."""
    children: tuple[Child, ...] = ()
    last: CollectiveEntry | None = None
    """Newest Flight Recorder entry."""
    pending: tuple[CollectiveEntry, ...] = ()
    """Entries not retired, oldest first."""
    is_moving: bool = False
    """Its training thread changed between the samples, or was on CPU in all of them."""

    @property
    def has_exited(self) -> bool:
        """Whether the process ended; the end of one of its threads alone does not count."""
        ended = self.evidence.exit
        if ended is None:
            return False
        told = ended.signal or ended.error_type or ended.message or ended.frames
        return ended.exit_code is not None or bool(told) or not self.evidence.stacks

    @property
    def num_steps(self) -> int | None:
        steps = self.evidence.steps
        return steps.first_step + len(steps.start_ns) if steps is not None else None

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for something other than its peers."""
        return self.wait is not None and not self.wait.is_distributed and not self.has_exited


def view(evidence: RankEvidence, project: Project) -> RankView:
    """Condense one rank's evidence."""
    flight = evidence.flight
    entries = flight.entries if flight is not None else ()
    last = max(entries, key=lambda e: e.record_id, default=None)
    pending = tuple(e for e in entries if not _is_done(e))
    threads = _threads(evidence, project)
    wait, source = _training_wait(evidence, threads, pending, project)
    return RankView(
        rank=evidence.rank,
        evidence=evidence,
        wait=wait,
        source=source,
        threads=threads,
        children=tuple(_child(c, project) for c in evidence.children),
        last=last,
        pending=pending,
        is_moving=_is_moving(evidence, wait),
    )


def views(evidence: JobEvidence, project: Project) -> list[RankView]:
    return [view(rank, project) for rank in sorted(evidence.ranks, key=lambda r: r.rank)]


def _is_done(entry: CollectiveEntry) -> bool:
    return entry.is_retired or entry.state == "completed"


def _threads(evidence: RankEvidence, project: Project) -> tuple[Wait, ...]:
    if not evidence.stacks:
        return ()
    sample = evidence.stacks[-1]
    states = {t.os_thread_id: t for t in evidence.process.threads} if evidence.process else {}
    found: list[Wait] = []
    for thread in _main_first(sample):
        if thread.name.startswith((*_OURS, *_BACKGROUND)):
            continue
        state = states.get(thread.os_thread_id) if thread.os_thread_id is not None else None
        wait = classify(thread, project, state)
        found.append(_from_earlier(wait, thread, evidence, project))
    return tuple(found)


def _from_earlier(
    wait: Wait, thread: ThreadStack, evidence: RankEvidence, project: Project
) -> Wait:
    """Where the newest sample does not tell: another one at the same place, with native frames."""
    if wait.kind != "native" or not wait.user:
        return wait
    for sample in evidence.stacks[:-1]:
        for other in sample.threads:
            if other.os_thread_id == thread.os_thread_id or (other.is_main and thread.is_main):
                known = classify(other, project)
                here = (short(known.user[0].name), known.user[0].line) if known.user else None
                if known.kind != "native" and here == (short(wait.user[0].name), wait.user[0].line):
                    return replace(known, user=wait.user, thread=thread)
    return wait


def _main_first(sample: ProcessStacks) -> list[ThreadStack]:
    threads = list(sample.threads)
    threads.sort(key=lambda t: not (t.is_main or t.name == "MainThread"))
    return threads


def _training_wait(
    evidence: RankEvidence,
    threads: tuple[Wait, ...],
    pending: tuple[CollectiveEntry, ...],
    project: Project,
) -> tuple[Wait | None, str]:
    """The wait that holds the training, and which evidence tells it."""
    if threads:
        main = threads[0]
        if main.kind == "device" and pending:
            return entry_wait(pending[0], project), "flight"
        others = [w for w in threads[1:] if w.user]
        if not main.user and main.kind not in ("exit", "import") and len(others) == 1:
            return others[0], "stacks"  # a launcher's main thread: the program runs in another
        inside = [w for w in others if w.is_distributed]
        if len(inside) == 1 and main.kind in _IDLE_MAIN:
            return inside[0], "stacks"
        return main, "stacks"
    if pending:
        return entry_wait(pending[0], project), "flight"
    if evidence.stalls:
        thread = _main_first(evidence.stalls[-1].stacks)[:1]
        if thread:
            return classify(thread[0], project), "stall"
    if evidence.exit is not None and evidence.exit.frames:
        return classify(ThreadStack(frames=evidence.exit.frames), project), "traceback"
    return None, ""


def entry_wait(entry: CollectiveEntry, project: Project) -> Wait:
    """A Flight Recorder entry as a wait: where the call was made, and what it was."""
    if entry.frames:
        wait = classify(ThreadStack(frames=entry.frames, name=entry.thread_name), project)
        if wait.is_distributed:
            return wait
    user = tuple(p for p in entry.frames if project.contains(p.file))
    op = entry.op.split(" ")[0]
    is_p2p = entry.is_p2p or op in ("send", "recv")
    return Wait("point_to_point" if is_p2p else "collective", op, user)


def _child(sample: ProcessStacks, project: Project) -> Child:
    waits = tuple(
        classify(t, project) for t in _main_first(sample) if not t.name.startswith(_BACKGROUND)
    )
    frames = [f for t in sample.threads for f in t.frames]
    is_worker = any(f.name.endswith("_worker_loop") for f in frames)
    return Child(sample.pid, waits, is_worker)


def _is_moving(evidence: RankEvidence, wait: Wait | None) -> bool:
    """Two samples decide; one sample alone never says that a rank moves."""
    if len(evidence.stacks) < 2 or wait is None or wait.thread is None:
        return False
    last = wait.thread
    before = [
        t
        for t in evidence.stacks[-2].threads
        if (t.os_thread_id == last.os_thread_id and t.os_thread_id is not None)
        or (t.is_main and last.is_main)
    ]
    if not before:
        return False
    is_same = before[0].frames == last.frames
    return (not is_same) or bool(before[0].is_active and last.is_active)


def innermost(wait: Wait | None) -> Place | None:
    return wait.user[0] if wait is not None and wait.user else None
