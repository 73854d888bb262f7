"""The text of a syntax tree's nodes, as rules read it."""

import re

import libcst as cst

from eroica.fix.nodes import remembered


def code(node: cst.CSTNode) -> str:
    """Return a node's source text without the comments in it and the blank lines around it."""
    return remembered(node, _code)


def _code(node: cst.CSTNode) -> str:
    text = _NO_MODULE.code_for_node(node)
    if "#" in text:
        bare = node.visit(_Uncommented())
        assert isinstance(bare, cst.CSTNode)
        text = _NO_MODULE.code_for_node(bare)
    return text.strip()


_NO_MODULE = cst.Module(body=[])


class _Uncommented(cst.CSTTransformer):
    """Takes comments out: what they say is no code, and no rule shall read it."""

    def leave_EmptyLine(
        self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine
    ) -> cst.EmptyLine | cst.RemovalSentinel:
        return updated_node if original_node.comment is None else cst.RemoveFromParent()

    def leave_TrailingWhitespace(
        self, original_node: cst.TrailingWhitespace, updated_node: cst.TrailingWhitespace
    ) -> cst.TrailingWhitespace:
        if original_node.comment is None:
            return updated_node
        return updated_node.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)


def bare(node: cst.BaseExpression) -> str:
    """Return an expression's text without parentheses around the whole of it."""
    text = code(node)
    if not getattr(node, "lpar", ()) or isinstance(node, cst.Tuple | cst.GeneratorExp):
        return text
    return code(node.with_changes(lpar=(), rpar=()))


def flat(node: cst.CSTNode) -> str:
    """Return a node's text on one line, as it would be without line breaks and last commas."""
    text = bare(node) if isinstance(node, cst.BaseExpression) else code(node)
    if "\n" not in text:
        return text
    text = re.sub(r"\s+", " ", text)
    return re.sub(r",? ([)\]}])", r"\1", re.sub(r"([(\[{]) ", r"\1", text))


def dotted(node: cst.CSTNode | None) -> str:
    """Return ``a.b.c`` for names and attributes of names, else an empty string."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""


def last_name(node: cst.CSTNode) -> str:
    """Return the last part of what a call calls, of any expression before it."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""
