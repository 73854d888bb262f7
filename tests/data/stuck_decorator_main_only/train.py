import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from pkg.evaluation import Evaluator

class App:
    def __init__(self):
        self.net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
        self.opt = torch.optim.SGD(self.net.parameters(), 0.01)
        self.ev = Evaluator(self.net, [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(3)])

    def fit(self, steps):
        for step in range(steps):
            loss = (self.net(torch.randn(16, 8)) ** 2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if dist.get_rank() == 0 and step % 5 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            if step and step % 25 == 0:
                self.ev.run(step)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    App().fit(200)
    dist.destroy_process_group()
