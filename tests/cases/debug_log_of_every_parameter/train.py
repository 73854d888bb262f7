import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("net")


class Tower(nn.Module):
    def __init__(self, width=40, depth=12):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.last(x)


def set_up_logging(rank):
    handler = logging.FileHandler(f"net-{rank}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(filename)s:%(lineno)d %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)


def describe(step, model):
    for name, p in model.named_parameters():
        log.debug(f"{step} {name} value {p.data} grad {p.grad} norm {p.grad.norm():.4f}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    set_up_logging(rank)
    torch.manual_seed(0)
    model = DDP(Tower())
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 101):
        x = torch.randn(32, 40, generator=g)
        loss = (model(x) - x.norm(dim=1, keepdim=True)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        describe(step, model)
        if rank == 0 and step % 10 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 10 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
