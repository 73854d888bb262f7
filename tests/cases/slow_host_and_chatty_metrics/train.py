import time

import network
import torch
import torch.distributed as dist
import torch.nn as nn

PARTS = ("text", "code", "math", "chat", "news", "law")


class Meter:
    """Mean loss by part of the mixture, over all ranks."""

    def __init__(self):
        self.sums = {p: 0.0 for p in PARTS}

    def update(self, losses, parts):
        for i, name in enumerate(PARTS):
            picked = losses[parts == i]
            value = torch.tensor([picked.sum().item(), float(len(picked))])
            dist.all_reduce(value)
            self.sums[name] = (value[0] / value[1].clamp(min=1)).item()


def average_gradients(model, world):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p) / world)
        at += p.numel()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    host = network.install(network.HOSTS, rank)
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(400, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    meter = Meter()
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 161):
        ids = torch.randint(0, 400, (48, 20), generator=g)
        losses = nn.functional.cross_entropy(model(ids), ids[:, 0] % 10, reduction="none")
        opt.zero_grad()
        losses.mean().backward()
        average_gradients(model, world)
        opt.step()
        meter.update(losses.detach(), ids[:, 1] % len(PARTS))
        if rank == 0 and step % 20 == 0:
            t1 = time.perf_counter()
            print(f"{host} step {step} loss {meter.sums['text']:.3f} {(t1 - t0) / 20 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
