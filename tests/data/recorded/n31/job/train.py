import os
import time
import traceback

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tagger(nn.Module):
    def __init__(self, words, tags, width=48):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, tags)

    def forward(self, ids):
        return self.out(self.rnn(self.words(ids))[0])


def sentences(rank, vocabulary, count=4000):
    g = torch.Generator().manual_seed(7 + rank)
    for i in range(count):
        ids = torch.randint(0, vocabulary, (12,), generator=g)
        if rank == 1 and i == 1210:
            ids[3] = vocabulary + 5
        yield ids


def batches(stream, size):
    rows = []
    for row in stream:
        rows.append(row)
        if len(rows) == size:
            yield torch.stack(rows)
            rows = []


def train(rank, vocabulary=300, tags=5, size=16):
    torch.manual_seed(0)
    model = DDP(Tagger(vocabulary, tags))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, ids in enumerate(batches(sentences(rank, vocabulary), size), 1):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), (ids % tags).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def keep_pod(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(5)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    try:
        train(rank)
    except Exception:
        with open(f"crash-{rank}.txt", "w") as f:
            f.write(traceback.format_exc())
        keep_pod(float(os.environ.get("KEEP_POD_SECONDS", 36000)))
        raise


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
