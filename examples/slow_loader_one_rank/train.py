"""A DDP job that one rank's data loading slows down.

    torchrun --standalone --nproc_per_node=4 train.py

The shard of the last rank holds records that are parsed slowly; the others wait for it.
"""

import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    """JSON records; the slow shard's are nested deeply and decoded field by field."""

    def __init__(self, rank: int, is_slow: bool, num_records: int = 64_000) -> None:
        self.rank = rank
        self.is_slow = is_slow
        self.num_records = num_records
        self.line = json.dumps({"x": [0.1 * i for i in range(48)], "y": 3})

    def __len__(self) -> int:
        return self.num_records

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        record = self.decode(self.line) if self.is_slow else json.loads(self.line)
        features = torch.tensor(record["x"]) + index % 7
        return features, (index + self.rank) % 8

    def decode(self, line: str) -> dict:
        record = {}
        for field in ("x", "y"):
            for _ in range(12):
                record[field] = json.loads(line)[field]
        time.sleep(0.001)
        return record


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    loader = DataLoader(Records(rank, is_slow=rank == world_size - 1), batch_size=32)
    network = nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 8))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    started = time.perf_counter()
    for step, (features, labels) in enumerate(loader, start=1):
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            now = time.perf_counter()
            if rank == 0:
                pace = (now - started) / 50 * 1e3
                print(f"step {step} loss {loss.item():.4f} {pace:.1f} ms/it", flush=True)
            started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
