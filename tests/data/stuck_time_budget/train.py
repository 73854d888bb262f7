import time
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train_for(model, opt, seconds, rank):
    began = time.monotonic()
    n = 0
    while time.monotonic() - began < seconds:
        loss = (model(torch.randn(32, 8)) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        if rank == 0 and n % 50 == 0:
            print(f"step {n} loss {loss.item():.3f}", flush=True)
    return n

def entry():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(8, 1))
    opt = torch.optim.SGD(model.parameters(), 0.01)
    time.sleep(0.1 * rank)
    n = train_for(model, opt, 2.5, rank)
    dist.barrier()
    print("steps", n, flush=True)


if __name__ == "__main__":
    entry()
    dist.destroy_process_group()
