import torch
import torch.distributed as dist
import torch.nn as nn
from spark import MetricCard, Trainer


def windows(rank, length=48, batch=24):
    g = torch.Generator().manual_seed(100 + rank)
    while True:
        t = torch.rand(batch, 1, generator=g) * 6.28 + torch.arange(length + 1) * 0.1
        wave = t.sin() + 0.05 * torch.randn(batch, length + 1, generator=g)
        yield wave[:, :length], wave[:, length:]


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(48, 128), nn.GELU(), nn.Linear(128, 1))
    Trainer(callbacks=[MetricCard("card.txt")]).fit(net, windows(dist.get_rank()))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
