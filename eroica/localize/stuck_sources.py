"""Ranks that all stand in one collective with a source, and take different ranks for it.

A broadcast ends for its source as soon as it has sent: ranks that disagree about the source, or
about which of many broadcasts comes next, stand at the same line for ever, some of them one call
ahead. Evidence is that nobody is elsewhere; where the loop around goes through a set, or through
a folder as the file system lists it, its order is the likely reason, for each process has its own.
"""

import ast

from eroica.localize.source import FunctionInfo
from eroica.localize.source_calls import dotted
from eroica.localize.source_flow import loops
from eroica.localize.stuck_peers import Peers
from eroica.localize.stuck_prose import ADVICE
from eroica.localize.stuck_suspect import Suspect, at
from eroica.localize.waits import Wait
from eroica.records import Place
from eroica.units import rank_phrase

ROOTED = frozenset(
    {"broadcast", "broadcast_object_list", "reduce", "scatter", "gather", "gather_object"}
)
UNORDERED_CALLS = frozenset({"set", "frozenset", "listdir", "scandir", "iterdir", "glob", "iglob"})
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})


def other_sources(peers: Peers) -> list[Suspect]:
    """Return the suspicion that ranks go through one row of collectives in different order."""
    if len(peers.groups) != 1 or set(peers.groups[0].ranks) != set(peers.world):
        return []
    group = peers.groups[0]
    wait, place = group.wait, group.wait.user[0] if group.wait.user else None
    if wait.op not in ROOTED or place is None or len(group.ranks) < 2:
        return []
    loop = _unordered_loop(peers, wait)
    apart = _apart(peers)
    if loop is None and not apart:
        return []
    why = [
        f"all ranks wait in `{wait.op}` at {at(place, peers.project)}; nobody is elsewhere",
        *([apart] if apart else []),
        f"a `{wait.op}` ends on one side before the other, so ranks that take different ranks for "
        "its source stand in it together",
    ]
    if loop is not None:
        why.append(
            f"the loop at {at(loop[0], peers.project)} goes through `{loop[1]}`, whose order is "
            "another in each process"
        )
    return [
        Suspect(
            category="collective_order_mismatch",
            ranks=peers.everyone(group.ranks),
            places=(wait.user[0], *([loop[0]] if loop else []), *wait.user[1:2]),
            confidence=0.85 if loop is not None else 0.6,
            summary=f"ranks are in different calls of `{wait.op}` at one line: "
            + (f"they go through `{loop[1]}` in different order" if loop else "sources differ"),
            why=tuple(why),
            against=() if loop else ("which rank each takes for the source was not seen",),
            advice="go through it in sorted order on every rank"
            if loop
            else ADVICE["collective_order_mismatch"],
        )
    ]


def _apart(peers: Peers) -> str:
    """Who is a call ahead by the recorder; empty where all are in the same, or none is known."""
    numbers: dict[int, list[int]] = {}
    for rank in peers.world:
        last = peers.by_rank[rank].last
        if last is None or last.sequence is None:
            return ""
        numbers.setdefault(last.sequence, []).append(rank)
    if len(numbers) < 2:
        return ""
    parts = [f"#{number} on {rank_phrase(ranks)}" for number, ranks in sorted(numbers.items())]
    return f"the recorder has {', '.join(parts)}"


def _unordered_loop(peers: Peers, wait: Wait) -> tuple[Place, str] | None:
    """The innermost loop around the call whose order is no program's, and what it goes through."""
    for frame in wait.user[:4]:
        function = peers.project.enclosing(frame.file, frame.line)
        if function is None or frame.line is None:
            continue
        for block in loops(function, frame.line):
            if isinstance(block.node, ast.For) and is_unordered(block.node.iter, function):
                return function.place(block.node.lineno), ast.unparse(block.node.iter)
    return None


def is_unordered(value: ast.expr, function: FunctionInfo, depth: int = 3) -> bool:
    """Whether an expression's order differs between processes: a set, or a folder as listed."""
    if isinstance(value, ast.Set | ast.SetComp):
        return True
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr | ast.BitAnd | ast.Sub):
        return is_unordered(value.left, function, depth)
    if isinstance(value, ast.Call):
        name = dotted(value.func, function.module).rpartition(".")[2]
        if name in UNORDERED_CALLS or name in SET_METHODS:
            return True
        is_through = name in ("list", "tuple", "enumerate", "iter", "copy") and value.args
        return bool(is_through) and is_unordered(value.args[0], function, depth)
    if not isinstance(value, ast.Name | ast.Attribute) or depth == 0:
        return False
    name = value.attr if isinstance(value, ast.Attribute) else value.id
    given = [
        node.value
        for node in ast.walk(function.module.tree if "." in dotted(value) else function.node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if (target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")) == name
    ]
    return bool(given) and all(is_unordered(one, function, depth - 1) for one in given)
