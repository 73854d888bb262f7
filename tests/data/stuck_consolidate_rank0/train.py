import torch
import torch.nn as nn
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

class Saver:
    def __init__(self, every):
        self.every = every

    def maybe(self, step, model, opt):
        if step % self.every:
            return
        if dist.get_rank() == 0:
            self.write(step, model, opt)

    def write(self, step, model, opt):
        opt.consolidate_state_dict(to=0)
        torch.save({"m": model.module.state_dict(), "o": opt.state_dict()}, f"c{step}.pt")
        print(f"saved {step}", flush=True)

def job():
    dist.init_process_group("gloo")
    model = DDP(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 1)))
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    saver = Saver(30)
    for step in range(1, 200):
        loss = model(torch.randn(16, 10)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        saver.maybe(step, model, opt)

if __name__ == "__main__":
    job()
    dist.destroy_process_group()
