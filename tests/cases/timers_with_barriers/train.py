import time

import torch
import torch.distributed as dist
import torch.nn as nn
from timers import Timers
from torch.nn.parallel import DistributedDataParallel as DDP


class Step:
    def __init__(self, timers, rank):
        self.timers, self.g = timers, torch.Generator().manual_seed(rank)
        torch.manual_seed(0)
        self.model = DDP(nn.Sequential(nn.Linear(28, 96), nn.ReLU(), nn.Linear(96, 7)))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def __call__(self):
        with self.timers.part("data"):
            x = torch.randn(40, 28, generator=self.g)
            y = x.view(40, 7, 4).sum(2).argmax(1)
        with self.timers.part("forward"):
            out = self.model(x)
        with self.timers.part("loss"):
            loss = nn.functional.cross_entropy(out, y)
        with self.timers.part("zero"):
            self.opt.zero_grad()
        with self.timers.part("backward"):
            loss.backward()
        with self.timers.part("clip"):
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        with self.timers.part("update"):
            self.opt.step()
        return loss


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    timers = Timers()
    step = Step(timers, rank)
    t0 = time.perf_counter()
    for i in range(1, 161):
        loss = step()
        if rank == 0 and i % 20 == 0:
            t1 = time.perf_counter()
            top = max(timers.seconds, key=timers.seconds.get)
            print(f"step {i} loss {loss.item():.4f} {(t1 - t0) / 20 * 1e3:.1f} ms/it ({top} first)", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
