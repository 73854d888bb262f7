"""A list of ranks' files -> their patterns, on this machine's cores or a Ray cluster."""

from eroica.engines.ranks import map_ranks, summarize_files

__all__ = ["map_ranks", "summarize_files"]
