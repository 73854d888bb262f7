"""Every error a user can meet, each with its exit code.

EroicaError            3  a stage could not finish
|-- InputError         2  a path, trace, dump or flag that cannot be used
|-- MissingExtra       3  an optional package is not installed; names the pip command
|-- ModelError         3  the language model failed or its answer could not be used
|-- StaleSource        3  a file changed since the patch for it was made

A message has up to three lines: what failed on which file or rank; what was found against what
was expected; the next command. ``cli.main`` is the one place that prints it.
"""


class EroicaError(Exception):
    """A stage could not finish; ``str()`` is the whole message for the user."""

    exit_code = 3

    def __init__(self, what: str, found: str = "", next_step: str = "") -> None:
        self.what, self.found, self.next_step = what, found, next_step
        super().__init__("\n".join(line for line in (what, found, next_step) if line))


class InputError(EroicaError):
    """A path, trace, dump or flag that cannot be used."""

    exit_code = 2


class MissingExtra(EroicaError):
    """A command needs a package that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs a package that is not installed",
            next_step=f"pip install 'eroica[{extra}]'",
        )


class ModelError(EroicaError):
    """The language model could not be reached or its answer could not be used."""


class StaleSource(EroicaError):
    """A file is no longer what it was when the patch for it was made."""
