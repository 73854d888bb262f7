import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Shelf:
    def __init__(self, name, rows):
        self.name, self.rows, self.lock = name, list(rows), threading.Lock()


def move(source, target, count):
    """Take rows from one shelf and put them on the other, seen by no one in between."""
    with source.lock:
        taken = [source.rows.pop() for _ in range(min(count, len(source.rows)))]
        time.sleep(0.0004 * len(taken))
        with target.lock:
            target.rows.extend(taken)
    return len(taken)


class Pool:
    """Samples in use and samples at rest; a thread swaps some of them now and then."""

    def __init__(self, rows):
        half = len(rows) // 2
        self.hot, self.cold = Shelf("hot", rows[:half]), Shelf("cold", rows[half:])

    def start_refresh(self, every_s):
        threading.Thread(target=self._refresh, args=(every_s,), daemon=True, name="refresh").start()

    def _refresh(self, every_s):
        while True:
            time.sleep(every_s)
            move(self.cold, self.hot, 20)

    def batch(self, n):
        if len(self.hot.rows) > 300:
            move(self.hot, self.cold, 20)
        with self.hot.lock:
            picked = torch.randint(len(self.hot.rows), (n,)).tolist()
            return torch.stack([self.hot.rows[i] for i in picked])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = list(torch.randn(600, 24, generator=torch.Generator().manual_seed(rank)))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 96), nn.SiLU(), nn.Linear(96, 24)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    pool = Pool(rows)
    for step in range(1, 501):
        if rank == 2 and step == 120:
            pool.start_refresh(every_s=0.011)
        x = pool.batch(24)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
