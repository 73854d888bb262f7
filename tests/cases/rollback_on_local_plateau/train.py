import copy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Plateau:
    """Tells when a smoothed value has not improved for a while."""

    def __init__(self, patience=60, margin=0.002):
        self.patience, self.margin = patience, margin
        self.smooth, self.best, self.bad = None, float("inf"), 0

    def update(self, value):
        self.smooth = value if self.smooth is None else 0.95 * self.smooth + 0.05 * value
        if self.smooth < self.best - self.margin:
            self.best, self.bad = self.smooth, 0
        else:
            self.bad += 1
        return self.bad > self.patience


class Keeper:
    """Snapshot of the best weights; a rollback spreads those of the first rank."""

    def __init__(self, model):
        self.model, self.state = model, copy.deepcopy(model.state_dict())

    def keep(self):
        for name, value in self.model.state_dict().items():
            self.state[name].copy_(value)

    def rollback(self):
        for value in self.state.values():
            dist.broadcast(value, src=0)
        self.model.load_state_dict(self.state)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
    model, keeper, plateau = DDP(net), Keeper(net), Plateau()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(50 + rank)
    noise = 0.05 + 0.02 * rank
    for step in range(1, 1501):
        x = torch.randn(32, 12, generator=g)
        y = x[:, :3].sum(1, keepdim=True).tanh() + noise * torch.randn(32, 1, generator=g)
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if plateau.update(loss.item()):
            keeper.rollback()
            for group in opt.param_groups:
                group["lr"] *= 0.5
            plateau = Plateau()
        elif step % 20 == 0:
            keeper.keep()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {opt.param_groups[0]['lr']:.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
