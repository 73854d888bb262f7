"""All ranks' patterns and evidence -> findings and ranked causes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eroica.localize.slow import localize_slow
    from eroica.localize.stuck import localize_stuck

__all__ = ["localize_slow", "localize_stuck"]

_HOMES = {"localize_slow": "slow", "localize_stuck": "stuck"}


def __getattr__(name: str) -> object:
    """Load the module of a public function on first use (PEP 562)."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f"eroica.localize.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
