"""What all commands share: the two consoles, progress, and the checks of a terminal."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from eroica.gathering import Progress

PLAIN_WIDTH = 120
SECONDS_BETWEEN_LINES = 3.0


def stdout() -> Console:
    """The console for results. Not a terminal: no color, no wrapping at 80 columns."""
    if sys.stdout.isatty():
        return Console(highlight=False, emoji=False)
    return Console(highlight=False, emoji=False, width=PLAIN_WIDTH, soft_wrap=True)


def stderr() -> Console:
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def print_bytes(data: bytes) -> None:
    """Write a record to stdout, byte for byte."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def is_interactive() -> bool:
    """True where a person can be asked: both ends are a terminal, and not CI or a dumb one."""
    ends = sys.stdin.isatty() and sys.stdout.isatty()
    return ends and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Yield a function that shows what is going on: a spinner on a terminal, else lines."""
    console = stderr()
    if quiet:
        yield lambda text: None
    elif console.is_terminal and os.environ.get("TERM") != "dumb":
        with console.status("", spinner="dots") as status:
            yield lambda text: status.update(text)
    else:
        yield _lines(console)


def _lines(console: Console) -> Progress:
    """Print what is new; of a count that goes on, a line every few seconds."""
    last_kind, last_time = "", 0.0

    def line(text: str) -> None:
        nonlocal last_kind, last_time
        kind = "".join(character for character in text if not character.isdigit())
        now = time.monotonic()
        if kind != last_kind or now - last_time >= SECONDS_BETWEEN_LINES:
            console.print(f"eroica  {text}", markup=False)
            last_kind, last_time = kind, now

    return line
