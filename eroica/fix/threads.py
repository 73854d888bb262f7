"""What source says about threads: which functions run in one."""

import re

import libcst as cst

from eroica.fix.tree import Function, Source, find


def in_threads(source: Source) -> set[str]:
    """Return the names of a file's functions that are handed to a thread or a pool."""
    text = source.text
    found = set(re.findall(r"(?:Thread|Process)\([^)]*?target=(?:[\w.]+\.)?(\w+)", text, re.S))
    found |= set(re.findall(r"\.(?:submit|apply_async)\((?:[\w.]+\.)?(\w+)", text))
    found |= set(re.findall(r"Timer\([^,]+,\s*(?:[\w.]+\.)?(\w+)", text))
    runs = (f for f in find(source.module, cst.FunctionDef) if _is_run(source, f))
    return found | {f.name.value for f in runs}


def _is_run(source: Source, function: Function) -> bool:
    """``run`` of a class derived from Thread or Process."""
    owner = source.class_of(function)
    bases = [source.full_name(base.value) for base in owner.bases] if owner is not None else []
    return function.name.value == "run" and any(
        base.rpartition(".")[2] in ("Thread", "Process") for base in bases
    )
