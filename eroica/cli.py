"""The command line: builds the app and prints every error in one place."""

import io
import logging
import os
import sys

import typer

from eroica.commands import assist, diagnosing, fixing, incidents, jobs, reviewing, tools
from eroica.errors import EroicaError
from eroica.text import SPELL_OUT, visible

app = typer.Typer(
    name="eroica",
    help="Troubleshoot distributed PyTorch training: which rank, which function, why, the patch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for room in (jobs, diagnosing, fixing, reviewing, incidents, assist, tools):
    room.register(app)


def main() -> None:
    """Run one command; errors for the user go to stderr with their exit code, no traceback."""
    _take_any_text()
    _configure_logging()
    try:
        status = app(prog_name="eroica", standalone_mode=False)
    except EroicaError as error:
        _fail(str(error), error.exit_code)
    except typer.Abort:
        _fail("stopped", 130)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader went away (eroica list | head): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if hasattr(error, "exit_code") and hasattr(error, "show"):  # typer's usage errors
            error.show()
            sys.exit(error.exit_code)
        if os.environ.get("EROICA_DEBUG"):
            raise
        _fail(
            f"an error in eroica itself: {type(error).__name__}: {error}\n"
            "EROICA_DEBUG=1 shows where; please report it with that",
            3,
        )
    sys.exit(status if isinstance(status, int) else 0)


def _take_any_text() -> None:
    """In a locale without UTF-8 (LANG=C in a container) marks are spelled out, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=SPELL_OUT)


def _configure_logging() -> None:
    """Warnings of eroica to stderr; with ``EROICA_DEBUG`` all it has to say, and from where."""
    is_debug = bool(os.environ.get("EROICA_DEBUG"))
    form = "eroica: %(name)s:%(lineno)d: %(message)s" if is_debug else "eroica: %(message)s"
    handler = logging.StreamHandler()
    handler.setFormatter(_Visible(form))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("eroica").setLevel(logging.DEBUG if is_debug else logging.WARNING)


class _Visible(logging.Formatter):
    """A message may quote a file's name or text: nothing in it may move the cursor."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _fail(message: str, code: int) -> None:
    # A message can hold a file's name or a model's text: nothing in it may move the cursor.
    first, *rest = visible(message).splitlines() or [""]
    sys.stderr.write("\n".join([f"eroica: {first}", *(f"        {line}" for line in rest)]) + "\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
