"""What a fixer is given and what it gives back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import libcst as cst

from eroica.fix.edits import Edits
from eroica.fix.facts import calls_here, definitions
from eroica.fix.tree import Function, Loop, Source, Statement, find, last_name
from eroica.records import Cause, Label, Setting

Match = TypeVar("Match", bound=cst.CSTNode)


@dataclass(frozen=True)
class Spot:
    """A place the cause names, found in the source. The first spots matter most."""

    source: Source
    function: Function | None
    """None for module level."""
    statement: Statement | None
    line: int | None

    @property
    def scope(self) -> cst.CSTNode:
        """The function's body, or the module."""
        return self.source.module if self.function is None else self.function.body


@dataclass(frozen=True)
class FixerResult:
    """New texts by path, and what to tell the reviewer."""

    texts: Mapping[str, str]
    why: str
    """Why this change, here: one or two sentences with the place in it."""
    behaviour: str
    """What changes for the program besides the cure."""
    score: float = 0.5
    """How exactly source and evidence match, 0..1; the best match is offered."""
    label: Label | None = None
    """Overrides the fixer's own label where this match is riskier."""


@dataclass(frozen=True)
class Example:
    """A fixer's example: one file; the line the cause names ends in ``# <-- here``."""

    before: str
    after: str = ""
    """Empty in KEEPS: nothing is offered."""
    category: str = ""
    """The cause's category; empty: the first of ANSWERS in order."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    symptom: str = "slow"


class Fixer(Protocol):
    """What a module in ``eroica.fixers``, or behind an ``eroica.fixers`` entry point, offers."""

    __doc__: str | None
    CODE: str
    ANSWERS: frozenset[str]
    """Categories of causes it can cure."""
    LABEL: Label
    FIXES: Sequence[Example]
    KEEPS: Sequence[Example]

    def fix(self, context: "Context") -> FixerResult | None:
        """Return the change, or None where the source or the evidence does not fit."""
        ...


@dataclass(frozen=True)
class Context:
    """One cause, its places in the project's source, and the facts known about the job."""

    cause: Cause
    sources: Mapping[str, Source]
    spots: tuple[Spot, ...]
    settings: tuple[Setting, ...] = ()
    world_size: int = 1
    symptom: str = "slow"
    """Of the job: what makes a slow one faster does not free a stuck one."""

    @cached_property
    def files(self) -> tuple[Source, ...]:
        """All sources, those of the spots first."""
        first = list(dict.fromkeys(spot.source for spot in self.spots))
        return (*first, *(s for s in self.sources.values() if s not in first))

    @cached_property
    def scopes(self) -> tuple[Spot, ...]:
        """The spots, one for each function they lie in."""
        found: dict[tuple[str, int], Spot] = {}
        for spot in self.spots:
            found.setdefault((spot.source.path, id(spot.function)), spot)
        return tuple(found.values())

    def setting(self, key: str) -> object:
        """Return the value of a fact the hook reported, on any rank."""
        return next((s.value for s in self.settings if s.key == key), None)

    def is_near(self, source: Source, node: cst.CSTNode, lines: int = 3) -> bool:
        """True where a spot's line lies on a node, or close to it."""
        named = [s.line for s in self.spots if s.source is source and s.line is not None]
        if not named:
            return False
        first, last = source.line(node) - lines, source.last_line(node) + lines
        return any(first <= line <= last for line in named)

    def is_named(self, source: Source, node: cst.CSTNode) -> bool:
        """True where a node is, or lies in, a function that the cause names."""
        function = node if isinstance(node, cst.FunctionDef) else source.function_of(node)
        return any(s.source is source and s.function is function for s in self.spots)

    @cached_property
    def reached(self) -> tuple[tuple[Source, Function], ...]:
        """The project's functions that the named functions call, and those that call them."""
        found: list[tuple[Source, Function]] = []
        named = [s for s in self.scopes if s.function is not None]
        for spot in named:
            for call in calls_here(spot.scope):
                found += definitions(spot.source, call, self.files)
        wanted = {id(s.function) for s in named}
        called = {s.function.name.value for s in named if s.function is not None}
        for source in self.files:
            for call in find(source.module, cst.Call):
                if last_name(call.func) not in called:
                    continue
                caller = source.function_of(call)
                if caller is not None and any(
                    id(f) in wanted for _, f in definitions(source, call, self.files)
                ):
                    found.append((source, caller))
        known = {id(f): (s, f) for s, f in found if id(f) not in wanted}
        return tuple(known.values())

    def closeness(self, source: Source, node: cst.CSTNode) -> float:
        """Say how well a node fits the cause's places, 0.3 (same project) .. 1 (the very line)."""
        if self.is_near(source, node, 0):
            return 1.0
        if self.is_near(source, node):
            return 0.9
        if self.is_named(source, node):
            return 0.8
        function = node if isinstance(node, cst.FunctionDef) else source.function_of(node)
        if any(f is function for _, f in self.reached):
            return 0.6
        return 0.4 if any(spot.source is source for spot in self.spots) else 0.3

    def every(self, kind: type[Match], least: float = 0.4) -> list[tuple[Source, Match]]:
        """Return the project's nodes of a kind, those closest to the cause's places first."""
        found = [
            (self.closeness(source, node), source, node)
            for source in self.files
            for node in find(source.module, kind)
        ]
        close = [item for item in found if item[0] >= least]
        return [(source, node) for _, source, node in sorted(close, key=lambda item: -item[0])]

    def loops(self, least: float = 0.4) -> list[tuple[Source, Loop]]:
        """Return the project's loops, those closest to the cause's places first."""
        loops: list[tuple[Source, Loop]] = [*self.every(cst.For, least)]
        loops += self.every(cst.While, least)
        return sorted(loops, key=lambda item: -self.closeness(*item))

    def result(
        self,
        *edits: Edits,
        why: str,
        behaviour: str,
        score: float = 0.5,
        label: Label | None = None,
    ) -> FixerResult | None:
        """Return the result of edits; None where they change nothing."""
        texts = {e.source.path: e.text() for e in edits}
        changed = {p: t for p, t in texts.items() if t != self.sources[p].text}
        if not changed:
            return None
        return FixerResult(changed, why, behaviour, score, label)
