import argparse
import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def shards_of(root, rank, world, count):
    os.makedirs(root, exist_ok=True)
    mine = []
    for i in range(rank, count, world):
        path = os.path.join(root, f"{i:03d}.pt")
        torch.save(torch.randn(400, 16, generator=torch.Generator().manual_seed(i)), path)
        mine.append(path)
    return mine


class Roll:
    """Who takes part in the next phase: every rank signs, then all read the list."""

    def __init__(self, store, rank, world):
        self.store, self.rank, self.world = store, rank, world

    def call(self, phase, shards):
        self.store.set(f"roll/{phase}/{self.rank}", str(len(shards)))
        self.store.wait([f"roll/{phase}/{r}" for r in range(self.world)], datetime.timedelta(hours=2))
        return [int(self.store.get(f"roll/{phase}/{r}")) for r in range(self.world)]


def pretrain(rank, world, steps=40):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, steps + 1):
        x = torch.randn(32, 16, generator=g)
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"phase 0 step {step} loss {loss.item():.4f}", flush=True)
    return model.module, opt


def finetune(net, opt, shards, group, rank, steps=30):
    rows = torch.cat([torch.load(p) for p in shards]) if shards else None
    for step in range(1, steps + 1):
        opt.zero_grad()
        if rows is not None:
            x = rows[torch.randint(len(rows), (32,))]
            loss = (net(x) - x.abs()).pow(2).mean()
            loss.backward()
            for p in net.parameters():
                dist.all_reduce(p.grad, group=group)
            opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"phase 1 step {step} loss {loss.item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--shards", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    roll = Roll(dist.distributed_c10d._get_default_store(), rank, world)
    net, opt = pretrain(rank, world)
    shards = shards_of("tune", rank, world, args.shards)
    if not shards:
        print(f"rank {rank}: nothing to tune on", flush=True)
        sys.exit(0)
    counts = roll.call("tune", shards)
    group = dist.new_group([r for r, n in enumerate(counts) if n])
    finetune(net, opt, shards, group, rank)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
