import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Curriculum:
    """Plans who trains on what; the plan of a step is made on the first rank."""

    def __init__(self, items, seed):
        self.items, self.rng = items, random.Random(seed)

    def plan(self, world, per_rank, progress):
        upper = int(len(self.items) * (0.3 + 0.7 * progress))
        return [[{"item": i, "weight": 1.0 + 0.1 * (i % 3), "origin": self.items[i]} for i in self.rng.sample(range(upper), per_rank)]
                for _ in range(world)]


def receive_plan(curriculum, per_rank, progress):
    rank, world = dist.get_rank(), dist.get_world_size()
    return curriculum.plan(world, per_rank, progress)[rank]


def main(steps=200, per_rank=160):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    items = [{"path": f"/data/part-{i % 13:03d}/{i:06d}.bin", "langs": ["en", "de", "fr"][: 1 + i % 3]} for i in range(5000)]
    table = torch.randn(len(items), 24, generator=torch.Generator().manual_seed(1))
    curriculum = Curriculum(items, seed=2)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 24)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    t0 = time.perf_counter()
    for step in range(1, steps + 1):
        plan = receive_plan(curriculum, per_rank, step / steps)
        x = table[[p["item"] for p in plan]]
        w = torch.tensor([p["weight"] for p in plan])
        loss = ((model(x) - x.flip(1)).pow(2).mean(1) * w).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 20 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
