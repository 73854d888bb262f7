"""A rank that waits for its children: loader workers that hang, locks lost by a fork."""

import ast
from dataclasses import replace

from eroica.localize.locks import Lock, held, holders_in_source, waited_lock
from eroica.localize.source import FunctionInfo
from eroica.localize.source_calls import dotted
from eroica.localize.source_lines import line_calls
from eroica.localize.stuck_root import Blocked, Root, first_place
from eroica.localize.stuck_suspect import at
from eroica.localize.stuck_view import Child, RankView
from eroica.localize.waits import Wait
from eroica.records import Place


def child_root(rules: Blocked, view: RankView, wait: Wait, _depth: int) -> Root:
    root = children_root(rules, view, wait)
    if root is not None:
        return root
    return Root(
        "blocked_io",
        wait.user[:2],
        0.6,
        f"waits in `{wait.op}` for a child process",
        (f"the thread is at {at(first_place(wait), rules.project)}",),
        () if view.children else ("the child's stack was not seen",),
        "wait with a time-out; read both pipes of the child, so that it cannot fill one",
    )


def pipe_root(rules: Blocked, view: RankView, wait: Wait, _depth: int) -> Root:
    """A read of a pipe: where its other end is a child's that hangs, the child is the root."""
    root = children_root(rules, view, wait) if "Connection" in wait.op else None
    return root or rules.io(wait)


def loader_root(rules: Blocked, view: RankView, wait: Wait, _depth: int) -> Root | None:
    root = children_root(rules, view, wait)
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


def children_root(rules: Blocked, view: RankView, wait: Wait) -> Root | None:
    """The first child that waits for something that will not come."""
    roots = [r for c in view.children if (r := _in_child(rules, view, c, wait)) is not None]
    return max(roots, key=lambda r: r.confidence, default=None)


def _in_child(rules: Blocked, view: RankView, child: Child, wait: Wait) -> Root | None:
    main = child.main
    if main is None or not main.user:
        return None
    place = main.user[0]
    if _is_fork_point(main, wait) or (main.kind == "queue_get" and child.is_worker):
        return None  # it idles in the library, waiting for work
    if main.kind == "native" and not _is_forked(main):
        return None
    if main.kind in ("lock", "future", "event", "queue_put", "queue_get", "native"):
        others = [w for w in child.waits[1:] if w.user]
        return _forked(rules, view, child, main, wait, others, place)
    if main.kind in ("io", "file_lock", "sleep"):
        root = rules.io(main) if main.kind != "sleep" else rules.sleep(main)
        why = f"the rank waits for its child process {child.pid}, which is in `{main.op}`"
        return replace(root, why=(why, *root.why))
    return None


def _forked(
    rules: Blocked,
    view: RankView,
    child: Child,
    main: Wait,
    wait: Wait,
    others: list[Wait],
    place: Place,
) -> Root:
    lock = waited_lock(main, rules.project) if main.kind == "lock" else None
    name = f"lock `{lock}`" if lock else f"`{main.op}`"
    holder = _parent_holder(rules, view, lock, main)
    why = [
        f"child process {child.pid} waits for {name} at {at(place, rules.project)}",
        "it was forked: only the forking thread exists in it, a lock another thread held or a "
        "pool it ran is never released there",
    ]
    if holder is not None:
        why.append(f"in the parent that lock is taken at {at(holder, rules.project)}")
    confidence = 0.95 if lock and holder else (0.85 if lock else 0.7)
    if others:
        confidence -= 0.3
    made = _pool_made(rules, main) if holder is None else None
    return Root(
        "fork_lock_deadlock",
        (place, *(p for p in (holder, made) if p), *main.user[1:2], *wait.user[:1]),
        confidence,
        f"waits for a forked child that hangs on {name}",
        tuple(why),
        ("the child has other threads of its own",) if others else (),
        "start workers before the thread, or with multiprocessing_context='spawn'; or make the "
        "lock anew in the child (os.register_at_fork, worker_init_fn)",
    )


def _pool_made(rules: Blocked, main: Wait) -> Place | None:
    """Where the thread pool is made whose future a forked child waits for."""
    place = main.user[0]
    function = rules.project.enclosing(place.file, place.line)
    if function is None or place.line is None:
        return None
    names = {
        n.rpartition(".")[2]
        for c in line_calls(function, place.line)[1]
        if (n := dotted(c.func).rpartition(".")[0])
    }
    for maker in function.module.functions:
        for node in maker.own_nodes:
            if not isinstance(node, ast.Assign) or "Pool" not in ast.unparse(node.value):
                continue
            if any(dotted(t).rpartition(".")[2] in names for t in node.targets):
                return maker.place(node.lineno)
    return None


def _parent_holder(rules: Blocked, view: RankView, lock: Lock | None, main: Wait) -> Place | None:
    if lock is None:
        return None
    for other in view.threads:
        for hold in held(other, rules.project):
            if hold.lock.is_same(lock):
                return hold.place
    taken = holders_in_source(lock, rules.project)
    here = main.user[0].line if main.user else None
    targets = [s.target for s in rules.starts]
    elsewhere = [p for p in taken if p.line != here]
    for place in elsewhere:
        function = rules.project.enclosing(place.file, place.line)
        if function is not None and any(_same(function, t) for t in targets):
            return place
    return elsewhere[0] if elsewhere else None


def _same(a: FunctionInfo, b: FunctionInfo) -> bool:
    return a.node is b.node


def _is_forked(main: Wait) -> bool:
    """Whether a child's stack goes on from the parent's: it was forked and executed nothing."""
    frames = main.thread.frames if main.thread is not None else ()
    return any(
        place.name.endswith("fork") or (place.file or "").endswith("popen_fork.py")
        for place in (*frames, *main.user)
    )


def _is_fork_point(main: Wait, parent: Wait) -> bool:
    """Whether a child's innermost user frame is the parent's line that forked it."""
    if not main.user or not parent.user:
        return False
    if main.thread is None or not main.thread.frames:
        return False
    innermost_is_user = main.thread.frames[0] == main.user[0]
    here, there = main.user[0], parent.user[0]
    return not innermost_is_user and (here.file, here.line) == (there.file, there.line)
