"""Causes and evidence -> a diagnosis whose every claim cites a finding."""

from eroica.explain.rules import explain

__all__ = ["explain"]
