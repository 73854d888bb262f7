"""One call of a mapped function: its result, or its error in a form that crosses processes.

An exception does not survive pickling if its ``__init__`` wants other arguments than it stores, and
one that fails to unpickle breaks the whole pool. So errors travel as text and are rebuilt.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from eroica.errors import EroicaError, InputError

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """An error on its way home."""

    what: str
    found: str
    next_step: str
    is_input_error: bool

    def error(self) -> EroicaError:
        """Return the error as the caller would have met it."""
        kind = InputError if self.is_input_error else EroicaError
        return kind(self.what, self.found, self.next_step)


@dataclass(frozen=True)
class Call(Generic[Item, Result]):
    """Calls ``function`` and returns its result or a Failure; picklable if the function is."""

    function: Callable[[Item], Result]

    def __call__(self, item: Item) -> "Result | Failure":
        try:
            return self.function(item)
        except EroicaError as error:
            return Failure(error.what, error.found, error.next_step, isinstance(error, InputError))
        except MemoryError:
            return Failure(
                f"{describe(item)} could not be summarized",
                "memory ran out",
                "give the command more memory, or fewer workers",
                False,
            )
        except Exception as error:  # one bad item must not end the others; it is told, not hidden
            logger.debug("failed on %s", describe(item), exc_info=True)
            return Failure(
                f"{describe(item)} could not be summarized",
                f"{type(error).__name__}: {error}",
                "please report this with the file; EROICA_DEBUG=1 shows where it happened",
                False,
            )


def describe(item: object) -> str:
    """Return what a person calls the item: its path if it is one or begins with one."""
    return str(item[0] if isinstance(item, tuple) and item else item)


def delivered(outcome: "Result | Failure") -> "Result | EroicaError":
    """Return the result, or the error as an exception object (not raised)."""
    return outcome.error() if isinstance(outcome, Failure) else outcome
