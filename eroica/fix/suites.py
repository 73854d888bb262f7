"""Blocks on one line (``if rank == 0: save()``): walked as any other, written as they were.

Fixers look for statements in indented blocks. A block on one line is given that form in the tree,
with the positions it has in the file; where no edit touches it, its line stays what it was.
"""

from collections.abc import Mapping

import libcst as cst

from eroica.fix.nodes import walk


def indent(
    owner: cst.CSTNode | None, suite: cst.SimpleStatementSuite
) -> tuple[cst.IndentedBlock, cst.SimpleStatementLine]:
    """Give a block on one line the form of an indented one, in the tree itself.

    In place, so that what is known of the other nodes stays true.
    """
    line = cst.SimpleStatementLine(body=suite.body, trailing_whitespace=suite.trailing_whitespace)
    block = cst.IndentedBlock(body=[line])
    object.__setattr__(owner, "body", block)
    return block, line


def as_it_was(
    block: cst.IndentedBlock, suites: Mapping[int, cst.SimpleStatementSuite], edited: set[int]
) -> cst.SimpleStatementSuite | None:
    """Return the block on one line that an indented one stands for; None where it was edited."""
    suite = suites.get(id(block))
    if suite is None or any(id(node) in edited for node in walk(block)):
        return None
    return suite
