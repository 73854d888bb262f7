"""A log in blocks of whole lines, each with the word whether it can hold anything of interest."""

import re
from collections.abc import Iterator

from eroica.read.log_lines import NEEDLES
from eroica.read.needles import Needles
from eroica.read.opening import ByteStream

BLOCK_BYTES = 1 << 18
ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_WORDS = Needles((*NEEDLES, b"Traceback (most", b"Root Cause (first", b"Failures:"))


def blocks(stream: ByteStream, head: bytes) -> Iterator[tuple[bytes, bool]]:
    """Whole lines, a block at a time, and whether any word of interest is in them.

    A line that does not end within a block is cut there: such lines are no messages.
    """
    rest, block = b"", head
    while block:
        block = rest + block
        cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if not cut and len(block) >= 4 * BLOCK_BYTES:
            cut = len(block)
        rest, lines = block[cut:], block[:cut]
        if lines:
            yield _plain(lines)
        block = stream.read(BLOCK_BYTES)
    if rest:
        yield _plain(rest)


def _plain(lines: bytes) -> tuple[bytes, bool]:
    """Lines without color codes, which may split a word, and whether they are of interest."""
    if b"\x1b" in lines:
        lines = ANSI.sub(b"", lines)
    return lines, _WORDS.any_in(lines)
