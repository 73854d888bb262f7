import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Mixed(Dataset):
    """Pairs of rows that are drawn anew for each epoch."""

    def __init__(self, n=2880, dim=40):
        self.base = torch.randn(n, dim, generator=torch.Generator().manual_seed(9))
        self.remix(0)

    def remix(self, epoch):
        g = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(self.base), generator=g)
        for _ in range(12):
            distance = torch.cdist(self.base[order[:900]], self.base)
        self.partner = distance.argmin(0) + order
        self.partner %= len(self.base)

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        return 0.7 * self.base[i] + 0.3 * self.base[self.partner[i]], self.base[i]


def main(epochs=4):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Mixed()
    sampler = DistributedSampler(data)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(40, 120), nn.ReLU(), nn.Linear(120, 40)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(epochs):
        data.remix(epoch)
        sampler.set_epoch(epoch)
        loader = DataLoader(data, batch_size=12, sampler=sampler, drop_last=True)
        t0 = time.perf_counter()
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 20 == 0:
                t1 = time.perf_counter()
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {(t1 - t0) / 20 * 1e3:.1f} ms/it", flush=True)
                t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
