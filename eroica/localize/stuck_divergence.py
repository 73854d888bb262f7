"""Why one group of ranks passed a collective that another group waits in.

Two groups stand at different places. Either S went past the collective W waits in, or W went
past that of S. For each direction the syntax trees are searched for a reason: a condition, a
guard, an exception handler or a loop that lets some ranks past. A condition on the rank that
holds for exactly one of the groups is as good as proof; one on local data is likely; one on
configuration or the step number is none. Long because the kinds of reason share one search.
"""

import ast
from collections.abc import Iterator

from eroica.localize.source import FunctionInfo, Project
from eroica.localize.source_calls import Calls, dotted
from eroica.localize.source_choices import (
    case_at,
    case_choices,
    inline_choices,
    rank_decorators,
)
from eroica.localize.source_depend import LOCAL, RANK, Depends
from eroica.localize.source_flow import (
    Guard,
    blocks,
    guards,
    head_loop,
    loops,
    swallowing_handlers,
)
from eroica.localize.source_lines import line_calls
from eroica.localize.source_rank import RankEvaluator
from eroica.localize.stuck_forward import missing_bucket
from eroica.localize.stuck_loops import loop_reasons
from eroica.localize.stuck_reason import LIKELY, PROVEN, RANK_LIKELY, WEAK, Group, Reason
from eroica.localize.waits import short
from eroica.records import Place


