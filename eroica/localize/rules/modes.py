"""A dispatch mode of torch's that is left on: Python runs for every single operation.

``TorchDispatchMode`` and ``TorchFunctionMode`` are for checks and counts (is everything finite,
how many operations). What they do beside the operation itself is the cost; the line that calls the
operation is left out. Subclasses of ``Tensor`` have methods of the same names, which are the
model's work.
"""

import ast

import numpy as np

from eroica.localize.rules.draft import (
    Draft,
    hottest,
    mean_over,
    pattern_finding,
    percent,
    step_text,
    where,
)
from eroica.localize.rules.view import JobView, Row
from eroica.localize.rules.zones import has, short
from eroica.records import Place

METHODS = frozenset({"__torch_dispatch__", "__torch_function__"})
LIBRARY_MODES = ("torch/utils/flop_counter.py", "torch/testing/_internal/logging_tensor.py")
SHARE = 0.15  # of the step


def dispatch_modes(view: JobView) -> list[Draft]:
    """Return the cause where a mode's own work takes a part of the step."""
    names = _modes(view)
    mask = np.array([_is_own_work(view, row, names) for row in view.rows], dtype=bool)
    share = mean_over(view.sum(mask)) if mask.any() else 0.0
    if share < SHARE:
        return []
    places = hottest(view, mask, view.share_FR.mean(axis=1))[:1]
    entered = _entered(view, names)
    places = (*places, *(p for p in entered if p not in places))[:3]
    at = where(places[0] if places else None, view)
    text = f"a dispatch mode runs Python for every operation, at {at}"
    return [
        Draft(
            rule="debug_setting",
            category="debug_setting_left_on",
            ranks="all",
            places=places,
            share=share,
            confidence=0.9,
            summary=f"{text}: {percent(share)} of the step",
            why=[
                f"What it does beside the operations is {percent(share)} of the step"
                f"{step_text(view, share)}.",
                "Such a mode is for a bug hunt; each operation of forward and backward enters it.",
            ],
            advice="Switch it off for training; keep it behind a command line flag.",
            findings=[pattern_finding(view, mask, text=text)],
            claims=share,
        )
    ]


def _modes(view: JobView) -> frozenset[str]:
    """Names of the project's classes that are modes."""
    found: set[str] = set()
    for module in view.project.modules:
        for name, node in module.classes.items():
            if any(ast.unparse(base).endswith("Mode") for base in node.bases):
                found.add(name)
    return frozenset(found)


def _is_own_work(view: JobView, row: Row, names: frozenset[str]) -> bool:
    for frame in row.frames:
        if short(frame.name) not in METHODS:
            continue
        if has(frame.file, *LIBRARY_MODES):
            return True
        info = view.project.enclosing(frame.file, frame.line)
        if info is not None and info.class_name in names:
            return not _calls_operation(view, frame)
    return False


def _calls_operation(view: JobView, frame: Place) -> bool:
    """Whether the line calls the operation that was dispatched (the method's second parameter)."""
    info = view.project.enclosing(frame.file, frame.line)
    operation = info.parameters[1] if info is not None and len(info.parameters) > 1 else "func"
    return f"{operation}(" in view.project.line_text(frame.file, frame.line)


def _entered(view: JobView, names: frozenset[str]) -> tuple[Place, ...]:
    """Where the project makes or enters a mode."""
    found = [
        function.place(node.lineno)
        for function in view.project.functions
        for node in function.own_nodes
        if isinstance(node, ast.Name) and node.id in names
    ]
    return tuple(found[:1])
