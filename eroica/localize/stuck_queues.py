"""A thread that waits for another one: queues, events, joins, futures."""

import re
from collections.abc import Sequence
from dataclasses import replace

from eroica.localize.locks import (
    Lock,
    ThreadStart,
    method_sites,
    quiet_ends,
    reaches,
    receiver,
    runs_in,
)
from eroica.localize.source import Project
from eroica.localize.stuck_children import children_root
from eroica.localize.stuck_root import Blocked, Root, first_place, thread_name
from eroica.localize.stuck_suspect import at
from eroica.localize.stuck_view import RankView
from eroica.localize.waits import Wait, short
from eroica.records import LogEvent, Place, RankExit


def queue_root(rules: Blocked, view: RankView, wait: Wait, depth: int) -> Root | None:
    is_get = wait.kind == "queue_get"
    queue = receiver(wait, rules.project, ("get", "put", "join"))
    sides = ("put", "put_nowait") if is_get else ("get", "get_nowait", "task_done")
    root = _counterpart(rules, view, wait, queue, sides, depth)
    if root is not None:
        return root
    if view.children:
        return children_root(rules, view, wait)
    role = "filled by nobody" if is_get else "full and emptied by nobody"
    return Root(
        "thread_lock_deadlock",
        wait.user[:2],
        0.6,
        f"waits on a queue that is {role}",
        (f"the thread is in `{wait.op}` at {at(first_place(wait), rules.project)}",),
        advice="put and get with a time-out and check that the other side is alive",
    )


def event_root(rules: Blocked, view: RankView, wait: Wait, depth: int) -> Root:
    event = receiver(wait, rules.project, ("wait", "wait_for"))
    root = _counterpart(rules, view, wait, event, ("set", "notify", "notify_all"), depth)
    if root is not None:
        return root
    return Root(
        "thread_lock_deadlock",
        wait.user[:2],
        0.55,
        f"waits for {f'`{event}`' if event else 'an event'}, which nobody sets",
        (f"the thread is in `{wait.op}` at {at(first_place(wait), rules.project)}",),
        advice="wait with a time-out and check that the other side is alive",
    )


def _counterpart(
    rules: Blocked,
    view: RankView,
    wait: Wait,
    thing: Lock | None,
    methods: tuple[str, ...],
    depth: int,
) -> Root | None:
    """The thread that should fill, empty or set ``thing``: what it waits for, or its end."""
    sites = method_sites(rules.project, thing, methods)
    functions = list(dict.fromkeys(f for f, _ in sites))
    if not functions:
        functions = [s.target for s in rules.starts]
    started = [s for s in rules.starts if any(reaches(s.target, f, rules.calls) for f in functions)]
    for other in view.threads:
        if other.thread is wait.thread:
            continue
        concerned = any(runs_in(f, other) for f in functions) or any(
            runs_in(s.target, other) for s in started
        )
        if concerned:
            return _through(rules, view, wait, other, depth)
    if not started:
        return _died(rules, view, wait)
    if view.evidence.stacks and len(view.threads) < 1:
        return None
    site = next((f.place(c.lineno) for f, c in sites if f is started[0].target), None)
    return _dead(rules, view, wait, started[0], thing, site)


def _died(rules: Blocked, view: RankView, wait: Wait) -> Root | None:
    """A thread that the source does not show being started, but that the hook saw die."""
    for error in reversed(view.evidence.thread_errors):
        mine = [p for p in error.frames if rules.project.contains(p.file)]
        if mine:
            return Root(
                "exception_swallowed",
                (mine[0], *wait.user[:1]),
                0.8,
                f"waits in `{wait.op}` while one of its threads has died",
                (
                    f"thread {error.thread or '?'} ended with {_said(error)} at "
                    f"{at(mine[0], rules.project)}; nothing told the training thread",
                ),
                ("that this thread was the one waited for is not certain",),
                "let the worker thread report its error and end the job; wait with a time-out",
            )
    return None


def _said(error: RankExit) -> str:
    lines = (error.message or "").splitlines() or [""]
    return f"{error.error_type}: {lines[0][:120]}".rstrip(": ")


