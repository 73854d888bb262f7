"""Causes and evidence -> a diagnosis whose every claim cites a finding.

``explain`` is by rule and always there; ``ask`` puts a language model on top.
"""

from typing import TYPE_CHECKING

from eroica.explain.rules import explain

if TYPE_CHECKING:
    from eroica.explain.asking import Asked, ask, repair

__all__ = ["Asked", "ask", "explain", "repair"]


def __getattr__(name: str) -> object:
    if name in ("Asked", "ask", "repair"):
        from eroica.explain import asking

        return getattr(asking, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
