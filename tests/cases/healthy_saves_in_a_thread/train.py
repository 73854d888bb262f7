import concurrent.futures
import copy
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class BackgroundSaver:
    """Copies the state in the step and writes it in a thread; the result of the last save is looked at before the next."""

    def __init__(self, root, every):
        self.root, self.every, self.pending = root, every, None
        self.pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="saver")
        os.makedirs(root, exist_ok=True)

    def step(self, step, net):
        if step % self.every == 0:
            if self.pending:
                self.pending.result()
            state = copy.deepcopy(net.state_dict())
            self.pending = self.pool.submit(torch.save, state, os.path.join(self.root, "latest.pt"))

    def close(self):
        self.pool.shutdown(wait=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 384), nn.SiLU(), nn.Linear(384, 384), nn.SiLU(), nn.Linear(384, 64))
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saver = BackgroundSaver("saves", every=60) if rank == 0 else None
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 421):
        x = torch.randn(48, 64, generator=g)
        loss = (model(x) - x.cumsum(1) / 8).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if saver:
            saver.step(step, net)
        if rank == 0 and step % 30 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 30 * 1e3:.1f} ms/it", flush=True)
            t0 = t1
    if saver:
        saver.close()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
