"""From a value in a call to the literal behind it: an option's default, a constant."""

from dataclasses import dataclass

import libcst as cst

from eroica.fix.context import Context
from eroica.fix.tree import Source, argument, code, dotted, find


@dataclass(frozen=True)
class Literal:
    source: Source
    node: cst.BaseExpression
    """The literal itself: replacing it changes the setting."""

    @property
    def text(self) -> str:
        return code(self.node)


def is_literal(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return is_literal(node.expression)
    return isinstance(node, cst.Integer | cst.Float | cst.SimpleString) or code(node) in (
        "True",
        "False",
        "None",
    )


def literal_behind(
    context: Context, source: Source, node: cst.BaseExpression, depth: int = 3
) -> Literal | None:
    """Follow a name or attribute to the literal it gets its value from, where there is one."""
    if is_literal(node):
        return Literal(source, node)
    name = dotted(node)
    if not name or depth == 0:
        return None
    found = _default_of_option(context, name) if "." in name else None
    if found is not None:
        return found
    last = name.rpartition(".")[2]
    values = [
        (other, value)
        for other in (source, *(s for s in context.files if s is not source))
        for target, value, _ in other.assignments()
        if target == name or ("." in name and target.rpartition(".")[2] == last)
    ]
    if len(values) == 1:
        return literal_behind(context, *values[0], depth - 1)
    function = source.function_of(node)
    if not values and function is not None:
        for param in function.params.params:
            if param.name.value == name and param.default is not None:
                return literal_behind(context, source, param.default, depth - 1)
    return None


def _default_of_option(context: Context, name: str) -> Literal | None:
    """``args.workers`` -> the default of ``add_argument("--workers", ...)``."""
    option = name.rpartition(".")[2]
    for source in context.files:
        for call in find(source.module, cst.Call):
            if not code(call.func).endswith(("add_argument", ".option", "Option")) or not call.args:
                continue
            flags = [
                code(a.value).strip("\"'").lstrip("-").replace("-", "_")
                for a in call.args
                if a.keyword is None
            ]
            dest = argument(call, "dest")
            if dest is not None:
                flags.append(code(dest.value).strip("\"'"))
            default = argument(call, "default")
            if option in flags and default is not None and is_literal(default.value):
                return Literal(source, default.value)
    return None
