"""One rank's columns -> its patterns (beta, mu, sigma).

numba and pyarrow load where they are used: reading packed patterns needs neither.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eroica.summarize.packing import pack, unpack
    from eroica.summarize.samples import summarize_samples
    from eroica.summarize.summary import summarize
    from eroica.summarize.table import merge, read_parquet, read_patterns, write_parquet

__all__ = [
    "merge",
    "pack",
    "read_parquet",
    "read_patterns",
    "summarize",
    "summarize_samples",
    "unpack",
    "write_parquet",
]

_HOMES = {
    "merge": "table",
    "pack": "packing",
    "read_parquet": "table",
    "read_patterns": "table",
    "summarize": "summary",
    "summarize_samples": "samples",
    "unpack": "packing",
    "write_parquet": "table",
}


def __getattr__(name: str) -> object:
    """Load the module of a public function on first use (PEP 562)."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f"eroica.summarize.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
