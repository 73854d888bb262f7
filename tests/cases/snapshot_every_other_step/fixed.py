import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Snapshots:
    def __init__(self, root, every, keep=3):
        self.root, self.every, self.keep, self.paths = root, every, keep, []
        os.makedirs(root, exist_ok=True)

    def maybe(self, step, model, opt):
        if step % self.every:
            return
        path = os.path.join(self.root, f"rank{dist.get_rank()}-{step:06d}.pt")
        with open(path, "wb") as f:
            torch.save({"step": step, "model": model.state_dict(), "opt": opt.state_dict()}, f)
            f.flush()
            os.fsync(f.fileno())
        self.paths.append(path)
        while len(self.paths) > self.keep:
            os.remove(self.paths.pop(0))
        dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--snapshot-every", type=int, default=60)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.EmbeddingBag(6000, 128), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 20)), gradient_as_bucket_view=True)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    snapshots = Snapshots("snapshots", args.snapshot_every)
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 121):
        ids = torch.randint(0, 6000, (32, 12), generator=g)
        loss = nn.functional.cross_entropy(model(ids), ids.sum(1) % 20)
        opt.zero_grad()
        loss.backward()
        opt.step()
        snapshots.maybe(step, model, opt)
        if rank == 0 and step % 12 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.3f} {(t1 - t0) / 12 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
