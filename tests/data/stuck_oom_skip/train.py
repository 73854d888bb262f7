import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, rank):
        self.rank = rank
        self.model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
        self.optim = torch.optim.Adam(self.model.parameters())

    def forward_backward(self, batch):
        if batch.shape[0] > 60:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        loss = self.model(batch).pow(2).mean()
        loss.backward()
        return loss

    def train_step(self, batch):
        self.optim.zero_grad()
        try:
            loss = self.forward_backward(batch)
        except RuntimeError as e:
            if "out of memory" in str(e):
                print(f"| WARNING: ran out of memory on rank {self.rank}, skipping batch", flush=True)
                return None
            raise e
        self.optim.step()
        return loss

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    t = Trainer(rank)
    g = torch.Generator().manual_seed(rank)
    for update in range(120):
        n = 64 if (rank == 1 and update == 40) else 32
        loss = t.train_step(torch.randn(n, 16, generator=g))
        if rank == 0 and update % 5 == 0:
            print(f"step {update} loss {loss.item():.4f}", flush=True)
        if update % 20 == 19:
            v = torch.tensor([0.0 if loss is None else loss.item()])
            out = [torch.zeros(1) for _ in range(dist.get_world_size())]
            dist.all_gather(out, v)

if __name__ == "__main__":
    main()
    dist.destroy_process_group()
