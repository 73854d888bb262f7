"""Loops over elements in Python on the way to the loss: every pair, every cell, one by one.

Evidence is the time in such loops and their source: two loops around a line, whose variables are
indices. Counter-evidence: loaders, metrics and growing state, which have rules of their own.
"""

import ast

import numpy as np

from eroica.localize.rules.draft import (
    Draft,
    hottest,
    pattern_finding,
    percent,
    step_text,
    where,
)
from eroica.localize.rules.phase import key_of
from eroica.localize.rules.view import JobView, Row
from eroica.localize.source_flow import Block, loops

ZONES = ("user", "other", "forward")


def nested_loops(view: JobView) -> list[Draft]:
    """Return a cause per function whose element-wise loops all ranks spend much of the step in."""
    groups: dict[tuple[str | None, str], list[int]] = {}
    for position, row in enumerate(view.rows):
        if row.zone in ZONES and row.project and _is_element_wise(view, row):
            groups.setdefault(key_of(row.project[0]), []).append(position)
    drafts = []
    for positions in groups.values():
        mask = np.zeros(len(view.rows), dtype=bool)
        mask[positions] = True
        share = float(np.median(view.sum_seen(mask, view.work_FR)))
        if share < view.parameters.common_share:
            continue
        places = hottest(view, mask, view.work_FR.mean(axis=1))
        text = f"{percent(share)} of the step goes over elements one by one at "
        text += where(places[0], view)
        drafts.append(
            Draft(
                rule="nested_loops",
                category="python_overhead",
                ranks="all",
                places=places,
                share=share,
                confidence=0.7,
                summary=text,
                why=[
                    f"{text}, in Python loops within loops{step_text(view, share)}.",
                    "Each small operation in them is dispatched, recorded and differentiated "
                    "by itself, which the backward pass pays once more.",
                ],
                against=["The share counts the forward part alone."],
                advice="Write it as operations on whole tensors (broadcasting, gather, cdist).",
                findings=[pattern_finding(view, mask, text=text)],
                claims=share,
            )
        )
    return drafts


def _is_element_wise(view: JobView, row: Row) -> bool:
    place = row.project[0]
    info = view.project.enclosing(place.file, place.line)
    if info is None or not place.line:
        return False
    around = loops(info, place.line)
    inner = [b for b in around if not _trains(b)]
    return len(inner) >= 2 and _is_indexed(inner)


def _trains(loop: Block) -> bool:
    called = (n.func for n in ast.walk(loop.node) if isinstance(n, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr == "backward" for f in called)


def _is_indexed(around: list[Block]) -> bool:
    """Whether something is indexed by the variables of the loops."""
    names = {
        node.id
        for block in around
        if isinstance(block.node, ast.For)
        for node in ast.walk(block.node.target)
        if isinstance(node, ast.Name)
    }
    used = {
        node.id
        for part in ast.walk(around[0].node)
        if isinstance(part, ast.Subscript)
        for node in ast.walk(part.slice)
        if isinstance(node, ast.Name)
    }
    return len(names & used) >= 2
