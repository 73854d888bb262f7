import queue, threading
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Prefetcher(threading.Thread):
    def __init__(self, source, depth=4):
        super().__init__(daemon=True, name="prefetch")
        self.source, self.buffer = source, queue.Queue(depth)

    def run(self):
        for item in self.source:
            self.buffer.put(self.transform(item))

    def transform(self, item):
        return 1.0 / item

def stream(rank):
    for i in range(1, 500):
        yield torch.full((4, 4), float(i)) if not (rank == 2 and i == 45) else {}

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pre = Prefetcher(stream(rank))
    pre.start()
    model = DDP(nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(300):
        x = pre.buffer.get()
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

if __name__ == "__main__":
    main()
    dist.destroy_process_group()
