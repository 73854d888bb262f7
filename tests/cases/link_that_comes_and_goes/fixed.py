import time

import torch
import torch.distributed as dist
import torch.nn as nn
from wire import link_of, mean_over_ranks


class Denoiser(nn.Module):
    def __init__(self, channels=12):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, channels, 7, padding=3), nn.SiLU(), nn.Conv1d(channels, channels, 7, padding=3),
                                  nn.SiLU(), nn.Conv1d(channels, 2, 7, padding=3))

    def forward(self, x):
        return x + self.body(x)


def signal(g, n=16, length=128):
    t = torch.linspace(0, 1, length)
    clean = (6.28 * t * torch.randint(1, 9, (n, 2, 1), generator=g)).sin()
    return clean, clean + 0.3 * torch.randn(n, 2, length, generator=g)


def main(steps=220):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    link = link_of(rank, "links_after_repair.json")
    torch.manual_seed(0)
    model = Denoiser()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    last = time.perf_counter()
    for step in range(1, steps + 1):
        clean, noisy = signal(g)
        loss = (model(noisy) - clean).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        mean_over_ranks([p.grad for p in model.parameters()], link)
        opt.step()
        if rank == 0 and step % 20 == 0:
            now = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(now - last) / 20 * 1e3:.1f} ms/it", flush=True)
            last = now


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
