import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Crawl:
    """An endless stream of short documents, with repeats."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def __iter__(self):
        while True:
            yield f"https://example.org/{self.rng.randrange(200_000):06d}", [self.rng.randrange(256) for _ in range(24)]


class Fresh:
    """Passes on what was not seen before in this run."""

    def __init__(self, stream):
        self.stream, self.seen = iter(stream), set()

    def __next__(self):
        for url, tokens in self.stream:
            if url not in self.seen:
                self.seen.add(url)
                return tokens

    def batch(self, n):
        return torch.tensor([next(self) for _ in range(n)])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 256)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = Fresh(Crawl(rank))
    t0 = time.perf_counter()
    for step in range(1, 241):
        ids = data.batch(64)
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
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
