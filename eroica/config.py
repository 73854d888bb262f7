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
    windows_per_day: int = 6  # ours
    window_interval_s: float = 600.0  # ours
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
