"""Patches -> a person's decisions, applied and undoable."""
