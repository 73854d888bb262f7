"""The text of a syntax tree's nodes, as rules read it."""

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
