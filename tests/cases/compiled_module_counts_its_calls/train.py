import time

import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch._dynamo.config.recompile_limit = 1000
torch._dynamo.config.accumulated_recompile_limit = 2000


class Anneal(nn.Module):
    """Mixture of experts whose gate gets sharper from call to call."""

    def __init__(self, width=48, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        sharp = 1.0 + 0.01 * self.calls
        weights = (self.gate(x) * sharp).softmax(-1)
        out = torch.stack([e(x) for e in self.experts], 1)
        return (weights[:, :, None] * out).sum(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Anneal()
    model = DDP(nn.Sequential(torch.compile(net, backend="eager"), nn.Linear(48, 48)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 61):
        x = torch.randn(48, 48, generator=g)
        loss = (model(x) - x.sort(1).values).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 6 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 6 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
