import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def vocabulary(rank):
    """Reads the word lists of this rank's languages."""
    time.sleep(0.4 * rank)
    return torch.randn(500, 32, generator=torch.Generator().manual_seed(rank))


class Loop:
    def __init__(self, args, rank):
        self.args, self.rank, self.clock = args, rank, None
        start = time.monotonic()
        self.table = vocabulary(rank)
        self.set_up_s = time.monotonic() - start
        torch.manual_seed(0)
        self.model = DDP(nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32)))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def out_of_time(self):
        """The set-up counts; the first step, which loads what the optimizer needs, does not."""
        if self.clock is None:
            self.clock = time.monotonic()
        late = torch.tensor(float(self.set_up_s + time.monotonic() - self.clock > self.args.budget_s))
        dist.broadcast(late, src=0)
        return bool(late)

    def step(self, i):
        x = self.table[torch.randint(500, (32,))]
        loss = (self.model(x) - x.flip(1)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        if self.rank == 0 and i % 20 == 0:
            print(f"step {i} loss {loss.item():.4f}", flush=True)

    def run(self):
        i = 0
        while i < self.args.max_steps and not (i and self.out_of_time()):
            i += 1
            self.step(i)
        return i

    def finish(self, steps):
        results = [None] * dist.get_world_size()
        dist.all_gather_object(results, (self.rank, steps))
        if self.rank == 0:
            print(f"done: {results}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--budget-s", type=float, default=4.0)
    ap.add_argument("--max-steps", type=int, default=100000)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    loop = Loop(args, dist.get_rank())
    loop.finish(loop.run())


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
