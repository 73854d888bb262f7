"""Cross-host latency of the test fabric: an entry of the hosts file is a name and milliseconds for each collective."""
import os
import time

import torch.distributed as dist

_plain = {}


def install(path, rank):
    with open(path) as f:
        name, ms = f.read().split("\n")[rank].split()
    seconds = float(ms) / 1e3
    for op in ("all_reduce", "all_gather"):
        _plain[op] = getattr(dist, op)
        setattr(dist, op, _over_the_wire(_plain[op], seconds))
    return name


def _over_the_wire(op, seconds):
    def call(*args, **kwargs):
        if seconds:
            time.sleep(seconds)
        return op(*args, **kwargs)

    return call


HOSTS = os.environ.get("HOSTS_FILE", "hosts.txt")
