import time

import runbook
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def numbers(model, loss):
    out = {"loss": loss.item()}
    for i, layer in enumerate(model.module.layers):
        grad = layer.weight.grad
        out |= {f"layer{i}.grad": grad.norm().item(), f"layer{i}.mean": layer.weight.mean().item(),
                f"layer{i}.top": layer.weight.max().item(), f"layer{i}.low": layer.weight.min().item()}
    return out


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = runbook.Run("runs", f"rank{rank}")
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 401):
        x = torch.randn(32, 64, generator=g)
        loss = (model(x) - x.roll(2, 1).tanh()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            run.log(step, **numbers(model, loss))
        if rank == 0 and step % 25 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 25 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
