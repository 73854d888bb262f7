"""Files of hardware samples -> what each counter did over them, kept with its rank or host."""

from collections.abc import Sequence

import msgspec
import numpy as np

from eroica.columns import HardwareSamples
from eroica.errors import InputError
from eroica.read.hardware import read_hardware
from eroica.read.inputs import FileInput
from eroica.read.source import warning_of
from eroica.records import CounterUse, HostEvidence, JobEvidence, RankEvidence, Warning

_COUNTS = ("_errors", "_replays", "_kills", "_hits", "_throttles", ".errors", ".drops")


def with_counters(
    evidence: JobEvidence, files: Sequence[FileInput], warnings: list[Warning]
) -> JobEvidence:
    """Return the evidence with a digest of every file's counters; a bad file is a warning.

    Samples that name a rank go to it (it need not be known otherwise), others to their host.
    """
    ranks = {one.rank: one for one in evidence.ranks}
    hosts = {one.host: one for one in evidence.hosts}
    for file in files:
        try:
            samples = read_hardware(file.path, rank=file.rank)
        except InputError as error:
            warnings.append(warning_of(error, file.path))
            continue
        found = digest(samples)
        host = samples.host or file.host
        if samples.rank is not None:
            one = ranks.get(samples.rank) or RankEvidence(rank=samples.rank, host=host)
            known = {**found, **one.counters}
            ranks[samples.rank] = msgspec.structs.replace(one, counters=known)
        else:
            old = hosts.get(host) or HostEvidence(host=host)
            hosts[host] = msgspec.structs.replace(old, counters={**found, **old.counters})
    return msgspec.structs.replace(
        evidence,
        ranks=tuple(ranks[number] for number in sorted(ranks)),
        hosts=tuple(hosts[name] for name in sorted(hosts)),
        warnings=tuple(dict.fromkeys([*evidence.warnings, *warnings])),
    )


def digest(samples: HardwareSamples) -> dict[str, CounterUse]:
    """Return mean, low, high of each counter, and of those that count up by how much."""
    times = samples.time_ns_N
    seconds = float(times[-1] - times[0]) / 1e9 if len(times) > 1 else 0.0
    found: dict[str, CounterUse] = {}
    for name, values_N in samples.values_N.items():
        kept = values_N[np.isfinite(values_N)]
        if not len(kept):
            continue
        increase = None
        if name.endswith(_COUNTS):
            increase = max(0.0, float(kept[-1] - kept[0]))
        found[name] = CounterUse(
            mean=float(kept.mean()),
            low=float(kept.min()),
            high=float(kept.max()),
            increase=increase,
            seconds=seconds,
        )
    return found
