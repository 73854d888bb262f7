import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Mixer(nn.Module):
    """One block: a mix over positions, then one over channels."""

    def __init__(self, length, width):
        super().__init__()
        self.across, self.along = nn.Linear(length, length), nn.Linear(width, width)

    def forward(self, x):
        x = x + torch.relu(self.across(x.transpose(1, 2))).transpose(1, 2)
        return x + torch.relu(self.along(x))


class Net(nn.Module):
    def __init__(self, length=16, width=24, depth=10):
        super().__init__()
        self.mixers = nn.ModuleList(Mixer(length, width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for m in self.mixers:
            x = m(x)
        return self.head(x.mean(1))


def shard(net, mesh):
    return fully_shard(net, mesh=mesh)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = shard(Net(), init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 81):
        x = torch.randn(16, 16, 24, generator=g)
        loss = nn.functional.cross_entropy(net(x), x[:, 0, :4].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 8 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 8 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