class Divergence:
    """Finds reasons in one project."""

    def __init__(self, project: Project, world_size: int, local_ranks: dict[int, int]) -> None:
        self.project = project
        self.calls = Calls(project)
        self.depends = Depends(project, self.calls)
        self.world_size, self._local_ranks = world_size, local_ranks
        self._evaluators: dict[int, RankEvaluator] = {}

    def reasons(self, waiter: Group, skipper: Group) -> list[Reason]:
        """Return why ``skipper`` passed the collective of ``waiter``, best first."""
        found = list(self._search(waiter, skipper))
        return sorted((r for r in found if r.score > 0), key=lambda r: -r.score)

    def _search(self, waiter: Group, skipper: Group) -> Iterator[Reason]:
        path, other = waiter.path, skipper.path
        fork = _fork(path, other)
        other_line = other[fork].line if fork < len(other) and fork < len(path) else None
        same_function = (
            fork < len(path) and fork < len(other) and _same_function(path[fork], other[fork])
        )
        if same_function and not self._can_pass(path, other, fork):
            return
        for index in range(fork, len(path)):
            function = self.project.enclosing(path[index].file, path[index].line)
            line = path[index].line
            if function is None or line is None:
                continue
            beside = other_line if index == fork and same_function else None
            entered = path[index + 1] if index + 1 < len(path) else None
            yield from self._conditions(function, line, beside, waiter, skipper)
            yield from self._choices(function, line, beside, entered, waiter, skipper)
            if beside is None:
                yield from _decorated(function, waiter, skipper)
            yield from self._guards(function, line, beside, waiter, skipper)
            yield from self._handlers(function, line, beside, waiter, skipper)
            if not (index > fork and same_function and self._is_suspended(path, other, fork)):
                yield from loop_reasons(self, function, line, beside, waiter, skipper)
            if entered is not None:
                yield from self._dispatch(function, line, entered, waiter, skipper)
        if same_function and waiter.wait.kind == "backward":
            yield from missing_bucket(
                self.project, self.depends, path[fork], other[fork], waiter, skipper
            )

    def _is_suspended(self, path: tuple[Place, ...], other: tuple[Place, ...], fork: int) -> bool:
        """Whether a rank at ``other`` is in the body of a loop over a generator that the waiter is
        inside of: the generator's own loops go on, they are not left."""
        function = self.project.enclosing(path[fork].file, path[fork].line)
        inner = self.project.enclosing(path[fork + 1].file, path[fork + 1].line)
        if function is None or inner is None:
            return False
        if not any(isinstance(n, ast.Yield | ast.YieldFrom) for n in inner.own_nodes):
            return False
        head = head_loop(function, path[fork].line or 0)
        inside = {id(b.node) for b in loops(function, other[fork].line or 0)}
        return head is not None and id(head.node) in inside

    def in_branches(self, a: Place, b: Place) -> bool:
        """Whether two places stand in different branches of one condition."""
        function = self.project.enclosing(a.file, a.line)
        other = self.project.enclosing(b.file, b.line)
        if function is None or other is None or function.node is not other.node:
            return False
        return _in_other_branch(function, a.line or 0, b.line or 0)

    def _can_pass(self, path: tuple[Place, ...], other: tuple[Place, ...], fork: int) -> bool:
        """Whether a rank at ``other`` can have been at ``path`` before: after it, or in a loop."""
        here, there = path[fork].line or 0, other[fork].line or 0
        if there > here:
            return True
        function = self.project.enclosing(path[fork].file, here)
        if function is None:
            return True
        if _around(function, here) & _around(function, there):
            return True
        for place in path[:fork]:  # the whole function may be called again and again
            outer = self.project.enclosing(place.file, place.line)
            if outer is not None and place.line and loops(outer, place.line):
                return True
        exclusive = {id(b.node) for b in blocks(function, here) if b.kind == "if"} & {
            id(b.node) for b in blocks(function, there) if b.kind == "if"
        }
        return bool(exclusive) and _in_other_branch(function, here, there)

    # conditions around the collective
    def _conditions(
        self, function: FunctionInfo, line: int, beside: int | None, waiter: Group, skipper: Group
    ) -> Iterator[Reason]:
        common = _common(function, beside) if beside is not None else set()
        for block in blocks(function, line):
            if block.kind not in ("if", "while") or (id(block.node), block.branch) in common:
                continue
            if block.test is None or block.branch not in ("body", "orelse"):
                continue
            if block.kind == "while":
                continue
            score, tags = self.score(
                block.test, function, waiter.ranks, skipper.ranks, block.branch == "body"
            )
            yield Reason(
                "condition", score, waiter, skipper, function.place(block.line), block.text, tags,
                repeats=self._is_item_loop(function, block.line),
            )  # fmt: skip

    def _choices(
        self,
        function: FunctionInfo,
        line: int,
        beside: int | None,
        entered: Place | None,
        waiter: Group,
        skipper: Group,
    ) -> Iterator[Reason]:
        """Conditions that are no ``if`` statement: inside the line's own, or a ``case``."""
        found = inline_choices(function, line, entered)
        for block in blocks(function, line):
            if isinstance(block.node, ast.Match):
                there = case_at(block.node, beside) if beside is not None else None
                if there is None or there != case_at(block.node, line):
                    found += case_choices(block.node, line)
        for test, wanted in found:
            score, tags = self.score(test, function, waiter.ranks, skipper.ranks, wanted)
            text = ast.unparse(test) if wanted else f"not ({ast.unparse(test)})"
            place = function.place(test.lineno)
            yield Reason("condition", score, waiter, skipper, place, text, tags)

    def _is_item_loop(self, function: FunctionInfo, line: int) -> bool:
        """Whether a line stands in a loop over items rather than over steps."""
        inner = next(iter(loops(function, line)), None)
        return inner is not None and not self.is_training_loop(inner.node, function)

    def _dispatch(
        self,
        function: FunctionInfo,
        line: int,
        entered: Place,
        waiter: Group,
        skipper: Group,
    ) -> Iterator[Reason]:
        """``logger.log()`` where the object itself is another one on some ranks."""
        for call in line_calls(function, line)[1]:
            if not isinstance(call.func, ast.Attribute) or call.func.attr != short(entered.name):
                continue
            if isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls"):
                continue
            tags = self.depends.of(call.func.value, function)
            if RANK in tags:
                text = ast.unparse(call.func.value)
                place = function.place(line)
                yield Reason("dispatch", 0.72, waiter, skipper, place, text, frozenset({RANK}))

    def score(
        self,
        test: ast.expr,
        function: FunctionInfo,
        entering: tuple[int, ...],
        passing: tuple[int, ...],
        wanted: bool,
    ) -> tuple[float, frozenset[str]]:
        """Score a test that must be ``wanted`` for the entering ranks and not for the passing."""
        tags = self.depends.of(test, function)
        inside = {self._truth(test, function, r) for r in sample(entering)}
        outside = {self._truth(test, function, r) for r in sample(passing)}
        if (not wanted) in inside or wanted in outside:
            return 0.0, tags
        is_decided = outside == {not wanted} or inside == {wanted}
        if is_decided and (RANK in tags or None not in inside | outside):
            return PROVEN, tags
        if RANK in tags:
            return RANK_LIKELY, tags
        return (LIKELY if tags & LOCAL else WEAK), tags

    def _truth(self, test: ast.expr, function: FunctionInfo, rank: int) -> bool | None:
        if not 0 <= rank < self.world_size:
            return None
        if rank not in self._evaluators:
            local = self._local_ranks.get(rank)
            self._evaluators[rank] = RankEvaluator(self.calls, rank, self.world_size, local)
        return self._evaluators[rank].truth(test, function)

    # guards before it
    def _guards(
        self, function: FunctionInfo, line: int, beside: int | None, waiter: Group, skipper: Group
    ) -> Iterator[Reason]:
        passed = {id(g.test) for g in guards(function, beside)} if beside is not None else set()
        around = {id(b.node): b for b in loops(function, line)}
        inner = next(iter(loops(function, line)), None)
        for guard in guards(function, line):
            if id(guard.test) in passed or guard.jump in ("raise", "exit"):
                continue
            if self._is_stop_iteration(guard):
                continue
            wanted = guard.is_negated  # the waiter did not jump
            score, tags = self.score(guard.test, function, waiter.ranks, skipper.ranks, wanted)
            repeats = (
                inner is not None
                and guard.loop is inner.node
                and id(guard.loop) in around
                and not self.is_training_loop(inner.node, function)
            )
            yield Reason(
                "guard", score, waiter, skipper, function.place(guard.line), guard.text, tags,
                guard.jump, repeats,
            )  # fmt: skip

    def _is_stop_iteration(self, guard: Guard) -> bool:
        return "is_initialized" in guard.text or "is_available" in guard.text

    def is_training_loop(self, loop: ast.AST, function: FunctionInfo) -> bool:
        """Whether a loop's body steps an optimizer or runs backward, itself or through a call."""
        for node in ast.walk(loop):
            if not isinstance(node, ast.Call):
                continue
            name = dotted(node.func).rpartition(".")[2]
            if name in ("backward", "step", "zero_grad"):
                return True
            for callee in self.calls.resolve(node, function):
                inside = {dotted(c.func).rpartition(".")[2] for c in _call_nodes(callee)}
                if inside & {"backward", "zero_grad"}:
                    return True
        return False

    # exceptions swallowed around it
    def _handlers(
        self, function: FunctionInfo, line: int, beside: int | None, waiter: Group, skipper: Group
    ) -> Iterator[Reason]:
        if beside is not None:
            yield from self._in_flight(function, line, beside, waiter, skipper)
        shared = set()
        if beside is not None:
            shared = {id(h.node) for h in swallowing_handlers(function, beside)}
        for handler in swallowing_handlers(function, line):
            if id(handler.node) in shared and handler.jump is None:
                continue
            score = 0.78 if handler.jump in (None, "continue", "return") else LIKELY
            yield Reason(
                "handler", score, waiter, skipper, function.place(handler.line), handler.types,
                frozenset({"data"}), handler.jump or "falls through",
            )  # fmt: skip

    def _in_flight(
        self, function: FunctionInfo, line: int, beside: int, waiter: Group, skipper: Group
    ) -> Iterator[Reason]:
        """The skipper is in the ``except`` or ``finally`` of the ``try`` the waiter is in."""
        tries = {id(b.node): b for b in blocks(function, line) if b.kind == "try"}
        for block in blocks(function, beside):
            mine = tries.get(id(block.node))
            if mine is None or mine.branch != "body" or not isinstance(block.node, ast.Try):
                continue
            if block.branch not in ("handler", "finalbody"):
                continue
            within = [h for h in block.node.handlers if h.lineno <= beside]
            handler = within[-1] if block.branch == "handler" and within else None
            at_line = handler.lineno if handler is not None else beside
            caught = handler.type if handler is not None else None
            text = ast.unparse(caught) if caught else "everything" if handler else "finally"
            yield Reason(
                "handler", 0.85, waiter, skipper, function.place(at_line), text,
                frozenset({"data"}), "runs a collective of its own",
            )  # fmt: skip


