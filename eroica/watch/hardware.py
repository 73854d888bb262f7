"""Hardware counters of a watched job: for mu and sigma, for the rules, for an incident's folder."""

import logging
import statistics
from collections.abc import Callable, Iterable

from eroica.collect.hardware import HardwareSampler
from eroica.columns import HardwareSamples
from eroica.records import CounterUse, HostEvidence
from eroica.watch.live import WatchedJob
from eroica.watch.windows import Window

logger = logging.getLogger(__name__)

_SAMPLES_A_STEP = 20  # fewer cannot tell a step's functions from each other
HARDWARE_NS = 60_000_000_000  # how far back an incident looks
# Utilization as the driver tells it is a mean over up to a second: no use within a step.
_USES = ("pcie_", "nvlink_tx", "nvlink_rx", "training_thread.cpu")
_BETWEEN_HOSTS = ("net.", "ib.")


def counters_in(
    window: Window, hardware: "HardwareWatch | None"
) -> Callable[[int], HardwareSamples | None]:
    """Return what gives a rank's counters within a window."""
    if hardware is None:
        return lambda rank: None
    return lambda rank: hardware.for_patterns(rank, window.start_ns, window.end_ns)


class HardwareWatch:
    """The sampler of one job on this host."""

    def __init__(self, job: WatchedJob, sampler: HardwareSampler | None = None) -> None:
        self.job = job
        self.sampler = sampler or HardwareSampler(job_roots=self._job_pids)
        self._is_started = False

    def _job_pids(self) -> list[int]:
        return [rank.live.pid for rank in self.job.ranks.values()] + [self.job.root_pid or -1]

    def poll(self) -> None:
        """Begin with the first rank, and follow ranks that come and start again."""
        for rank in self.job.alive:
            thread = (rank.ring.thread if rank.ring is not None else None) or rank.live.pid
            self.sampler.watch(rank.rank, rank.live.pid, thread, rank.live.local_rank or 0)
        if not self._is_started and self.job.alive:
            self._is_started = True
            self.sampler.start()

    def set_window(self, is_open: bool) -> None:
        self.sampler.set_window(is_open)

    def refresh(self) -> None:
        """Read everything once more; a rank that has just died may have died of memory."""
        self.sampler.refresh()

    def of_rank(self, rank: int, since_ns: int = 0) -> dict[str, CounterUse]:
        """Return the digest of a rank's counters since a Unix time."""
        return self.sampler.uses(rank, since_ns=since_ns)

    def of_host(self, host: str, since_ns: int = 0) -> HostEvidence:
        """Return the digest of the host's counters and its busiest other processes."""
        return HostEvidence(
            host=host,
            num_cpus=self.sampler.num_cpus,
            counters=self.sampler.uses(None, since_ns=since_ns),
            neighbors=self.sampler.neighbors(),
            missing=tuple(self.sampler.problems),
        )

    def for_patterns(self, rank: int, start_ns: int, end_ns: int) -> HardwareSamples | None:
        """Return what mu and sigma may be computed from in a window; None where that is too little.

        Counters of the network count only where the job spans hosts: on one host its traffic
        passes none of them.
        """
        step_ns = self.job.mean_step_ns()
        spans = self.job.world_size > len(self.job.ranks)
        found = self.sampler.samples(rank, since_ns=start_ns, with_host=spans)
        if found is None or step_ns is None:
            return None
        inside = found.time_ns_N <= end_ns
        times = found.time_ns_N[inside]
        if len(times) < _SAMPLES_A_STEP:
            return None
        gap_ns = statistics.median((times[1:] - times[:-1]).tolist())
        if gap_ns * _SAMPLES_A_STEP > step_ns:
            return None
        values = {
            name: values_N[inside]
            for name, values_N in found.values_N.items()
            if any(word in name for word in _USES) or name.startswith(_BETWEEN_HOSTS)
        }
        return HardwareSamples(times, values, rank=rank, host=found.host) if values else None

    def for_folder(self, ranks: Iterable[int], now_ns: int, host: str) -> list[HardwareSamples]:
        """Return the last minute of samples, of each rank and of the host."""
        since_ns = now_ns - HARDWARE_NS
        found = [
            self.sampler.samples(rank, since_ns=since_ns, host=host) for rank in (*ranks, None)
        ]
        return [one for one in found if one is not None]

    def close(self) -> None:
        self.sampler.close()
