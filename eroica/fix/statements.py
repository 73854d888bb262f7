"""What a statement or a call consists of."""

from collections.abc import Sequence

import libcst as cst


def argument(call: cst.Call, keyword: str, position: int | None = None) -> cst.Arg | None:
    """Return a call's argument by keyword, else by position."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg
    if position is not None and position < len(call.args):
        arg = call.args[position]
        if arg.keyword is None and not arg.star:
            return arg
    return None


def single(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """Return the small statement of a line that holds exactly one."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def called(statement: cst.CSTNode) -> cst.Call | None:
    """Return the call of a line that is nothing but a call."""
    small = single(statement)
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        return small.value
    return None


def assigned(statement: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Return target and value of a line that is one assignment, typed or not."""
    small = single(statement) if isinstance(statement, cst.SimpleStatementLine) else statement
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        return small.targets[0].target, small.value
    if isinstance(small, cst.AnnAssign) and small.value is not None:
        return small.target, small.value
    return None


def body_of(node: cst.CSTNode) -> Sequence[cst.BaseStatement]:
    """Return the statements of a function's, loop's or condition's indented block."""
    block = getattr(node, "body", None)
    if isinstance(block, cst.IndentedBlock | cst.Module):
        return block.body
    return ()


def is_docstring(statement: cst.CSTNode) -> bool:
    small = single(statement)
    return isinstance(small, cst.Expr) and isinstance(
        small.value, cst.SimpleString | cst.ConcatenatedString
    )


def main_block(function: cst.FunctionDef) -> Sequence[cst.BaseStatement]:
    """Return a function's statements: its docstring and a ``with`` around all of it left out."""
    body = body_of(function)
    while True:
        body = body[1:] if body and is_docstring(body[0]) else body
        if len(body) != 1 or not isinstance(body[0], cst.With):
            return body
        body = body_of(body[0])
