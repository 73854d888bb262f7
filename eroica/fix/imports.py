"""Where a new import or helper function goes in a module, and whether a name is still used."""

from collections.abc import Sequence

import libcst as cst

from eroica.fix.tree import Source, dotted, names, walk


def is_imported(source: Source, text: str) -> bool:
    words = text.split()
    if words[0] == "import":
        return source.top_imports.get(words[-1] if "as" in words else words[1]) == words[1]
    return source.top_imports.get(words[-1]) == f"{words[1]}.{words[3]}"


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(small, cst.Import | cst.ImportFrom) for small in statement.body
    )


def _is_opening(statement: cst.CSTNode) -> bool:
    """A module docstring or a ``from __future__`` line: nothing may come before it."""
    if not isinstance(statement, cst.SimpleStatementLine) or not statement.body:
        return False
    small = statement.body[0]
    if isinstance(small, cst.ImportFrom):
        return dotted(small.module) == "__future__"
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString)


def _sort_key(statement: cst.CSTNode) -> str | None:
    """The module of a plain import line; None for anything else."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Import):
        return "0" + dotted(small.names[0].name)
    if isinstance(small, cst.ImportFrom):
        return "1" + dotted(small.module)
    return None


def _merged(module: cst.Module, base: str, name: str) -> cst.Module | None:
    """Add a name to an existing ``from base import (...)`` line, in order."""
    for number, statement in enumerate(module.body):
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(small, cst.ImportFrom) or dotted(small.module) != base:
            continue
        if isinstance(small.names, cst.ImportStar) or small.lpar is not None:
            continue
        known = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in small.names]
        at = next((i for i, a in enumerate(known) if dotted(a.name) > name), len(known))
        known.insert(at, cst.ImportAlias(name=cst.Name(name)))
        body = list(module.body)
        body[number] = statement.with_changes(body=[small.with_changes(names=known)])
        return module.with_changes(body=body)
    return None


def with_imports(module: cst.Module, lines: Sequence[str]) -> cst.Module:
    for line in lines:
        words = line.split()
        if words[0] == "from" and "as" not in words:
            merged = _merged(module, words[1], words[3])
            if merged is not None:
                module = merged
                continue
        new = cst.parse_statement(line)
        key = _sort_key(new) or ""
        body = list(module.body)
        at = _import_place(body, key)
        if at < len(body) and at == _opening_end(body):
            lead = body[at].leading_lines if hasattr(body[at], "leading_lines") else ()
            new = new.with_changes(leading_lines=lead)
            if not _is_import(body[at]):
                gap = [cst.EmptyLine(indent=False)]
                body[at] = body[at].with_changes(leading_lines=gap)
            else:
                body[at] = body[at].with_changes(leading_lines=())
        body.insert(at, new)
        module = module.with_changes(body=body)
    return module


def _opening_end(body: Sequence[cst.CSTNode]) -> int:
    return next((i for i, s in enumerate(body) if not _is_opening(s)), len(body))


def _import_place(body: Sequence[cst.CSTNode], key: str) -> int:
    """Where a new import keeps the first block of imports sorted."""
    at = _opening_end(body)
    for number in range(at, len(body)):
        statement = body[number]
        if not _is_import(statement):
            break
        is_new_block = number > at and bool(getattr(statement, "leading_lines", ()))
        if is_new_block or (_sort_key(statement) or "") > key:
            return number
        at = number
        if number + 1 >= len(body) or not _is_import(body[number + 1]):
            return number + 1
    return at


def with_helper(module: cst.Module, helper: Sequence[cst.BaseStatement]) -> cst.Module:
    body = list(module.body)
    at = max((i + 1 for i, s in enumerate(body) if _is_import(s)), default=_opening_end(body))
    made = {s.name.value for s in helper if isinstance(s, cst.FunctionDef)}
    # A line between the imports may call it already: os.environ is set before torch is imported.
    at = next((i for i, s in enumerate(body[:at]) if made & names(s)), at)
    gap = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    items = [helper[0].with_changes(leading_lines=gap), *helper[1:]]
    if at < len(body):
        lead = list(getattr(body[at], "leading_lines", ()))
        blank = next((i for i, line in enumerate(lead) if line.comment is not None), len(lead))
        body[at] = body[at].with_changes(leading_lines=[*gap, *lead[blank:]])
    body[at:at] = items  # type: ignore[assignment]
    return module.with_changes(body=body)


def is_used(module: cst.CSTNode, name: str) -> bool:
    """True where a name is read anywhere but in an import line."""
    skip = {
        id(inner)
        for node in walk(module)
        if isinstance(node, cst.Import | cst.ImportFrom)
        for inner in walk(node)
    }
    return any(
        isinstance(node, cst.Name) and node.value == name and id(node) not in skip
        for node in walk(module)
    )
