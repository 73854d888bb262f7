"""Training steps of a few milliseconds on one thread, with DDP where there are more ranks."""

import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Noise(Dataset):
    """Endless batches that cost nothing to make."""

    def __init__(self, width):
        self.one = torch.randn(width)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return self.one


def steps(folder, width, layers=6):
    """Yield after each step."""
    ranks = int(os.environ["WORLD_SIZE"])
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo")
    else:
        store = f"file://{folder}/store"
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    blocks = [m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*blocks)
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in DataLoader(Noise(width), batch_size=64):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        yield
