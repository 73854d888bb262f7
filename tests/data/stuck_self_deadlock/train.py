import threading
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Registry:
    def __init__(self):
        self._guard = threading.Lock()
        self.values, self.listeners = {}, []

    def update(self, key, value):
        with self._guard:
            self.values[key] = value
            for fn in self.listeners:
                fn(self)

    def snapshot(self):
        with self._guard:
            return dict(self.values)

def alert(reg):
    if reg.values.get("loss", 0) > 30:
        print("spike", reg.snapshot(), flush=True)

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    reg = Registry()
    if rank == 0:
        reg.listeners.append(alert)
    model = DDP(nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), 0.0)
    for step in range(200):
        loss = model(torch.full((2, 4), float(step))).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        reg.update("loss", step)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

if __name__ == "__main__":
    main()
    dist.destroy_process_group()
