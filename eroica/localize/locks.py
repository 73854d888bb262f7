"""Locks, queues and events between the threads of one process, and locks lost by a fork.

A lock is known by the class that makes it and its attribute (``Feed.stats_lock``), else by its
name. A thread holds what the ``with`` statements around its frames hold, and what it acquired
earlier in the same function without a release in between.
"""

import ast
from dataclasses import dataclass

from eroica.localize.source import FunctionInfo, Project
from eroica.localize.source_calls import Calls, dotted
from eroica.localize.source_flow import blocks, swallowing_handlers
from eroica.localize.source_lines import is_lock, line_calls
from eroica.localize.waits import Wait, short
from eroica.records import Place


@dataclass(frozen=True)
class Lock:
    """A lock as the source names it."""

    name: str
    owner: str | None = None
    """Class that makes it, where that is clear."""

    def is_same(self, other: "Lock") -> bool:
        if self.name != other.name:
            return False
        return self.owner is None or other.owner is None or self.owner == other.owner

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


@dataclass(frozen=True)
class Hold:
    lock: Lock
    place: Place
    """Where it was taken."""


def identity(node: ast.expr, function: FunctionInfo, project: Project) -> Lock:
    """Return which lock (or queue, or event) an expression means."""
    if isinstance(node, ast.Call):
        node = node.func
    text = dotted(node)
    base, _, name = text.rpartition(".")
    if not base:
        return Lock(name)
    owners = project.makers.get(name, [])
    if base == "self" and function.class_name in owners:
        return Lock(name, function.class_name)
    if base != "self" and len(owners) == 1:
        return Lock(name, owners[0])
    return Lock(name, function.class_name if base == "self" and not owners else None)


def waited_lock(wait: Wait, project: Project) -> Lock | None:
    """Return the lock a thread waits for at its innermost user frame."""
    if not wait.user:
        return None
    place = wait.user[0]
    function = project.enclosing(place.file, place.line)
    if function is None or place.line is None:
        return None
    statement, calls = line_calls(function, place.line)
    if isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            if is_lock(item.context_expr, function):
                return identity(item.context_expr, function, project)
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("acquire", "wait"):
            return identity(call.func.value, function, project)
    return None


def receiver(wait: Wait, project: Project, methods: tuple[str, ...]) -> Lock | None:
    """Return the queue or event whose method a thread waits in."""
    if not wait.user or wait.user[0].line is None:
        return None
    function = project.enclosing(wait.user[0].file, wait.user[0].line)
    if function is None:
        return None
    for call in line_calls(function, wait.user[0].line)[1]:
        if isinstance(call.func, ast.Attribute) and call.func.attr in methods:
            return identity(call.func.value, function, project)
    return None


def held(wait: Wait, project: Project) -> list[Hold]:
    """Return the locks a thread holds, by the source around its frames, innermost first."""
    found: list[Hold] = []
    for place in wait.user:
        function = project.enclosing(place.file, place.line)
        if function is None or place.line is None:
            continue
        for block in blocks(function, place.line):
            if block.kind == "with" and isinstance(block.node, ast.With | ast.AsyncWith):
                for item in block.node.items:
                    if is_lock(item.context_expr, function):
                        lock = identity(item.context_expr, function, project)
                        found.append(Hold(lock, function.place(block.line)))
        found += _acquired(function, place.line, project)
    return found


def _acquired(function: FunctionInfo, line: int, project: Project) -> list[Hold]:
    taken: dict[str, Hold] = {}
    for node in function.own_nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.lineno >= line or not is_lock(node.func.value, function):
            continue
        text = ast.unparse(node.func.value)
        if node.func.attr == "acquire":
            lock = identity(node.func.value, function, project)
            taken[text] = Hold(lock, function.place(node.lineno))
        elif node.func.attr == "release":
            taken.pop(text, None)
    return list(taken.values())


def holders_in_source(lock: Lock, project: Project) -> list[Place]:
    """Return every place of the project that takes the lock."""
    found: list[Place] = []
    for function in project.functions:
        for node in function.own_nodes:
            if isinstance(node, ast.With | ast.AsyncWith):
                found += [
                    function.place(node.lineno)
                    for item in node.items
                    if is_lock(item.context_expr, function)
                    and identity(item.context_expr, function, project).is_same(lock)
                ]
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "acquire"
                and identity(node.func.value, function, project).is_same(lock)
            ):
                found.append(function.place(node.lineno))
    return found


