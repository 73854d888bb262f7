"""What all commands share: the two consoles, progress, files to write, words to split."""

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from eroica import incident
from eroica.errors import InputError
from eroica.gathering import Progress
from eroica.text import one_line, visible

if TYPE_CHECKING:
    from rich.status import Status

PLAIN_WIDTH = 120
SECONDS_BETWEEN_LINES = 3.0


_spinner: "Status | None" = None


class _Console(Console):
    """A console whose reader may go away (``eroica list | head``): that is no failure."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0)


def stdout() -> Console:
    """The console for results. Not a terminal: no color, no wrapping at 80 columns."""
    if sys.stdout.isatty():
        return _Console(highlight=False, emoji=False)
    return _Console(highlight=False, emoji=False, width=PLAIN_WIDTH, soft_wrap=True)


def stderr() -> Console:
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one line of a result. Foreign text in it stays text; a path stays whole."""
    stdout().print(Text(one_line(text)), soft_wrap=True)


def note(text: str) -> None:
    """Say on stderr what a person shall know beside the result."""
    stderr().print(Text(f"eroica  {one_line(text)}"), soft_wrap=True)


def write(path: Path, data: bytes) -> None:
    """Write a file the user named; InputError where that cannot be."""
    with writing(path):
        incident.write_atomic(path, data)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a file system's refusal into InputError that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {path}",
            str(error),
            next_step="choose another file with -o, or free the place",
        ) from error


def split_words(option: str, text: str) -> list[str]:
    """Return a command's words; InputError where quotes are open or nothing is there."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"{option} {text!r} is no command",
            str(error),
            next_step="close the quotes; the words are not passed through a shell",
        ) from error
    if not words:
        raise InputError(
            f"{option} is empty", "expected a command", next_step=f"{option} 'CMD ARGUMENTS'"
        )
    return words


def print_bytes(data: bytes) -> None:
    """Write a record to stdout, byte for byte; on a terminal nothing in it moves the cursor."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        data = visible(data.decode("utf-8", "replace")).encode()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def is_interactive() -> bool:
    """True where a person can be asked: both ends are a terminal, and not CI or a dumb one."""
    ends = sys.stdin.isatty() and sys.stdout.isatty()
    return ends and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Yield a function that shows what is going on: a spinner on a terminal, else lines."""
    global _spinner
    console = stderr()
    if quiet:
        yield lambda text: None
    elif console.is_terminal and os.environ.get("TERM") != "dumb":
        try:
            with console.status("", spinner="dots") as _spinner:
                yield _spinning(_spinner)
        finally:
            _spinner = None
    else:
        yield _lines(console)


def _spinning(status: "Status") -> Progress:
    def show(text: str) -> None:
        status.update(Text(one_line(text)))
        status.start()

    return show


def clear_spinner() -> None:
    """Take the spinner away until the next progress: it would draw over other text."""
    if _spinner is not None:
        _spinner.stop()


@contextmanager
def asking() -> Iterator[None]:
    """Hold the spinner back while a person reads and answers a question."""
    clear_spinner()
    try:
        yield
    finally:
        if _spinner is not None:
            _spinner.start()


def _lines(console: Console) -> Progress:
    """Print what is new; of a count that goes on, a line every few seconds."""
    last_kind, last_time = "", 0.0

    def line(text: str) -> None:
        nonlocal last_kind, last_time
        kind = "".join(character for character in text if not character.isdigit())
        now = time.monotonic()
        if kind != last_kind or now - last_time >= SECONDS_BETWEEN_LINES:
            console.print(Text(f"eroica  {one_line(text)}"))
            last_kind, last_time = kind, now

    return line
