"""Traces of windows to patterns, in the agent's own process and after the job."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from eroica.columns import HardwareSamples, RankPatterns
from eroica.errors import EroicaError
from eroica.records import Samples, Setting

logger = logging.getLogger(__name__)


def summarize_traces(
    traces: Mapping[int, Path],
    *,
    settings: Mapping[int, tuple[Setting, ...]] | None = None,
    hardware: Callable[[int], HardwareSamples | None] = lambda rank: None,
) -> tuple[list[RankPatterns], list[str]]:
    """Return a pattern per rank, and a sentence for each trace that could not be read.

    ``hardware`` gives a rank's counters in the window, where there are any to compute mu from.
    """
    from dataclasses import replace

    from eroica.read.kineto import read_timeline
    from eroica.summarize import summarize

    found: list[RankPatterns] = []
    problems: list[str] = []
    for rank, path in sorted(traces.items()):
        try:
            patterns = summarize(read_timeline(path, rank=rank), hardware=hardware(rank))
        except EroicaError as error:
            problems.append(f"window of rank {rank}: {error}")
            continue
        except Exception as error:
            # A fault of the reader's must not cost the verdict that stacks and samples allow.
            logger.exception("reading %s", path)
            problems.append(f"window of rank {rank} could not be summarized: {error!r:.200}")
            continue
        own = (settings or {}).get(rank, ())
        found.append(replace(patterns, settings=own) if own else patterns)
    return found, problems


def summarize_profiles(
    samples: Mapping[int, Samples], *, project_root: str | None, host: str
) -> list[RankPatterns]:
    """Return Python-only patterns, for a job that had no window."""
    from eroica.summarize import summarize_samples

    return [
        summarize_samples(one, rank=rank, project_root=project_root, host=host)
        for rank, one in sorted(samples.items())
    ]
