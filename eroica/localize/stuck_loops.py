"""Loops that end at different times on different ranks: breaks, errors, uneven data, clocks."""

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from eroica.localize.source import FunctionInfo
from eroica.localize.source_depend import AGREED, LOCAL, REGISTERED
from eroica.localize.source_flow import Block, Loop, breaks, head_loop, loops, swallowing_handlers
from eroica.localize.source_values import assigned_values
from eroica.localize.stuck_reason import LIKELY, WEAK, Group, Reason

if TYPE_CHECKING:
    from eroica.localize.stuck_divergence import Divergence


def loop_reasons(
    divergence: "Divergence",
    function: FunctionInfo,
    line: int,
    beside: int | None,
    waiter: Group,
    skipper: Group,
) -> Iterator[Reason]:
    """Yield why a loop around the waiter, and not around the skipper, ended for the skipper.

    For it: a break, an error or a length that ranks decide alone. Against: a range of constants,
    a sampled loader, a flag agreed in a collective; these score too low to be named.
    """
    common = {id(b.node) for b in loops(function, beside)} if beside is not None else set()
    if beside is not None:
        head = head_loop(function, beside)
        common |= {id(head.node)} if head is not None else set()
    own = [b for b in loops(function, line) if id(b.node) not in common]
    for depth, block in enumerate(reversed(own)):  # outermost first
        fade = 0.85**depth
        assert isinstance(block.node, ast.For | ast.AsyncFor | ast.While)
        yield from _left_early(divergence, block, function, waiter, skipper, fade)
        yield from _stopped_by_error(divergence, block.node, function, waiter, skipper, fade)
        reason = _uneven(divergence, block, block.node, function, waiter, skipper, fade)
        if reason is not None:
            yield reason


def _left_early(
    divergence: "Divergence",
    block: Block,
    function: FunctionInfo,
    waiter: Group,
    skipper: Group,
    fade: float,
) -> Iterator[Reason]:
    """A ``break`` or ``return`` on something that ranks may see differently."""
    assert isinstance(block.node, ast.For | ast.AsyncFor | ast.While)
    for guard in breaks(block.node):
        if guard.jump in ("raise", "exit"):
            continue
        score, tags = divergence.score(
            guard.test, function, waiter.ranks, skipper.ranks, guard.is_negated
        )
        if score >= LIKELY:
            score = max(score, 0.76) * fade
        yield Reason(
            "break", score, waiter, skipper, function.place(guard.line), guard.text, tags,
            guard.jump,
        )  # fmt: skip


def _stopped_by_error(
    divergence: "Divergence",
    loop: Loop,
    function: FunctionInfo,
    waiter: Group,
    skipper: Group,
    fade: float,
) -> Iterator[Reason]:
    """``except ...: break`` in the loop: the end of an iterator, or an error, ends it."""
    for node in ast.walk(loop):
        if not isinstance(node, ast.Try):
            continue
        for handler in swallowing_handlers(function, node.body[0].lineno):
            if handler.jump not in ("break", "return"):
                continue
            ends = "StopIteration" in handler.types
            yield Reason(
                "loop" if ends else "handler", (0.7 if ends else 0.74) * fade, waiter, skipper,
                function.place(handler.line), handler.types, frozenset({"data"}), handler.jump,
            )  # fmt: skip


def _uneven(
    divergence: "Divergence",
    block: Block,
    loop: Loop,
    function: FunctionInfo,
    waiter: Group,
    skipper: Group,
    fade: float,
) -> Reason | None:
    """An iterable that may be longer on some ranks, or a ``while`` each rank decides alone."""
    test = block.test
    if test is None:
        return None
    tags = divergence.depends.of(test, function)
    if AGREED in tags and not tags & LOCAL:
        return None
    training = waiter.wait.kind == "backward" or divergence.is_training_loop(loop, function)
    score = (0.62 if tags & LOCAL else WEAK) * fade
    if REGISTERED in tags:
        score = 0.75 * fade
    if isinstance(loop, ast.While):
        score = (0.74 if tags & LOCAL else WEAK) * fade
    elif REGISTERED not in tags and _is_same_everywhere(test, function):
        score = 0.25 * fade
    elif not tags & LOCAL and _is_sized_data(test):
        score = 0.58 * fade
    return Reason(
        "while" if isinstance(loop, ast.While) else "loop", score, waiter, skipper,
        function.place(block.line), block.text, tags, "", not training,
    )  # fmt: skip


def _is_same_everywhere(iterable: ast.expr, function: FunctionInfo) -> bool:
    """Whether a loop has as many rounds on every rank: a model's parts, a sampled loader."""
    text = ast.unparse(iterable)
    if any(f"{part}()" in text for part in ("parameters", "buffers", "modules", "children")):
        return True
    for name in {n.id for n in ast.walk(iterable) if isinstance(n, ast.Name)}:
        for value in assigned_values(function, name):
            text = ast.unparse(value.node)
            if "DataLoader(" in text and "sampler" in text:
                return True
    return False


def _is_sized_data(iterable: ast.expr) -> bool:
    text = ast.unparse(iterable)
    return not text.startswith("range(") or "len(" in text
