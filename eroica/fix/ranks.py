"""What source says about ranks: the names, calls and variables that hold a process's own number."""

import re

import libcst as cst

from eroica.fix.tree import Source, code, dotted

RANK = re.compile(
    r"(?!(?:.*_)?(?:per|num|n|max|min|by|each|of|low|lora|matrix|full)_rank)(?:.*_)?(?:rank|rank_?id)\d*|(?:is_?)?(?:main|master|chief|primary)(?:_?(?:process|rank|proc|node))?"
    r"|(?:is_?)?(?:global|world|local)_zero|is_?rank_?(?:0|zero)|rank_?(?:0|zero)(?:_only)?|is_(?:local_)?(?:main|world)_process(?:_zero)?",
    re.I,
)
# This process's own number, asked for: not that of another in a group (get_global_rank).
RANK_CALLS = re.compile(
    r"(?:.*\.)?_?(?!\w*(?:matrix|lora|full|low)_rank|get_(?:global|group)_rank)"
    r"(?:(?:\w+_)?rank|is_(?:main|local_main|world)_process"
    r"|is_main|is_master(?:_ordinal)?|(?:is_)?rank_?(?:zero|0)|process_index)"
)
RANK_VARIABLES = re.compile(
    r"(?:(?:LOCAL|GROUP|NODE|PMI|OMPI_COMM_WORLD)_)?RANK|SLURM_(?:PROCID|LOCALID)"
)


def rank_names(source: Source) -> frozenset[str]:
    """Return the names (and dotted names) whose value depends on the rank."""
    known = source.memo.get("rank_names")
    if isinstance(known, frozenset):
        return known
    found: set[str] = set()
    for _ in range(2):
        for target, value, _statement in source.assignments():
            if is_ranked(value, frozenset(found)):
                found.add(target)
    source.memo["rank_names"] = names_of_ranks = frozenset(found)
    return names_of_ranks


def is_ranked(node: cst.CSTNode, known: frozenset[str] = frozenset()) -> bool:
    """True where an expression itself names a rank (a seed of it, or an offset, does not count)."""
    if isinstance(node, cst.Comparison | cst.BooleanOperation | cst.UnaryOperation):
        return any(is_ranked(child, known) for child in node.children)
    if isinstance(node, cst.ComparisonTarget):
        return is_ranked(node.comparator, known)
    if isinstance(node, cst.IfExp):
        return is_ranked(node.test, known)
    if isinstance(node, cst.Call):
        name = dotted(node.func)
        if RANK_CALLS.fullmatch(name):
            return True
        if name.endswith(("environ.get", "getenv")) and node.args:
            return bool(RANK_VARIABLES.fullmatch(code(node.args[0].value).strip("\"'")))
        return name in ("int", "bool", "divmod") and any(
            is_ranked(arg.value, known) for arg in node.args
        )
    if isinstance(node, cst.Subscript):
        at = node.slice[0].slice if len(node.slice) == 1 else None
        key = code(at.value).strip("\"'") if isinstance(at, cst.Index) else ""
        return dotted(node.value).endswith("environ") and bool(RANK_VARIABLES.fullmatch(key))
    if isinstance(node, cst.BinaryOperation):
        return is_ranked(node.left, known)
    name = dotted(node)
    return bool(name) and (name in known or bool(RANK.fullmatch(name.rpartition(".")[2])))


def ranked(source: Source, test: cst.BaseExpression) -> bool:
    """True for a condition that comes out differently on different ranks by their number."""
    return is_ranked(test, rank_names(source))