def _decorated(function: FunctionInfo, waiter: Group, skipper: Group) -> Iterator[Reason]:
    """``@rank_zero_only`` and its like: the function is entered, or its body is skipped."""
    for name, line, is_first in rank_decorators(function):
        if is_first and (waiter.ranks != (0,) or 0 in skipper.ranks):
            continue
        score = PROVEN if is_first else RANK_LIKELY
        place, tags = function.place(line), frozenset({RANK})
        yield Reason("condition", score, waiter, skipper, place, f"@{name}", tags)


def sample(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """At most 64 ranks, from both ends and evenly between: conditions rarely single out more."""
    if len(ranks) <= 64:
        return ranks
    step = len(ranks) // 48
    return (*ranks[:8], *ranks[8:-8:step], *ranks[-8:])


def _call_nodes(function: FunctionInfo) -> list[ast.Call]:
    return [n for n in function.own_nodes if isinstance(n, ast.Call)]


def _same_function(a: Place, b: Place) -> bool:
    return a.file == b.file and short(a.name) == short(b.name)


def _fork(a: tuple[Place, ...], b: tuple[Place, ...]) -> int:
    """Return the first position at which two paths differ."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if not (_same_function(x, y) and x.line == y.line):
            return index
    return min(len(a), len(b))


def _common(function: FunctionInfo, line: int) -> set[tuple[int, str]]:
    return {(id(b.node), b.branch) for b in blocks(function, line)}


def _around(function: FunctionInfo, line: int) -> set[int]:
    """The loops a rank at the line is in; at the head of one it is in it, for the next round."""
    head = head_loop(function, line)
    return {id(b.node) for b in loops(function, line)} | ({id(head.node)} if head else set())


def _in_other_branch(function: FunctionInfo, here: int, there: int) -> bool:
    mine = {id(b.node): b.branch for b in blocks(function, here) if b.kind == "if"}
    yours = {id(b.node): b.branch for b in blocks(function, there) if b.kind == "if"}
    return any(mine[k] != yours[k] for k in mine.keys() & yours.keys())
