"""Keys of the store that ranks wait for and that nobody sets."""

import ast
from collections.abc import Sequence

from eroica.localize.source_depend import LOCAL, RANK
from eroica.localize.source_flow import blocks, guards, swallowing_handlers
from eroica.localize.stuck_peers import Peers
from eroica.localize.stuck_prose import verb
from eroica.localize.stuck_suspect import Suspect, at
from eroica.localize.stuck_view import RankView, innermost
from eroica.localize.waits import Wait
from eroica.records import Place
from eroica.units import rank_phrase


def store(peers: Peers, waiting: Sequence[RankView]) -> list[Suspect]:
    """Return why a key that ranks wait for in the store is not set."""
    first = waiting[0].wait
    if first is None:
        return []
    ranks = [v.rank for v in waiting]
    away = [v.rank for v in peers.views if v.rank not in ranks]
    reasons = _unset(peers)
    where = first.user[:2]
    text = f"{rank_phrase(ranks)} {verb(ranks, 'wait')} in the store"
    waits = Suspect(
        category="polling_wait",
        ranks=tuple(ranks),
        places=where,
        confidence=0.6,
        summary=f"{text} for a key that nobody sets",
        why=(f"they are in `{first.op}` at {at(where[0] if where else None, peers.project)}",),
        advice="set the key on every path, also on errors; or broadcast the result instead",
        victims=tuple(away),
    )
    return [*(_skipped_set(peers, r, away, first, text) for r in reasons[:1]), waits]


def _unset(peers: Peers) -> list[tuple[float, Place, str, str]]:
    """Conditions under which the ranks that do not wait leave before ``store.set``."""
    found: list[tuple[float, Place, str, str]] = []
    depends = peers.divergence.depends
    for function in peers.project.functions:
        for node in function.own_nodes:
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            is_store = "store" in ast.unparse(node.func.value).lower()
            if not is_store or node.func.attr not in ("set", "add", "compare_set"):
                continue
            for guard in guards(function, node.lineno):
                tags = depends.of(guard.test, function)
                if tags & LOCAL and guard.jump in ("return", "continue", "break"):
                    place = function.place(guard.line)
                    found.append((0.8, place, guard.text, guard.jump))
            for block in blocks(function, node.lineno):
                if block.kind == "if" and block.test is not None:
                    tags = depends.of(block.test, function)
                    if tags & LOCAL and RANK not in tags:
                        place = function.place(block.line)
                        found.append((0.7, place, block.text, "another branch"))
            for handler in swallowing_handlers(function, node.lineno):
                place = function.place(handler.line)
                found.append((0.65, place, handler.types, "except"))
    return sorted(found, key=lambda f: -f[0])


def _skipped_set(
    peers: Peers, reason: tuple[float, Place, str, str], away: list[int], wait: Wait, text: str
) -> Suspect:
    score, place, condition, jump = reason
    category = "exception_swallowed" if jump == "except" else "divergent_control_flow"
    return Suspect(
        category=category,
        ranks=tuple(away),
        places=(place, *wait.user[:1]),
        confidence=score if away else 0.3,
        summary=f"{text} for a key that {rank_phrase(away) if away else 'nobody'} did not set",
        why=(
            f"`{condition}` at {at(place, peers.project)} leads past `store.set` by {jump}",
            f"they are in `{wait.op}` at {at(innermost(wait), peers.project)}",
        ),
        advice="set the key on every path, also on errors; or broadcast the result instead",
        victims=tuple(r for r in peers.world if r not in away),
    )
