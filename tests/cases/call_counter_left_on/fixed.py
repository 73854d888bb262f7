import time

import devtools
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Cell(nn.Module):
    """A recurrent cell in plain Python, unrolled over time."""

    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, h):
        return torch.tanh(self.a(x) + self.b(h))


class Unrolled(nn.Module):
    def __init__(self, width=24, layers=3):
        super().__init__()
        self.cells = nn.ModuleList(Cell(width) for _ in range(layers))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        states = [torch.zeros(x.shape[0], x.shape[2])] * len(self.cells)
        for t in range(x.shape[1]):
            h = x[:, t]
            for i, cell in enumerate(self.cells):
                h = states[i] = cell(h, states[i])
        return self.out(h)


def main():
    devtools.setup(count_calls=False)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Unrolled())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 121):
        x = torch.randn(8, 16, 24, generator=g)
        loss = (model(x) - x.mean(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 12 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 12 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
