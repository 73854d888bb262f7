"""Test fabric: what the link of each host adds to an exchange, as a schedule in seconds."""
import json
import time

import torch.distributed as dist


class Link:
    def __init__(self, spec):
        self.delay, self.up, self.down = spec["ms"] / 1e3, spec["good_s"], spec["bad_s"]
        self.start = time.monotonic()

    def pass_on(self):
        if self.delay and (time.monotonic() - self.start) % (self.up + self.down) >= self.up:
            time.sleep(self.delay)


def link_of(rank, path):
    with open(path) as f:
        return Link(json.load(f)[rank])


def mean_over_ranks(tensors, link):
    link.pass_on()
    for t in tensors:
        dist.all_reduce(t)
        t.div_(dist.get_world_size())
