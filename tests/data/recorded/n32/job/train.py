import subprocess
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Decoder:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "decoder.py"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)

    def decode(self, number):
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return [float(v) for v in self.process.stdout.readline().split()]

    def close(self):
        self.process.terminate()


class Records:
    def __init__(self, rank, size):
        self.decoder, self.next, self.size = Decoder(), 2000 * rank, size

    def batch(self):
        rows = []
        for _ in range(self.size):
            self.next += 1
            rows.append(self.decoder.decode(self.next))
        return torch.tensor(rows)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 8), nn.Linear(8, 32)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    records = Records(rank, 8)
    for step in range(1, 181):
        x = records.batch()
        loss = nn.functional.l1_loss(model(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    records.decoder.close()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
