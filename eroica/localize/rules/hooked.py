"""Functions that the project hangs on modules and tensors: called by torch, in every step.

What such a function measures or writes is no part of the model, although its stack is inside the
model's forward or the backward pass. Told by the source: its name is given to a ``register_*hook``.
"""

import ast

from eroica.localize.rules.view import JobView, Row
from eroica.localize.rules.zones import short
from eroica.records import Place

HOOKED_ZONES = ("forward", "backward", "ddp", "user", "logging", "other")
_TORCH_CALLERS = ("torch/nn/modules/module.py", "torch/autograd/", "torch/utils/hooks.py")


def hook_names(view: JobView) -> frozenset[str]:
    """Return the names of functions that are registered as hooks, or that make such functions."""
    found: set[str] = set()
    for module in view.project.modules:
        if "hook(" not in module.text:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and _registers(node.func):
                found |= {name for one in node.args[:1] for name in _names(one)}
    return frozenset(found)


def _registers(called: ast.expr) -> bool:
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name.startswith("register_") and name.endswith("hook") and "comm" not in name


def _names(given: ast.expr) -> set[str]:
    """Names of the function in an argument; of a call (a factory, ``partial``) all in it."""
    if isinstance(given, ast.Name):
        return {given.id}
    if isinstance(given, ast.Attribute):
        return {given.attr}
    if isinstance(given, ast.Call):
        return {name for one in (given.func, *given.args) for name in _names(one)}
    if isinstance(given, ast.Lambda):
        return {
            name
            for node in ast.walk(given.body)
            if isinstance(node, ast.Call)
            for name in _names(node.func)
        }
    return set()


def hooked_frame(view: JobView, row: Row, names: frozenset[str]) -> Place | None:
    """Return the outermost project frame of a row that torch called as a hook; None without one."""
    if not names or row.zone not in HOOKED_ZONES:
        return None
    for position in range(len(row.frames) - 2, -1, -1):
        place, caller = row.frames[position], row.frames[position + 1]
        is_from_torch = any(part in (caller.file or "") for part in _TORCH_CALLERS)
        if is_from_torch and place in row.project and _is_named(view, place, names):
            return None if _gives_back(view, place) else place
    return None


def _gives_back(view: JobView, place: Place) -> bool:
    """Whether the hook returns something: torch puts that in place of the module's output, so that
    what it does (an adapter, a mask) is the model's work."""
    info = view.project.enclosing(place.file, place.line)
    returned = [n.value for n in info.own_nodes if isinstance(n, ast.Return)] if info else []
    return any(
        value is not None and not (isinstance(value, ast.Constant) and value.value is None)
        for value in returned
    )


def _is_named(view: JobView, place: Place, names: frozenset[str]) -> bool:
    if short(place.name) in names:
        return True
    info = view.project.enclosing(place.file, place.line)
    parts = info.qualified_name.split(".") if info is not None else []
    is_nested = info is not None and any(part in names for part in parts[:-1])
    return is_nested and short(place.name) != "forward"
