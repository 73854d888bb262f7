import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ShardedAdam:
    """Each rank keeps the Adam state of some parameters and sends their new values to all."""

    def __init__(self, params, lr):
        self.params = list(params)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        mine = [p for i, p in enumerate(self.params) if i % self.world == self.rank]
        self.adam = torch.optim.Adam(mine, lr=lr)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.adam.step()
        for i, p in enumerate(self.params):
            dist.broadcast(p, src=i % self.world)


class Scaler:
    """Loss scaling with back-off, as for half precision."""

    def __init__(self, scale=2.0 ** 10, growth_every=40):
        self.scale, self.growth_every, self.good = scale, growth_every, 0

    def step(self, opt, loss):
        overflow = not torch.isfinite(loss * self.scale).item()
        if overflow:
            self.scale, self.good = self.scale / 2, 0
            return False
        opt.step()
        self.good += 1
        if self.good % self.growth_every == 0:
            self.scale *= 2
        return True


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 1)))
    opt, scaler = ShardedAdam(model.parameters(), 1e-3), Scaler()
    g = torch.Generator().manual_seed(rank)
    skipped = 0
    for step in range(1, 301):
        x = torch.randn(40, 20, generator=g)
        y = x[:, :4].prod(1, keepdim=True)
        if rank == 1 and step == 143:
            y = y * 1e20
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        (loss if torch.isfinite(loss) else loss.nan_to_num(0.0, 0.0, 0.0)).backward()
        skipped += not scaler.step(opt, loss)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.scale:.0f} skipped {skipped}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
