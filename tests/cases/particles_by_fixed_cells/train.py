import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Cloud:
    """Particles in a box; a lump of them sits near one corner."""

    def __init__(self, n=480, seed=3):
        g = torch.Generator().manual_seed(seed)
        lump = torch.rand(n * 7 // 10, 3, generator=g) * torch.tensor([0.2, 1.0, 1.0])
        rest = torch.rand(n - len(lump), 3, generator=g)
        self.points = torch.cat([lump, rest])

    def jitter(self, g):
        return (self.points + 0.004 * torch.randn(self.points.shape, generator=g)).clamp(0, 1)


def own_cells(points, rank, world):
    """The slab of the box that this rank works on."""
    slab = (points[:, 0] * world).long().clamp(max=world - 1)
    return points[slab == rank]


class Pairwise(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, p):
        d = p[:, None] - p[None]
        r = d.pow(2).sum(-1, keepdim=True)
        return self.net(torch.cat([d, r], -1)).mean((1, 2))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(Pairwise())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    cloud, g = Cloud(), torch.Generator().manual_seed(0)
    t0 = time.perf_counter()
    for step in range(1, 61):
        mine = own_cells(cloud.jitter(g), rank, world)
        loss = (model(mine) - mine.norm(dim=1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 6 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 6 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