def _through(rules: Blocked, view: RankView, wait: Wait, other: Wait, depth: int) -> Root | None:
    if other.is_distributed:
        return Root(
            "collective_order_mismatch",
            (*other.user[:1], *wait.user[:1]),
            0.6,
            f"waits for thread {thread_name(other)}, which is in `{other.op}`",
            (f"the thread it waits for is itself in `{other.op}`, waiting for other ranks",),
            advice="issue collectives from one thread only",
        )
    deeper = rules.root(view, other, depth - 1)
    if deeper is None:
        return None
    chain = (
        f"the training thread waits at {at(first_place(wait), rules.project)} for thread "
        f"{thread_name(other)}"
    )
    return replace(
        deeper,
        places=(*deeper.places, *wait.user[:1]),
        why=(chain, *deeper.why),
    )


def _dead(
    rules: Blocked,
    view: RankView,
    wait: Wait,
    start: ThreadStart,
    thing: Lock | None,
    site: Place | None,
) -> Root:
    """The thread of the other side is not among the threads of the process."""
    ends = quiet_ends(start.target)
    crashed = _crash_place(view, start, rules.project, rules.log_events)
    is_put = wait.kind == "queue_put"
    name = f"`{thing}`" if thing else "the queue"
    what = f"{name} is full" if is_put else f"nothing will come from {name}"
    why = [
        f"{what}: its thread runs {start.target.qualified_name} "
        f"({rules.project.name_in_root(start.target.file)}:{start.target.line}), started at "
        f"{at(start.place, rules.project)}, and is not among the threads of the process"
    ]
    if crashed is not None:
        place, said = crashed
        why.append(f"that thread ended with {said} at {at(place, rules.project)}")
    elif ends:
        why.append(f"it returns quietly from an exception at {at(ends[0], rules.project)}")
    end = crashed[0] if crashed else (ends[0] if ends else site or start.target.place())
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


def thread_root(rules: Blocked, view: RankView, wait: Wait, depth: int) -> Root | None:
    others = [w for w in view.threads if w.thread is not wait.thread and w.user]
    for other in others:
        if other.is_distributed:
            return None
        root = rules.root(view, other, depth - 1)
        if root is not None:
            why = f"the training thread waits for it at {at(first_place(wait), rules.project)}"
            return replace(root, places=(*root.places, *wait.user[:1]), why=(*root.why, why))
    if not others:
        return Root(
            "thread_lock_deadlock",
            wait.user[:2],
            0.5,
            f"waits in `{wait.op}` for a thread that is not there",
            (f"it is at {at(first_place(wait), rules.project)}; no other user thread runs",),
            advice="wait with a time-out and check that the worker is alive",
        )
    return None


def _crash_place(
    view: RankView, start: ThreadStart, project: Project, events: Sequence[LogEvent]
) -> tuple[Place, str] | None:
    """The innermost project frame of the thread's own traceback and its error.

    The hook has it first hand; else the log may.
    """
    for error in view.evidence.thread_errors:
        mine = [p for p in error.frames if project.contains(p.file)]
        if mine and (any(short(p.name) == start.target.name for p in mine) or _is(error, start)):
            return mine[0], _said(error)
    for event in events:
        if event.rank not in (None, view.rank) or not event.frames:
            continue
        mine = [p for p in event.frames if project.contains(p.file)]
        if any(short(p.name) == start.target.name for p in mine):
            return mine[0], "a traceback in the log"
    for part in re.split(r"Exception in thread ", view.evidence.log_tail)[1:]:
        found = None
        for file, line, name in re.findall(r'File "([^"]+)", line (\d+), in (\S+)', part)[:40]:
            if project.contains(file):
                found = Place(name=name, file=file, line=int(line))
        if found is not None and (not start.name or start.name in part.splitlines()[0]):
            return found, "a traceback in the log"
    return None


def _is(error: RankExit, start: ThreadStart) -> bool:
    return bool(start.name) and start.name == error.thread
