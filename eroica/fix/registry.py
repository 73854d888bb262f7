"""Finds the fixers: public modules of ``eroica.fixers`` and entry points of that group."""

import importlib
import logging
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from typing import cast

from eroica.errors import EroicaError, InputError
from eroica.fix.context import Fixer

log = logging.getLogger(__name__)
GROUP = "eroica.fixers"
_OFFERS = ("CODE", "ANSWERS", "LABEL", "FIXES", "KEEPS", "fix", "__doc__")


@cache
def load_fixers() -> dict[str, Fixer]:
    """Return all fixers by code, in order of code.

    A plug-in that cannot be used is left out with a warning.
    """
    package = importlib.import_module("eroica.fixers")  # by name: type checkers cannot see it
    found: dict[str, Fixer] = {}
    for info in pkgutil.iter_modules(package.__path__, "eroica.fixers."):
        if not info.name.rpartition(".")[2].startswith("_"):
            register(found, importlib.import_module(info.name), info.name)
    for entry in entry_points(group=GROUP):
        try:
            register(found, entry.load(), entry.value)
        except Exception as error:  # a broken plug-in must not take the others with it
            reason = str(error).replace("\n", ": ")
            log.warning("fixer %s is left out: %s", entry.value, reason)
    return dict(sorted(found.items()))


def register(found: dict[str, Fixer], module: object, name: str) -> None:
    """Add a fixer after checking that it offers all of the protocol."""
    missing = [part for part in _OFFERS if not getattr(module, part, None) and part != "KEEPS"]
    if missing:
        raise EroicaError(
            f"{name} is not a fixer",
            f"it lacks {', '.join(missing)}",
            next_step="docs/guides/add_a_fixer.md lists the parts",
        )
    fixer = cast(Fixer, module)
    if fixer.CODE in found:
        raise EroicaError(
            f"two fixers share the code {fixer.CODE}",
            f"the second is {name}",
            next_step="give it another CODE",
        )
    found[fixer.CODE] = fixer


def find_fixer(code: str) -> Fixer:
    """Return a fixer by code, any case; InputError names the codes there are."""
    fixers = load_fixers()
    if code.upper() not in fixers:
        raise InputError(f"no fixer {code}", f"there are: {', '.join(fixers)}", "eroica fixers")
    return fixers[code.upper()]


def title(fixer: Fixer) -> str:
    """Return the first line of a fixer's documentation without its code."""
    first = (fixer.__doc__ or "").strip().splitlines()[0]
    return first.partition(" ")[2].rstrip(".")
