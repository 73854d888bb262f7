"""Which names mean something in a place: by what name a module can be called there."""

import libcst as cst

from eroica.fix.tree import Source, names, walk

_SHORT = {"torch.distributed": "dist"}
"""How a module is called where the file has no name for it yet; else by its own name."""


def name_for(source: Source, full: str, at: cst.CSTNode | None = None) -> tuple[str, str]:
    """Return how to call a module at a node (or anywhere), and the import that takes, or "".

    ``def run(queue): ...`` hides the module of that name: it gets another one then.
    """
    taken = bound_names(source, at)
    if at is not None:  # a function that imports a name further down has none until then
        taken |= source.local_imports(at, is_before=False).keys() - source.local_imports(at).keys()
    known = source.alias(full, at)
    if known is not None and known.partition(".")[0] not in taken:
        return known, ""
    name = _SHORT.get(full, full)
    if name in taken | bound_names(source, None) or source.top_imports.get(name, full) != full:
        name = full.rpartition(".")[2] + "_module"
    return name, f"import {full}" if name == full else f"import {full} as {name}"


def bound_names(source: Source, at: cst.CSTNode | None) -> set[str]:
    """Return the names that the functions around a node bind, imports left out.

    Without a node: those of the whole file.
    """
    scopes: list[cst.CSTNode] = [source.module]
    if at is not None:
        scopes = [a for a in (at, *source.ancestors(at)) if isinstance(a, cst.FunctionDef)]
    found: set[str] = set()
    for scope in scopes:
        for node in walk(scope):
            if isinstance(node, _BINDERS):
                found |= _plain(node.target)
            elif isinstance(node, cst.Param | cst.FunctionDef | cst.ClassDef):
                found.add(node.name.value)
            elif isinstance(node, cst.AsName) and not _is_imported(source, node):
                found |= _plain(node.name)
    return found


_BINDERS = (cst.AssignTarget, cst.AnnAssign, cst.For, cst.CompFor, cst.NamedExpr)


def _is_imported(source: Source, node: cst.AsName) -> bool:
    return isinstance(source.parent(node), cst.ImportAlias)


def _plain(target: cst.CSTNode) -> set[str]:
    """The plain names of a target; ``a.b`` and ``a[i]`` bind none."""
    if isinstance(target, cst.Attribute | cst.Subscript):
        return set()
    if isinstance(target, cst.Tuple | cst.List):
        return {name for element in target.elements for name in _plain(element.value)}
    return names(target)
