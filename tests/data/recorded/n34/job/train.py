import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def write_corpus(root, n=1600, dim=48):
    os.makedirs(root, exist_ok=True)
    g = torch.Generator().manual_seed(4)
    blob = torch.randn(n, dim, generator=g)
    blob.numpy().tofile(os.path.join(root, "data.f32"))
    index = [{"id": i, "offset": i * dim * 4, "label": int(blob[i, 0] > 0), "source": f"site-{i % 17}"} for i in range(n)]
    with open(os.path.join(root, "index.json"), "w") as f:
        json.dump(index, f)


class Corpus(Dataset):
    def __init__(self, root, n=1600, dim=48):
        self.root, self.n, self.dim = root, n, dim

    def __len__(self):
        return self.n

    def entry(self, i):
        with open(os.path.join(self.root, "index.json")) as f:
            return json.load(f)[i]

    def __getitem__(self, i):
        entry = self.entry(i)
        with open(os.path.join(self.root, "data.f32"), "rb") as f:
            f.seek(entry["offset"])
            row = torch.frombuffer(bytearray(f.read(self.dim * 4)), dtype=torch.float32)
        return row, entry["label"]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        write_corpus("corpus")
    dist.barrier()
    data = Corpus("corpus")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, t0 = 0, time.perf_counter()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 10 == 0:
                t1 = time.perf_counter()
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} {(t1 - t0) / 10 * 1e3:.1f} ms/it", flush=True)
                t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
