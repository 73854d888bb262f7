"""Where a rank was when it ended without a word: no traceback, no stack.

A rank that left normally passed a ``return``, ``break`` or exit near its last collective; one that
was killed was last seen in a stall sample, in its own Flight Recorder, or is missed by its peers.
"""

import ast
from collections.abc import Sequence

from eroica.localize.source import FunctionInfo, Project
from eroica.localize.source_calls import dotted
from eroica.localize.source_flow import blocks, loops
from eroica.localize.stuck_view import RankView
from eroica.records import Place

_EXITS = ("sys.exit", "exit", "quit", "os._exit")


def last_places(
    view: RankView, peers: Sequence[RankView], project: Project, *, is_clean: bool
) -> tuple[Place, ...]:
    """Return where the rank left, else where it was last seen, else where its peers miss it."""
    own = _mine(view.last.frames if view.last is not None else (), project)
    left = _left(own, project) if is_clean else ()
    return left or _stalled(view, project) or own[:2] or _missed(peers, project)


def _mine(frames: Sequence[Place], project: Project) -> tuple[Place, ...]:
    return tuple(p for p in frames if project.contains(p.file))


def _stalled(view: RankView, project: Project) -> tuple[Place, ...]:
    if not view.evidence.stalls:
        return ()
    threads = view.evidence.stalls[-1].stacks.threads
    main = next((t for t in threads if t.is_main or t.name == "MainThread"), None)
    return _mine(main.frames, project)[:2] if main is not None else ()


def _missed(peers: Sequence[RankView], project: Project) -> tuple[Place, ...]:
    """Where the others stood: in the collective that never came to an end."""
    for peer in peers:
        ended = _mine(peer.evidence.exit.frames, project) if peer.evidence.exit else ()
        here = ended or (peer.wait.user if peer.wait is not None else ())
        if here:
            return here[:2]
    return ()


def _left(frames: Sequence[Place], project: Project) -> tuple[Place, ...]:
    """The first way out of the loops around the last collective, and the condition before it."""
    for frame in frames:
        function = project.enclosing(frame.file, frame.line)
        if function is None or not frame.line:
            continue
        around = loops(function, frame.line)
        for node in _ways_out(function):
            inside = not around or _covers(around[-1].node, node.lineno)
            if inside and _is_under_condition(function, node.lineno):
                return function.place(node.lineno), *_condition(function, node.lineno)
    return ()


def _ways_out(function: FunctionInfo) -> list[ast.Return | ast.Break | ast.Call]:
    nodes = function.own_nodes
    found: list[ast.Return | ast.Break | ast.Call] = [
        n for n in nodes if isinstance(n, ast.Return | ast.Break)
    ]
    found += [
        n for n in nodes if isinstance(n, ast.Call) and dotted(n.func, function.module) in _EXITS
    ]
    return sorted(found, key=lambda n: n.lineno)


def _covers(node: ast.AST, line: int) -> bool:
    start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0
    return bool(start <= line <= end)


def _is_under_condition(function: FunctionInfo, line: int) -> bool:
    return any(b.kind == "if" for b in blocks(function, line))


def _condition(function: FunctionInfo, line: int) -> tuple[Place, ...]:
    test = next((b for b in blocks(function, line) if b.kind == "if"), None)
    return (function.place(test.line),) if test is not None else ()
