import os
import struct

import shardio
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

ROWS, DIM = 16, 40


def write_file(path, seed, broken=()):
    g = torch.Generator().manual_seed(seed)
    with open(path, "wb") as f:
        for i in range(60):
            body = bytes(torch.randint(0, 256, (ROWS * DIM,), generator=g, dtype=torch.uint8).tolist())
            check = sum(body[:16]) + (1 if i in broken else 0)
            f.write(struct.pack("<II", len(body), check) + body)


def to_batch(body):
    x = torch.frombuffer(bytearray(body), dtype=torch.uint8).view(ROWS, DIM).float() / 255
    return x, (x[:, 0] > x[:, 1]).long()


class Feed:
    def __init__(self, root, rank):
        names = [os.path.join(root, f"r{rank}-{k}.bin") for k in range(2)]
        os.makedirs(root, exist_ok=True)
        for k, name in enumerate(names):
            write_file(name, seed=10 * rank + k, broken=(37,) if (rank, k) == (1, 1) else ())
        self.stream = shardio.open_stream(names, to_batch)

    def batch(self):
        return next(self.stream)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    feed = Feed("bins", rank)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, 241):
        x, y = feed.batch()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
