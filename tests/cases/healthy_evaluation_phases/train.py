import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Recommender(nn.Module):
    def __init__(self, users=400, items=600, width=32):
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.mix = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        return self.mix(torch.cat([self.users(u), self.items(i)], -1)).squeeze(-1)


class Evaluation:
    """Recall over all items; users are dealt to the ranks, sums are exchanged."""

    def __init__(self, rank, world, users=240):
        self.mine = torch.arange(rank, users, world)

    @torch.no_grad()
    def __call__(self, net):
        net.eval()
        hits = torch.zeros(2)
        for u in self.mine.tolist():
            scores = net(torch.full((600,), u), torch.arange(600))
            hits += torch.tensor([float((scores.topk(20).indices % 7 == u % 7).sum()), 20.0])
        dist.all_reduce(hits)
        net.train()
        return (hits[0] / hits[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Recommender())
    evaluate = Evaluation(rank, world)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 481):
        u, i = torch.randint(0, 400, (64,), generator=g), torch.randint(0, 600, (64,), generator=g)
        loss = nn.functional.binary_cross_entropy_with_logits(model(u, i), (u % 7 == i % 7).float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 20 * 1e3:.1f} ms/it", flush=True)
        if step % 80 == 0:
            recall = evaluate(model.module)
            if rank == 0:
                print(f"evaluation after step {step}: recall {recall:.3f}", flush=True)
        if step % 20 == 0:
            t0 = time.perf_counter()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
