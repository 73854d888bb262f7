"""Ranks that wait for something inside themselves or outside the job; their peers wait for them.

Each rule follows the wait to its root: a loader to its workers, a queue to the thread that should
fill it, a lock to the thread that holds it, a fork to the lock its parent held. The root's place
comes first, the rank's own waiting place second.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eroica.localize.locks import (
    Hold,
    Lock,
    ThreadStart,
    held,
    holders_in_source,
    method_sites,
    quiet_ends,
    reaches,
    receiver,
    runs_in,
    thread_starts,
    waited_lock,
)
from eroica.localize.source import FunctionInfo, Project
from eroica.localize.source_calls import Calls
from eroica.localize.source_flow import loops
from eroica.localize.stuck_suspect import Suspect, at
from eroica.localize.stuck_view import Child, RankView
from eroica.localize.waits import Wait
from eroica.records import Place
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


class Blocked:
    """Follows waits to their roots in one project."""

    def __init__(self, project: Project, calls: Calls) -> None:
        self.project, self.calls = project, calls
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
        if wait.kind == "loader":
            return self._loader(view, wait)
        if wait.kind == "lock":
            return self._lock(view, wait, depth)
        if wait.kind in ("queue_get", "queue_put"):
            return self._queue(view, wait, depth)
        if wait.kind == "event":
            return self._event(view, wait, depth)
        if wait.kind in ("thread", "future"):
            return self._thread(view, wait, depth)
        if wait.kind == "child":
            return self._child(view, wait)
        if wait.kind in ("io", "file_lock"):
            return self._io(wait)
        if wait.kind == "sleep":
            return self._sleep(wait)
        if wait.kind in ("native", "running"):
            return self._native(view, wait)
        return None

    # I/O, sleeping, busy loops
    def _io(self, wait: Wait) -> Root:
        what = "a file lock" if wait.kind == "file_lock" else f"`{wait.op}`"
        against = ("the call is given a time-out",) if wait.has_timeout else ()
        return Root(
            "blocked_io",
            wait.user[:2],
            0.9 if wait.user and not wait.has_timeout else 0.6,
            f"waits in {what} without an end",
            (f"the thread is in {what} at {at(_first(wait), self.project)}, in a system call",),
            against,
            "give the call a time-out and retry or raise: a silent peer must not hold the job",
        )

    def _sleep(self, wait: Wait) -> Root:
        place = _first(wait)
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

    def _native(self, view: RankView, wait: Wait) -> Root | None:
        place = _first(wait)
        if place is None:
            return None
        state = view.evidence.process.state if view.evidence.process else ""
        if state.startswith("D"):
            return self._io(replace(wait, op="an uninterruptible read or write"))
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
        gil = wait.thread is not None and wait.thread.holds_gil
        if gil:
            return Root(
                "thread_lock_deadlock", wait.user[:2], 0.5,
                f"holds the GIL in `{wait.op}` and does not come back",
                (f"the thread at {at(place, self.project)} holds the GIL in every sample",),
                advice="release the GIL around the native call, or call it in a process of its own",
                action="investigate",
            )  # fmt: skip
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

    # locks
    def _lock(self, view: RankView, wait: Wait, depth: int) -> Root:
        lock = waited_lock(wait, self.project)
        name = f"`{lock}`" if lock else "a lock"
        mine = held(wait, self.project)
        if lock and any(h.lock.is_same(lock) for h in mine):
            outer = next(h for h in mine if h.lock.is_same(lock))
            return Root(
                "thread_lock_deadlock",
                (*wait.user[:1], outer.place),
                0.85,
                f"waits for {name}, which the same thread already holds",
                (f"{name} was taken at {at(outer.place, self.project)} and is taken again",),
                advice="use an RLock, or take the lock once at the outer level",
            )
        found = self._holder(view, wait, lock)
        if found is None:
            return self._lost_lock(wait, lock, name)
        holder, hold = found
        return self._held_by(view, wait, name, holder, hold, mine, depth)

    def _holder(self, view: RankView, wait: Wait, lock: Lock | None) -> tuple[Wait, Hold] | None:
        if lock is None:
            return None
        for other in view.threads:
            if other is not wait and other.thread is not wait.thread:
                for hold in held(other, self.project):
                    if hold.lock.is_same(lock):
                        return other, hold
        return None

    def _held_by(
        self,
        view: RankView,
        wait: Wait,
        name: str,
        holder: Wait,
        hold: Hold,
        mine: Sequence[Hold],
        depth: int,
    ) -> Root:
        their = _thread_name(holder)
        why = f"{name} is held by thread {their} since {at(hold.place, self.project)}"
        wanted = waited_lock(holder, self.project) if holder.kind == "lock" else None
        if wanted is not None and any(h.lock.is_same(wanted) for h in mine):
            back = next(h for h in mine if h.lock.is_same(wanted))
            return Root(
                "thread_lock_deadlock",
                (*wait.user[:1], *holder.user[:1], back.place, hold.place),
                0.97,
                f"has two threads that wait for each other's lock: {name} and `{wanted}`",
                (
                    why,
                    f"that thread waits for `{wanted}`, held here since "
                    f"{at(back.place, self.project)}: the two take the locks in opposite order",
                ),
                advice="take the two locks in one order everywhere, or take the second one after "
                "the first is released",
            )
        if holder.is_distributed:
            return Root(
                "thread_lock_deadlock",
                (*holder.user[:1], *wait.user[:1]),
                0.75,
                f"waits for {name}, held by thread {their} which is in `{holder.op}`",
                (why, f"the holder waits for other ranks in `{holder.op}`"),
                advice="never hold a lock across a collective",
            )
        deeper = self.root(view, holder, depth - 1) if holder.kind != "lock" else None
        if deeper is None and holder.kind == "lock":
            deeper = self._lock(view, holder, depth - 1) if depth > 1 else None
        if deeper is not None:
            return replace(
                deeper,
                places=(*deeper.places[:1], *wait.user[:1], *deeper.places[1:]),
                why=(why, *deeper.why),
                confidence=deeper.confidence * 0.95,
            )
        return Root(
            "thread_lock_deadlock",
            (*wait.user[:1], hold.place),
            0.7,
            f"waits for {name}, held by thread {their}",
            (why,),
            advice="hold the lock only around what it guards",
        )

    def _lost_lock(self, wait: Wait, lock: Lock | None, name: str) -> Root:
        taken = holders_in_source(lock, self.project) if lock else []
        other = [p for p in taken if not wait.user or p.line != wait.user[0].line]
        return Root(
            "thread_lock_deadlock",
            (*wait.user[:1], *(other[:1] or wait.user[1:2])),
            0.6,
            f"waits for {name}, which no thread alive holds",
            (f"no thread of the process is inside a block that takes {name}",),
            ("a lock held by native code would look the same",),
            "release the lock in a `finally`, or use `with`, so that an error cannot keep it",
        )

    # queues and events
    def _queue(self, view: RankView, wait: Wait, depth: int) -> Root | None:
        is_get = wait.kind == "queue_get"
        queue = receiver(wait, self.project, ("get", "put", "join"))
        sides = ("put", "put_nowait") if is_get else ("get", "get_nowait", "task_done")
        root = self._counterpart(view, wait, queue, sides, depth)
        if root is not None:
            return root
        if view.children:
            return self._children(view, wait)
        role = "filled by nobody" if is_get else "full and emptied by nobody"
        return Root(
            "thread_lock_deadlock",
            wait.user[:2],
            0.6,
            f"waits on a queue that is {role}",
            (f"the thread is in `{wait.op}` at {at(_first(wait), self.project)}",),
            advice="put and get with a time-out and check that the other side is alive",
        )

    def _event(self, view: RankView, wait: Wait, depth: int) -> Root:
        event = receiver(wait, self.project, ("wait", "wait_for"))
        root = self._counterpart(view, wait, event, ("set", "notify", "notify_all"), depth)
        if root is not None:
            return root
        return Root(
            "thread_lock_deadlock",
            wait.user[:2],
            0.55,
            f"waits for {f'`{event}`' if event else 'an event'}, which nobody sets",
            (f"the thread is in `{wait.op}` at {at(_first(wait), self.project)}",),
            advice="wait with a time-out and check that the other side is alive",
        )

    def _counterpart(
        self,
        view: RankView,
        wait: Wait,
        thing: Lock | None,
        methods: tuple[str, ...],
        depth: int,
    ) -> Root | None:
        """The thread that should fill, empty or set ``thing``: what it waits for, or its end."""
        sites = method_sites(self.project, thing, methods)
        functions = list(dict.fromkeys(f for f, _ in sites))
        if not functions:
            functions = [s.target for s in self.starts]
        started = [
            s for s in self.starts if any(reaches(s.target, f, self.calls) for f in functions)
        ]
        for other in view.threads:
            if other.thread is wait.thread:
                continue
            concerned = any(runs_in(f, other) for f in functions) or any(
                runs_in(s.target, other) for s in started
            )
            if concerned:
                return self._through(view, wait, other, depth)
        if not started or (view.evidence.stacks and len(view.threads) < 1):
            return None
        return self._dead(view, wait, started[0], thing)

    def _through(self, view: RankView, wait: Wait, other: Wait, depth: int) -> Root | None:
        if other.is_distributed:
            return Root(
                "collective_order_mismatch",
                (*other.user[:1], *wait.user[:1]),
                0.6,
                f"waits for thread {_thread_name(other)}, which is in `{other.op}`",
                (f"the thread it waits for is itself in `{other.op}`, waiting for other ranks",),
                advice="issue collectives from one thread only",
            )
        deeper = self.root(view, other, depth - 1)
        if deeper is None:
            return None
        chain = (
            f"the training thread waits at {at(_first(wait), self.project)} for thread "
            f"{_thread_name(other)}"
        )
        return replace(
            deeper,
            places=(*deeper.places, *wait.user[:1]),
            why=(chain, *deeper.why),
        )

    def _dead(self, view: RankView, wait: Wait, start: ThreadStart, thing: Lock | None) -> Root:
        """The thread of the other side is not among the threads of the process."""
        ends = quiet_ends(start.target)
        crashed = _crash_place(view, start, self.project)
        is_put = wait.kind == "queue_put"
        name = f"`{thing}`" if thing else "the queue"
        what = f"{name} is full" if is_put else f"nothing will come from {name}"
        why = [
            f"{what}: its thread runs {start.target.qualified_name} "
            f"({self.project.name_in_root(start.target.file)}:{start.target.line}), started at "
            f"{at(start.place, self.project)}, and is not among the threads of the process"
        ]
        if crashed is not None:
            why.append(f"the log shows that thread's traceback at {at(crashed, self.project)}")
        elif ends:
            why.append(
                f"it returns quietly from an exception handler at {at(ends[0], self.project)}"
            )
        end = crashed or (ends[0] if ends else start.target.place())
        category = "thread_lock_deadlock" if is_put else "exception_swallowed"
        places = (*wait.user[:1], end) if is_put else (end, *wait.user[:1])
        return Root(
            category,
            (*places, start.place),
            0.9 if (ends or crashed) else 0.75,
            f"waits in `{wait.op}` for a thread that has ended",
            tuple(why),
            () if view.evidence.stacks else ("the threads were not sampled",),
            "let the worker thread report its error and end the job, or go on after it; put and "
            "get with a time-out",
        )

    # threads, futures, children
    def _thread(self, view: RankView, wait: Wait, depth: int) -> Root | None:
        others = [w for w in view.threads if w.thread is not wait.thread and w.user]
        for other in others:
            if other.is_distributed:
                return None
            root = self.root(view, other, depth - 1)
            if root is not None:
                why = f"the training thread waits for it at {at(_first(wait), self.project)}"
                return replace(root, places=(*root.places, *wait.user[:1]), why=(*root.why, why))
        if not others:
            return Root(
                "thread_lock_deadlock",
                wait.user[:2],
                0.5,
                f"waits in `{wait.op}` for a thread that is not there",
                (f"the thread is at {at(_first(wait), self.project)}; no other user thread runs",),
                advice="wait with a time-out and check that the worker is alive",
            )
        return None

    def _child(self, view: RankView, wait: Wait) -> Root:
        root = self._children(view, wait)
        if root is not None:
            return root
        return Root(
            "blocked_io",
            wait.user[:2],
            0.6,
            f"waits in `{wait.op}` for a child process",
            (f"the thread is at {at(_first(wait), self.project)}",),
            () if view.children else ("the child's stack was not seen",),
            "wait with a time-out; read both pipes of the child, so that it cannot fill one",
        )

    def _loader(self, view: RankView, wait: Wait) -> Root | None:
        root = self._children(view, wait)
        if root is not None:
            return root
        workers = [c for c in view.children if c.is_worker]
        if view.evidence.children and not workers:
            return Root(
                "rank_exited",
                wait.user[:2],
                0.6,
                "waits for DataLoader workers that no longer run",
                ("no worker process is among the rank's children",),
                advice="look for the kernel's OOM killer; use fewer workers or smaller batches",
                action="investigate",
            )
        return None

    def _children(self, view: RankView, wait: Wait) -> Root | None:
        """The first child that waits for something that will not come."""
        roots = [r for c in view.children if (r := self._in_child(view, c, wait)) is not None]
        return max(roots, key=lambda r: r.confidence, default=None)

    def _in_child(self, view: RankView, child: Child, wait: Wait) -> Root | None:
        main = child.main
        if main is None or not main.user:
            return None
        place = main.user[0]
        if _is_fork_point(main, wait) or (main.kind == "queue_get" and child.is_worker):
            return None  # it idles in the library, waiting for work
        if main.kind in ("lock", "future", "event", "queue_put", "queue_get", "native"):
            others = [w for w in child.waits[1:] if w.user]
            return self._forked(view, child, main, wait, others, place)
        if main.kind in ("io", "file_lock", "sleep"):
            root = self._io(main) if main.kind != "sleep" else self._sleep(main)
            why = f"the rank waits for its child process {child.pid}, which is in `{main.op}`"
            return replace(root, why=(why, *root.why))
        return None

    def _forked(
        self,
        view: RankView,
        child: Child,
        main: Wait,
        wait: Wait,
        others: list[Wait],
        place: Place,
    ) -> Root:
        lock = waited_lock(main, self.project) if main.kind == "lock" else None
        name = f"lock `{lock}`" if lock else f"`{main.op}`"
        holder = self._parent_holder(view, lock, main)
        why = [
            f"child process {child.pid} waits for {name} at {at(place, self.project)}",
            "it was forked: only the forking thread exists in it, a lock another thread held or a "
            "pool it ran is never released there",
        ]
        if holder is not None:
            why.append(f"in the parent that lock is taken at {at(holder, self.project)}")
        confidence = 0.95 if lock and holder else (0.85 if lock else 0.7)
        if others:
            confidence -= 0.3
        return Root(
            "fork_lock_deadlock",
            (place, *([holder] if holder else []), *main.user[1:2], *wait.user[:1]),
            confidence,
            f"waits for a forked child that hangs on {name}",
            tuple(why),
            ("the child has other threads of its own",) if others else (),
            "start workers before the thread, or with multiprocessing_context='spawn'; or make the "
            "lock anew in the child (os.register_at_fork, worker_init_fn)",
        )

    def _parent_holder(self, view: RankView, lock: Lock | None, main: Wait) -> Place | None:
        if lock is None:
            return None
        for other in view.threads:
            for hold in held(other, self.project):
                if hold.lock.is_same(lock):
                    return hold.place
        taken = holders_in_source(lock, self.project)
        here = main.user[0].line if main.user else None
        targets = [s.target for s in self.starts]
        elsewhere = [p for p in taken if p.line != here]
        for place in elsewhere:
            function = self.project.enclosing(place.file, place.line)
            if function is not None and any(_same(function, t) for t in targets):
                return place
        return elsewhere[0] if elsewhere else None


def _same(a: FunctionInfo, b: FunctionInfo) -> bool:
    return a.node is b.node


def _is_fork_point(main: Wait, parent: Wait) -> bool:
    """Whether a child's innermost user frame is the parent's line that forked it."""
    if not main.user or not parent.user:
        return False
    if main.thread is None or not main.thread.frames:
        return False
    innermost_is_user = main.thread.frames[0] == main.user[0]
    here, there = main.user[0], parent.user[0]
    return not innermost_is_user and (here.file, here.line) == (there.file, there.line)


def _first(wait: Wait) -> Place | None:
    return wait.user[0] if wait.user else None


def _thread_name(wait: Wait) -> str:
    return f"'{wait.thread.name}'" if wait.thread is not None and wait.thread.name else "another"


def _crash_place(view: RankView, start: ThreadStart, project: Project) -> Place | None:
    """The project frame of an ``Exception in thread`` traceback in the rank's log."""
    text = view.evidence.log_tail
    for part in re.split(r"Exception in thread ", text)[1:]:
        found = None
        for file, line, name in re.findall(r'File "([^"]+)", line (\d+), in (\S+)', part)[:40]:
            if project.contains(file):
                found = Place(name=name, file=file, line=int(line))
        if found is not None and (not start.name or start.name in part.splitlines()[0]):
            return found
    return None


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
