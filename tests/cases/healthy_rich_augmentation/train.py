import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Crops(Dataset):
    def __init__(self, n=1600):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = torch.rand(3, 48, 48, generator=g)
        top, left = torch.randint(0, 16, (2,), generator=g).tolist()
        image = image[:, top:top + 32, left:left + 32]
        if i % 2:
            image = image.flip(-1)
        for _ in range(3):
            image = nn.functional.avg_pool2d(image, 3, stride=1, padding=1) * 0.5 + image * 0.5
        return image, i % 10


class ConvNet(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1), nn.ReLU(),
                                  nn.Conv2d(channels, 2 * channels, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(2 * channels, 10)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    data = Crops()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=20, sampler=sampler, num_workers=1, prefetch_factor=4, persistent_workers=True)
    torch.manual_seed(0)
    model = DDP(ConvNet())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, t0 = 0, time.perf_counter()
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 20 == 0:
                t1 = time.perf_counter()
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} {(t1 - t0) / 20 * 1e3:.1f} ms/it", flush=True)
                t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
