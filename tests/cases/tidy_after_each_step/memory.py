"""Keeps the memory of a process low."""
import functools
import gc
import resource


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tidy(fn):
    """Leave nothing behind when the function is done."""

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        try:
            return fn(*args, **kwargs)
        finally:
            gc.collect()

    return wrapped
