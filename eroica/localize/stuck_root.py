"""Ranks that wait for something inside themselves or outside the job; their peers wait for them.

Each rule follows the wait to its root: a loader to its workers, a queue to the thread that should
fill it, a lock to the thread that holds it, a fork to the lock its parent held. The root's place
comes first, the rank's own waiting place second.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from eroica.localize.locks import ThreadStart, thread_starts
from eroica.localize.source import Project
from eroica.localize.source_calls import Calls
from eroica.localize.source_flow import loops
from eroica.localize.stuck_suspect import Suspect, at
from eroica.localize.stuck_view import RankView
from eroica.localize.waits import Wait
from eroica.records import LogEvent, Place
from eroica.units import rank_phrase


@dataclass(frozen=True)
class Root:
    """Where a wait comes from."""

    category: str
    places: tuple[Place, ...]
    confidence: float
    text: str
    """What is the matter, as the end of ``rank 3 ...``."""
    why: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    advice: str = ""
    action: str = "patch"


Rule = Callable[["Blocked", RankView, Wait, int], Root | None]
"""Follows a wait of one kind, at most so many waits deep."""


class Blocked:
    """Follows waits to their roots in one project."""

    def __init__(
        self,
        project: Project,
        calls: Calls,
        rules: Mapping[str, Rule],
        log_events: Sequence[LogEvent] = (),
    ) -> None:
        self.project, self.calls, self.rules, self.log_events = project, calls, rules, log_events
        self._starts: list[ThreadStart] | None = None

    @property
    def starts(self) -> list[ThreadStart]:
        if self._starts is None:
            self._starts = thread_starts(self.project, self.calls)
        return self._starts

    def root(self, view: RankView, wait: Wait, depth: int = 4) -> Root | None:
        """Return the root of a wait, None where it is none of these kinds."""
        if depth <= 0:
            return None
        if wait.kind in self.rules:
            return self.rules[wait.kind](self, view, wait, depth)
        if wait.kind in ("io", "file_lock"):
            return self.io(wait)
        if wait.kind == "sleep":
            return self.sleep(wait)
        if wait.kind == "exit":
            return self.ended(view, wait)
        if wait.kind in ("native", "running"):
            return self.native(view, wait)
        return None

    # I/O, sleeping, busy loops
    def io(self, wait: Wait) -> Root:
        what = "a file lock" if wait.kind == "file_lock" else f"`{wait.op}`"
        against = ("the call is given a time-out",) if wait.has_timeout else ()
        return Root(
            "blocked_io",
            wait.user[:2],
            0.9 if wait.user and not wait.has_timeout else 0.6,
            f"waits in {what} without an end",
            (f"the thread is in {what} at {at(first_place(wait), self.project)}",),
            against,
            "give the call a time-out and retry or raise: a silent peer must not hold the job",
        )

    def sleep(self, wait: Wait) -> Root:
        place = first_place(wait)
        function = self.project.enclosing(place.file, place.line) if place else None
        around = loops(function, place.line) if function and place and place.line else []
        polled = (
            f" while `{around[0].text}`" if around and around[0].text not in ("", "True") else ""
        )
        return Root(
            "polling_wait",
            wait.user[:2],
            0.85 if around else 0.7,
            "sleeps in " + (f"a polling loop{polled}" if around else "sleep"),
            (f"the thread sleeps at {at(place, self.project)}",),
            (),
            "wait with a deadline and raise with what was missing; or let the maker tell all ranks "
            "through a broadcast",
        )

    def _holds_gil(self, view: RankView, wait: Wait) -> bool:
        """Whether the thread has the GIL and is off the CPU all the same."""
        thread, process = wait.thread, view.evidence.process
        if thread is None or not thread.holds_gil or process is None:
            return False
        states = {t.os_thread_id: t.state for t in process.threads}
        return states.get(thread.os_thread_id or -1, "R")[:1] in ("S", "D")

    def ended(self, view: RankView, wait: Wait) -> Root:
        """The program of the rank is over, but a thread or child keeps its process alive."""
        last = view.last
        places = [p for p in last.frames if self.project.contains(p.file)] if last else []
        alive = [w for w in view.threads[1:] if w.user]
        why = ["its main thread is at the interpreter's exit and waits for threads or children"]
        if alive:
            why.append(
                f"thread {thread_name(alive[0])} keeps the process alive at "
                f"{at(alive[0].user[0], self.project)}"
            )
        return Root(
            "rank_exited",
            (*places[:1], *(alive[0].user[:1] if alive else ()), *wait.user[:1]),
            0.8,
            "has left the program while its peers go on",
            tuple(why),
            advice="let every rank do the same number of steps and leave together; make helper "
            "threads daemons",
        )

    def native(self, view: RankView, wait: Wait) -> Root | None:
        place = first_place(wait)
        if place is None:
            return None
        state = view.evidence.process.state if view.evidence.process else ""
        if state.startswith("D"):
            return self.io(replace(wait, op="an uninterruptible read or write"))
        if self._holds_gil(view, wait):
            return Root(
                "thread_lock_deadlock",
                wait.user[:2],
                0.85,
                f"holds the GIL in `{wait.op}` and sleeps: no thread of it can run",
                (
                    f"the thread at {at(place, self.project)} holds the GIL",
                    "the kernel shows it asleep: it waits in native code without giving the GIL up",
                ),
                advice="release the GIL around the native call (ctypes.CDLL instead of PyDLL, "
                "Py_BEGIN_ALLOW_THREADS), or make it in a process of its own",
            )
        function = self.project.enclosing(place.file, place.line)
        in_while = False
        if function is not None and place.line:
            in_while = any(b.kind == "while" for b in loops(function, place.line)[:1])
        if wait.kind == "running" and in_while and view.is_moving:
            return Root(
                "polling_wait",
                wait.user[:2],
                0.6,
                "spins in a loop whose condition does not come true",
                (f"it is on CPU at {at(place, self.project)} in two samples",),
                ("it may be doing slow but honest work",),
                "wait with a deadline and say what was missing",
            )
        if wait.kind == "running" and view.is_moving:
            return None
        return Root(
            "blocked_io",
            wait.user[:2],
            0.4,
            f"does not come back from a native call at {at(place, self.project)}",
            ("its frames are the same in every sample and it uses no CPU",),
            ("what the native code waits for was not seen",),
            "take native stacks (py-spy dump --native) of this rank",
            "investigate",
        )


def first_place(wait: Wait) -> Place | None:
    return wait.user[0] if wait.user else None


def thread_name(wait: Wait) -> str:
    return f"'{wait.thread.name}'" if wait.thread is not None and wait.thread.name else "another"


def suspect(view: RankView, root: Root, victims: tuple[int, ...]) -> Suspect:
    """Turn a root into a suspect of one rank."""
    return Suspect(
        category=root.category,
        ranks=(view.rank,),
        places=root.places,
        confidence=root.confidence,
        summary=f"rank {view.rank} {root.text}",
        why=(*root.why, *_victim_text(victims)),
        against=root.against,
        advice=root.advice,
        action="investigate" if root.action == "investigate" else "patch",
        victims=victims,
    )


def _victim_text(victims: tuple[int, ...]) -> tuple[str, ...]:
    if not victims:
        return ()
    verb = "waits" if len(victims) == 1 else "wait"
    return (f"{rank_phrase(victims)} {verb} for it in a collective",)
