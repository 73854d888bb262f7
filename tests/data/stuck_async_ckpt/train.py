import threading, queue, time
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class AsyncCheckpoint:
    def __init__(self, model):
        self.model, self.jobs = model, queue.Queue()
        threading.Thread(target=self._loop, daemon=True, name="ckpt").start()

    def request(self, step):
        self.jobs.put(step)

    def _loop(self):
        while True:
            step = self.jobs.get()
            time.sleep(0.01 * (1 + dist.get_rank()))
            self._save(step)

    def _save(self, step):
        shards = [None] * dist.get_world_size()
        dist.all_gather_object(shards, {"step": step, "n": sum(p.numel() for p in self.model.parameters())})
        if dist.get_rank() == 0:
            print(f"ckpt {step}", flush=True)

def work():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.SGD(model.parameters(), 0.05)
    ck = AsyncCheckpoint(model.module)
    for step in range(1, 400):
        loss = model(torch.randn(8, 8)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            ck.request(step)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)

if __name__ == "__main__":
    work()
    dist.destroy_process_group()
