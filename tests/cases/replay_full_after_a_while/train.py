import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Replay:
    """Transitions with priorities; the one with the least priority makes room for a new one."""

    def __init__(self, capacity):
        self.capacity, self.rows, self.priority = capacity, [], []

    def add(self, row, priority):
        if len(self.rows) < self.capacity:
            self.rows.append(row)
            self.priority.append(priority)
        else:
            worst = min(range(len(self.priority)), key=self.priority.__getitem__)
            self.rows[worst], self.priority[worst] = row, priority

    def sample(self, n, g):
        return torch.stack([self.rows[i] for i in torch.randint(len(self.rows), (n,), generator=g).tolist()])


class Pendulum:
    def __init__(self, seed):
        self.g, self.state = torch.Generator().manual_seed(seed), torch.zeros(6)

    def step(self):
        self.state = 0.9 * self.state.roll(1) + 0.3 * torch.randn(6, generator=self.g)
        return self.state, self.state.abs().sum().item()


def main(steps=540):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    critic = DDP(nn.Sequential(nn.Linear(6, 96), nn.ReLU(), nn.Linear(96, 1)))
    opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    env, replay, g = Pendulum(rank), Replay(capacity=8000), torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, steps + 1):
        for _ in range(30):
            state, value = env.step()
            replay.add(state, value)
        x = replay.sample(64, g)
        loss = (critic(x) - x.abs().sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 30 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 30 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
