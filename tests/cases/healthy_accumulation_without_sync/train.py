import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Accelerated:
    """Accumulates gradients over some batches and exchanges them with the last."""

    def __init__(self, net, every, lr):
        self.model, self.every, self.count = DDP(net), every, 0
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr)

    @contextlib.contextmanager
    def accumulate(self):
        self.count += 1
        self.is_last = self.count % self.every == 0
        with contextlib.nullcontext() if self.is_last else self.model.no_sync():
            yield

    def backward(self, loss):
        (loss / self.every).backward()
        if self.is_last:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()


def pieces(rank):
    g = torch.Generator().manual_seed(rank)
    while True:
        x = torch.randn(64, 48, generator=g)
        yield x, (x[:, ::2] * x[:, 1::2]).sum(1, keepdim=True)


def main(steps=150):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    acc = Accelerated(nn.Sequential(nn.Linear(48, 192), nn.GELU(), nn.Linear(192, 192), nn.GELU(), nn.Linear(192, 1)), every=8, lr=1e-3)
    t0, step = time.perf_counter(), 0
    for x, y in pieces(rank):
        with acc.accumulate():
            loss = (acc.model(x) - y).pow(2).mean()
            acc.backward(loss)
        if acc.is_last:
            step += 1
            if rank == 0 and step % 10 == 0:
                t1 = time.perf_counter()
                print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 10 * 1e3:.1f} ms/it", flush=True)
                t0 = t1
            if step == steps:
                break


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
