"""Traces of windows to patterns, in the agent's own process and after the job."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from eroica.columns import HardwareSamples, RankPatterns
from eroica.errors import EroicaError
from eroica.records import Samples, Setting, Warning
from eroica.watch.frames import without_own_work

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
    from eroica.read.kineto import read_timeline
    from eroica.summarize import summarize

    found: list[RankPatterns] = []
    problems: list[str] = []
    for rank, path in sorted(traces.items()):
        try:
            timeline = read_timeline(path, rank=rank)
            patterns = without_own_work(summarize(timeline, hardware=hardware(rank)))
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


def with_sampled_python(
    windows: Sequence[RankPatterns], sampled: Sequence[RankPatterns]
) -> list[RankPatterns]:
    """Add to windows without stacks the Python functions of a sampling profile beside them.

    What operators and collectives leave of the window's critical path is Python's; it is dealt
    out over the sampled Python functions by their samples.
    """
    by_rank = {one.rank: one for one in sampled}
    return [
        _join(window, by_rank[window.rank]) if window.rank in by_rank else window
        for window in windows
    ]


def _join(window: RankPatterns, sampled: RankPatterns) -> RankPatterns:
    import numpy as np

    chosen = [i for i, function in enumerate(sampled.functions) if function.kind == "python"]
    known = {function.id for function in window.functions}
    chosen = [i for i in chosen if sampled.functions[i].id not in known]
    shares = sampled.beta_F[chosen]
    left, wanted = max(0.0, 1.0 - float(window.beta_F.sum())), float(shares.sum())
    scale = min(1.0, left / wanted) if wanted > 0 else 0.0
    nothing = np.zeros(len(chosen), np.float32)
    reference = window.reference_F
    return replace(
        window,
        functions=(*window.functions, *(sampled.functions[i] for i in chosen)),
        beta_F=np.concatenate([window.beta_F, shares * np.float32(scale)]),
        mu_F=np.concatenate([window.mu_F, sampled.mu_F[chosen]]),
        sigma_F=np.concatenate([window.sigma_F, sampled.sigma_F[chosen]]),
        count_F=np.concatenate([window.count_F, sampled.count_F[chosen]]),
        total_ns_F=np.concatenate([window.total_ns_F, sampled.total_ns_F[chosen]]),
        reference_F=None if reference is None else np.concatenate([reference, nothing]),
        warnings=(
            *window.warnings,
            Warning(file=None, what="Python functions of this window are sampled"),
        ),
    )
