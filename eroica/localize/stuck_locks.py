"""A thread that waits for a lock: held by whom, taken in which order, or never released."""

from collections.abc import Sequence
from dataclasses import replace

from eroica.localize.locks import Hold, Lock, held, holders_in_source, waited_lock
from eroica.localize.stuck_root import Blocked, Root, thread_name
from eroica.localize.stuck_suspect import at
from eroica.localize.stuck_view import RankView
from eroica.localize.waits import Wait


def lock_root(rules: Blocked, view: RankView, wait: Wait, depth: int) -> Root:
    lock = waited_lock(wait, rules.project)
    name = f"`{lock}`" if lock else "a lock"
    mine = held(wait, rules.project)
    if lock and any(h.lock.is_same(lock) for h in mine):
        outer = next(h for h in mine if h.lock.is_same(lock))
        return Root(
            "thread_lock_deadlock",
            (*wait.user[:1], outer.place),
            0.85,
            f"waits for {name}, which the same thread already holds",
            (f"{name} was taken at {at(outer.place, rules.project)} and is taken again",),
            advice="use an RLock, or take the lock once at the outer level",
        )
    found = _holder(rules, view, wait, lock)
    if found is None:
        return _lost_lock(rules, wait, lock, name)
    holder, hold = found
    return _held_by(rules, view, wait, name, holder, hold, mine, depth)


def _holder(
    rules: Blocked, view: RankView, wait: Wait, lock: Lock | None
) -> tuple[Wait, Hold] | None:
    if lock is None:
        return None
    for other in view.threads:
        if other is not wait and other.thread is not wait.thread:
            for hold in held(other, rules.project):
                if hold.lock.is_same(lock):
                    return other, hold
    return None


def _held_by(
    rules: Blocked,
    view: RankView,
    wait: Wait,
    name: str,
    holder: Wait,
    hold: Hold,
    mine: Sequence[Hold],
    depth: int,
) -> Root:
    their = thread_name(holder)
    why = f"{name} is held by thread {their} since {at(hold.place, rules.project)}"
    wanted = waited_lock(holder, rules.project) if holder.kind == "lock" else None
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
                f"{at(back.place, rules.project)}: the two take the locks in opposite order",
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
    deeper = rules.root(view, holder, depth - 1) if holder.kind != "lock" else None
    if deeper is None and holder.kind == "lock":
        deeper = lock_root(rules, view, holder, depth - 1) if depth > 1 else None
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


def _lost_lock(rules: Blocked, wait: Wait, lock: Lock | None, name: str) -> Root:
    taken = holders_in_source(lock, rules.project) if lock else []
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
