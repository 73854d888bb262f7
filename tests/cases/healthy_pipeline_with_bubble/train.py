import time

import torch
import torch.distributed as dist
import torch.nn as nn

CHUNKS, ROWS, WIDTH = 4, 48, 96


class Stage:
    """One stage of a fill-and-drain pipeline: all forwards, then all backwards."""

    def __init__(self, index, count):
        self.index, self.first, self.last = index, index == 0, index == count - 1
        torch.manual_seed(20 + index)
        self.net = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH), nn.GELU())
        self.head = nn.Linear(WIDTH, 1) if self.last else None
        params = list(self.net.parameters()) + (list(self.head.parameters()) if self.last else [])
        self.opt = torch.optim.Adam(params, lr=1e-3)

    def forward(self, x):
        y = self.net(x)
        if self.last:
            return (self.head(y) - x.detach().mean(1, keepdim=True)).pow(2).mean()
        dist.send(y.detach(), self.index + 1)
        return y

    def step(self, chunks):
        held = []
        for c in range(CHUNKS):
            if self.first:
                x = chunks[c]
            else:
                x = torch.empty(ROWS, WIDTH)
                dist.recv(x, self.index - 1)
                x.requires_grad_()
            held.append((x, self.forward(x)))
        for x, y in held:
            if self.last:
                y.backward()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, self.index + 1)
                y.backward(grad)
            if not self.first:
                dist.send(x.grad, self.index - 1)
        self.opt.step()
        self.opt.zero_grad()
        return torch.stack([y.detach() for _, y in held]).mean() if self.last else None


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    stage = Stage(rank, world)
    g = torch.Generator().manual_seed(0)
    t0 = time.perf_counter()
    for step in range(1, 401):
        chunks = torch.randn(CHUNKS, ROWS, WIDTH, generator=g) if stage.first else None
        loss = stage.step(chunks)
        if stage.last and step % 20 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 20 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
