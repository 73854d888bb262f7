"""Clusters with planted faults, whose answer is known."""
