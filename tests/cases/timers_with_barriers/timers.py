import collections
import contextlib
import time

import torch.distributed as dist


class Timers:
    """Wall time of named parts of a step."""

    def __init__(self, aligned=True):
        self.aligned, self.seconds = aligned, collections.Counter()

    def _now(self):
        if self.aligned:
            dist.barrier()
        return time.perf_counter()

    @contextlib.contextmanager
    def part(self, name):
        start = self._now()
        yield
        self.seconds[name] += self._now() - start
