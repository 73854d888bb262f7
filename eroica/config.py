"""Every number that decides something, in one table, each with its source.

``paper`` cites the EROICA paper (arXiv 2506.08528) as far as it is known; ``ours`` is a choice of
this project, with the reason. Override one with ``EROICA_<NAME>=value`` in the environment.
"""

import math
import os
from dataclasses import dataclass, fields

from eroica.errors import InputError


@dataclass(frozen=True)
class Parameters:
    """Defaults; see the comment beside each for where it comes from."""

    # Learning the iteration and noticing trouble (paper, section on triggers)
    learn_repeats: int = 10  # paper: M, equal sequences before the iteration is known
    lost_events: int = 200  # paper: K, events without a match before learning anew
    slow_mean_steps: int = 50  # paper: N, steps averaged
    slow_factor: float = 1.05  # paper: more than 5 % above the recent best
    recent_steps: int = 1000  # ours: the paper does not say how far "recent" reaches
    stuck_factor: float = 5.0  # paper: silence over 5 x the mean step
    stuck_min_s: float = 5.0  # ours: small models step in ms; below this nobody is waiting
    stuck_unlearned_s: float = 20.0  # ours: before anything is learned
    stall_factor: float = 3.0  # ours: a step this far over the median is sampled then and there
    # Windows
    window_s: float = 20.0  # paper: length of a window
    window_pause_s: float = 2.0  # ours: longest acceptable pause of stop()
    windows_per_day: int = 6  # ours: a slow job stays slow; more tell nothing new
    window_interval_s: float = 600.0  # ours: a window costs a pause of up to two seconds
    # Patterns (paper section 3)
    critical_share: float = 0.8  # paper: share of the use a critical duration holds
    rest_beta: float = 0.001  # ours: smaller functions fold into "rest"
    pattern_bytes: int = 30_000  # paper: about 30 KB a rank
    # Localization (paper section 4)
    min_beta: float = 0.01  # paper: lower bound on beta of a finding
    expected_python_beta: float = 0.01  # paper: R_python
    expected_collective_beta: float = 0.3  # ours: the paper's value is not known
    expected_memory_beta: float = 0.3  # ours: likewise
    delta: float = 0.4  # paper: Manhattan distance that counts as different
    sample_size: int = 100  # ours: N, one common sample
    mad_factor: float = 5.0  # paper: k
    delta_floor: float = 0.5  # ours: share of the sample that must differ where MAD is 0
    common_share: float = 0.10  # ours: a cause on all ranks must be worth this much step time
    straggler_share: float = 0.05  # ours: likewise a cause on few ranks
    # Pattern tables of many ranks
    few_peers: int = 32  # ours: fewer peers rarely show how far they scatter
    few_peers_share: float = 0.08  # ours: straggler_share among so few
    few_ranks_share: float = 0.1  # ours: more of the peers (and more than 8) are not "few ranks"
    noise_margin: float = 1.5  # ours: deviations beyond the largest of so many, if others wait
    noise_margin_alone: float = 3.0  # ours: likewise where no waiting is seen
    spared_share: float = 0.5  # ours: part of its excess that a slow rank must wait less
    lower_rate: float = 0.95  # ours: mu over the peers' below which a device or link is slower
    link_min_ranks: int = 8  # ours: fewer ranks have no ring to compare
    link_rate: float = 0.85  # ours: mu over the peers' at most, of a bad link
    link_steady: float = 0.5  # ours: sigma over the neighbors' at most, of a bad link
    link_share: float = 0.02  # ours: more ranks (and more than 8) are not a link but the job
    common_data_share: float = 0.22  # ours: loading on all ranks, in Python of the rank itself
    gc_pause_every: float = 10.0  # ours: steps between a rank's pauses, where counts are not known
    # Counters of hosts and devices
    memory_stall_share: float = 0.05  # ours: time in which all tasks stall for memory (PSI full)
    swap_in_pages_per_s: float = 100.0  # ours: fewer come back long after a shortage is over
    fault_s: float = 2e-4  # ours: a page from a disk or swap, for its share of the time
    throttled_share: float = 0.2  # ours: part of the time in which a driver throttles a device
    link_errors_per_s: float = 1.0  # ours: replays of a link; single ones are normal


def load(environment: "dict[str, str] | None" = None) -> Parameters:
    """Return the parameters with overrides from the environment; a bad value raises InputError."""
    given = os.environ if environment is None else environment
    changed: dict[str, float | int] = {}
    for field in fields(Parameters):
        text = given.get(f"EROICA_{field.name.upper()}")
        if text is not None:
            kind = int if isinstance(field.default, int) else float
            try:
                changed[field.name] = value = kind(text)
                is_number = math.isfinite(value)
            except ValueError:
                is_number = False
            if not is_number:
                raise InputError(
                    f"EROICA_{field.name.upper()}={text!r} is not a number",
                    f"expected {'a whole number' if kind is int else 'a number'},"
                    f" like the default {field.default}",
                    next_step=f"unset EROICA_{field.name.upper()}, or correct it",
                )
    return Parameters(**changed)  # type: ignore[arg-type]
