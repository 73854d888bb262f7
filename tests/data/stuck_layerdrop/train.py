import random
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Encoder(nn.Module):
    def __init__(self, d=32, depth=6, drop=0.02):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(d, d) for _ in range(depth))
        self.p = drop
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        for layer in self.blocks:
            if self.training and random.random() < self.p:
                continue
            x = x + torch.tanh(layer(x))
        return self.out(x)

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(rank + 5)
    model = DDP(Encoder(), bucket_cap_mb=0.001)
    opt = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(400):
        loss = model(torch.randn(8, 32)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        m = torch.tensor([loss.item()])
        dist.broadcast(m, 0)
        if rank == 0 and step % 2 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

if __name__ == "__main__":
    main()
    dist.destroy_process_group()