@dataclass(frozen=True)
class ThreadStart:
    """``Thread(target=f)`` or ``executor.submit(f)`` in the source."""

    target: FunctionInfo
    place: Place
    name: str = ""


def thread_starts(project: Project, calls: Calls) -> list[ThreadStart]:
    """Return where the project starts threads, and with which of its functions."""
    found: list[ThreadStart] = []
    for function in project.functions:
        for node in function.own_nodes:
            if isinstance(node, ast.Call):
                target, name = _target(node)
                if target is not None:
                    fake = ast.Call(func=target, args=[], keywords=[])
                    here = function.place(node.lineno)
                    found += [ThreadStart(f, here, name) for f in calls.resolve(fake, function)]
        found += _subclass_runs(function)
    return found


def _target(node: ast.Call) -> tuple[ast.expr | None, str]:
    called = dotted(node.func).rpartition(".")[2]
    name = next(
        (
            str(k.value.value)
            for k in node.keywords
            if k.arg == "name" and isinstance(k.value, ast.Constant)
        ),
        "",
    )
    given = node.args[_TARGET_AT[called] :][:1] if called in _TARGET_AT else []
    if called in ("Thread", "Timer", "Process"):
        given = [k.value for k in node.keywords if k.arg in ("target", "function")] or given
    return (_called_by(given[0]) if given else None), name


_TARGET_AT = {
    **dict.fromkeys(("Thread", "Timer", "Process", "run_in_executor"), 1),
    **dict.fromkeys(("submit", "start_new_thread", "apply_async", "to_thread"), 0),
}
"""Position of the function that another thread or process is to run."""


def _called_by(target: ast.expr) -> ast.expr:
    """Return the function inside ``partial(f, ...)`` or ``lambda: f(...)``."""
    if isinstance(target, ast.Lambda) and isinstance(target.body, ast.Call):
        return target.body.func
    if isinstance(target, ast.Call) and dotted(target.func).rpartition(".")[2] == "partial":
        return target.args[0] if target.args else target
    return target


def _subclass_runs(function: FunctionInfo) -> list[ThreadStart]:
    """``class Pump(threading.Thread)``: its ``run`` is the target."""
    if function.name != "run" or function.class_name is None:
        return []
    node = function.module.classes.get(function.class_name)
    bases = {ast.unparse(b).rpartition(".")[2] for b in node.bases} if node else set()
    return [ThreadStart(function, function.place())] if "Thread" in bases else []


def method_sites(
    project: Project, lock: Lock | None, methods: tuple[str, ...]
) -> list[tuple[FunctionInfo, ast.Call]]:
    """Return calls of these methods on the same queue or event; on any, where it is unknown."""
    return [
        (function, node)
        for function in project.functions
        for node in function.own_nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
        and (lock is None or identity(node.func.value, function, project).is_same(lock))
    ]


def runs_in(function: FunctionInfo, wait: Wait) -> bool:
    """Whether a thread is inside a function of the project."""
    return any(
        short(p.name) == function.name
        and p.file
        and function.file.endswith(p.file.rpartition("/")[2])
        for p in wait.user
    )


def reaches(start: FunctionInfo, goal: FunctionInfo, calls: Calls, depth: int = 3) -> bool:
    """Whether a function calls another one, directly or through the project."""
    if start is goal:
        return True
    if depth <= 0:
        return False
    for node in start.own_nodes:
        if isinstance(node, ast.Call):
            for callee in calls.resolve(node, start):
                if callee is goal or (
                    callee is not start and reaches(callee, goal, calls, depth - 1)
                ):
                    return True
    return False


def quiet_ends(function: FunctionInfo) -> list[Place]:
    """Return where a thread's function may end without telling: handlers that return or stop."""
    found: list[Place] = []
    for node in function.own_nodes:
        if isinstance(node, ast.Try):
            inside = node.body[0].lineno
            for handler in swallowing_handlers(function, inside):
                if handler.jump in ("return", "break"):
                    jump = next(
                        (
                            n.lineno
                            for n in ast.walk(handler.node)
                            if isinstance(n, ast.Return | ast.Break)
                        ),
                        handler.line,
                    )
                    found.append(function.place(jump))
    return found
