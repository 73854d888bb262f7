"""Facts that the hook tells, checked before a rule reads them: evidence may be of any origin.

Rules take the numbers inside these facts as they come, so a fact of another form is left out here,
once, with a warning.
"""

import math
from collections.abc import Mapping

from eroica.records import Setting, Warning
from eroica.units import rank_phrase

_REQUIRED: dict[str, tuple[str, ...]] = {
    "cpu.schedule": ("on_cpu_ns", "waiting_ns"),
    "profiler.runs": ("count", "live_ns", "exit_ns"),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "gc.pauses": (
        *("count", "total_ns", "max_ns", "explicit_count", "explicit_ns"),
        *("steps_count", "steps_ns"),
    ),
    "checkpoint.saves": ("count", "total_ns", "max_ns", "bytes"),
    "compile.recompiles": ("count", "total_s"),
    "dataloader": (
        *("num_workers", "iterators_started", "dataset_len", "sampler_len"),
        *("num_replicas", "sampler_rank"),
    ),
    "ddp": ("num_parameters", "bucket_cap_mb"),
}
_TEXTS: dict[str, tuple[str, ...]] = {"dataloader": ("sampler", "batch_sampler", "dataset")}
"""As ``collect/hook/facts.py`` documents them."""


def checked(
    settings: Mapping[int, tuple[Setting, ...]],
) -> tuple[dict[int, tuple[Setting, ...]], tuple[Warning, ...]]:
    """Return each rank's facts of the form that rules expect, and warnings of the others."""
    odd: dict[str, list[int]] = {}
    kept: dict[int, tuple[Setting, ...]] = {}
    for rank, some in settings.items():
        kept[rank] = tuple(s for s in some if is_well_formed(s))
        for setting in some if len(kept[rank]) < len(some) else ():
            if not is_well_formed(setting):
                odd.setdefault(setting.key, []).append(rank)
    warnings = (
        Warning(
            file=None,
            what=f"{rank_phrase(ranks)}: the fact {key!r} has an unknown form and is left out",
        )
        for key, ranks in odd.items()
    )
    return kept, tuple(warnings)


def is_well_formed(setting: Setting) -> bool:
    """Whether the numbers in a fact are numbers; facts that are no table are checked where used."""
    required = _REQUIRED.get(setting.key, ())
    optional = _OPTIONAL.get(setting.key, ())
    if not required and not optional:
        return True
    value = setting.value
    if not isinstance(value, dict) or not all(is_number(value.get(name)) for name in required):
        return False
    if not all(value.get(name) is None or is_number(value[name]) for name in optional):
        return False
    if not all(isinstance(value.get(n), str | None) for n in _TEXTS.get(setting.key, ())):
        return False
    rows = value.get("by_function") or []
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and all(row.get(n) is None or is_number(row[n]) for n in ("count", "seconds"))
        for row in rows
    )


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]
