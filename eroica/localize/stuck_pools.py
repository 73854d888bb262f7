"""Waits for a result: of a pool full of waiters, of a task that ended without giving one."""

import ast
from collections.abc import Sequence

from eroica.localize.locks import method_sites
from eroica.localize.source_flow import swallowing_handlers
from eroica.localize.stuck_root import Blocked, Root, Rule, first_place
from eroica.localize.stuck_suspect import at
from eroica.localize.stuck_view import RankView
from eroica.localize.waits import Wait, short

_WORKERS = (("_worker", "concurrent/futures/thread.py"), ("worker", "multiprocessing/pool.py"))
_RESULTS = (
    ("result", "concurrent/futures/_base.py"),
    ("wait", "concurrent/futures/_base.py"),
    ("get", "multiprocessing/pool.py"),
    ("wait", "multiprocessing/pool.py"),
)


def _has(wait: Wait, known: Sequence[tuple[str, str]]) -> bool:
    frames = wait.thread.frames if wait.thread is not None else ()
    return any(
        short(f.name) == name and (f.file or "").endswith(file)
        for f in frames
        for name, file in known
    )


def or_full_pool(rule: Rule) -> Rule:
    """Return ``rule`` for waits on a task's result that first looks for a pool full of waiters."""

    def follow(rules: Blocked, view: RankView, wait: Wait, depth: int) -> Root | None:
        workers = [w for w in view.threads if _has(w, _WORKERS)]
        # A worker without user frames is idle: the pool could still run what is asked of it.
        if workers and all(w.user and _has(w, _RESULTS) for w in workers):
            return _exhausted(rules, wait, workers)
        others = [w for w in view.threads if w.thread is not wait.thread and w.user]
        lost = _lost_result(rules, wait) if wait.op == "Future.result" and not others else None
        return lost or rule(rules, view, wait, depth)

    return follow


def _lost_result(rules: Blocked, wait: Wait) -> Root | None:
    """No thread is left that could set it, and who sets it may swallow an error before."""
    for function, call in method_sites(rules.project, None, ("set_result",)):
        for handler in swallowing_handlers(function, call.lineno):
            if any(
                isinstance(n, ast.Attribute) and n.attr == "set_exception"
                for n in ast.walk(handler.node)
            ):
                continue
            end = function.place(handler.node.body[-1].lineno)
            return Root(
                "exception_swallowed",
                (end, *wait.user[:1]),
                0.85,
                "waits for the result of a task that has ended without one",
                (
                    f"the result is set at {at(function.place(call.lineno), rules.project)}, and "
                    f"the handler at {at(end, rules.project)} goes on without set_exception",
                    "no other thread of the process is in the project's code",
                ),
                ("that the handler was taken was not seen",),
                "pass the error on with future.set_exception(error); wait with a time-out",
            )
    return None


def _exhausted(rules: Blocked, wait: Wait, workers: list[Wait]) -> Root:
    inner, count = workers[0], len(workers)
    threads = "the only thread" if count == 1 else f"all {count} threads"
    return Root(
        "thread_lock_deadlock",
        (*inner.user[:1], *(p for p in wait.user[:1] if p not in inner.user[:1])),
        0.95,
        "waits for a thread pool whose threads all wait for further tasks of the pool",
        (
            f"{threads} of the pool wait for results at {at(first_place(inner), rules.project)}",
            "the tasks they wait for stand in the same pool's queue, and no thread is left to "
            "run them",
        ),
        advice="give the inner tasks a pool of their own, run them in place, or let the outer "
        "task return futures instead of waiting for them",
    )
